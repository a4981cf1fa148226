//! The edge between C and us: real functions, return values, errno, and the macro that makes a hook of a table row.

use crate::next;
use core::ffi::{CStr, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use sd_socket::Outcome;
use sd_sys::Errno;

/// The real function behind a hook: that of the next library in the search order.
///
/// Null until it was called first, so that a program pays for the functions that it calls. A reader that sees the address sees
/// the function too, as code is not written by this process, so relaxed order is enough.
pub(crate) struct Slot {
    address: AtomicPtr<c_void>,
}

impl Slot {
    pub(crate) const fn new() -> Self {
        Slot { address: AtomicPtr::new(null_mut()) }
    }

    /// The function's address; null when it is not known yet.
    #[inline(always)]
    pub(crate) fn get(&self) -> *mut c_void {
        self.address.load(Ordering::Relaxed)
    }

    /// Looks the function up, and returns its address; null when there is none. Takes no lock and allocates nothing, so it may be
    /// done in a handler of a signal and in the child of a fork, unless only dlsym can tell.
    #[cold]
    #[inline(never)]
    pub(crate) fn resolve(&self, name: &CStr) -> *mut c_void {
        let address = next::find(name).unwrap_or_else(|| ask_linker(name));
        self.address.store(address, Ordering::Relaxed);
        address
    }

    /// As [`Slot::resolve`]; null before the constructor, when the dynamic linker is not to be asked. Musl's may be: it runs constructors when the
    /// program's first instructions ask for that, and those of Go's own linker do not, though libc makes their threads. So what is asked of all
    /// threads (setuid(2)) has to come to libc without.
    #[cfg(not(sd_freestanding))]
    #[cold]
    #[inline(never)]
    pub(crate) fn resolve_if_started(&self, name: &CStr) -> *mut c_void {
        if next::is_noted() || crate::start::may_look_up() { self.resolve(name) } else { null_mut() }
    }
}

fn ask_linker(name: &CStr) -> *mut c_void {
    // SAFETY: a C string.
    let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if address.is_null() {
        // SAFETY: no arguments. A symbol that this libc lacks has left an error text, which is not the program's.
        unsafe { libc::dlerror() };
    }
    address
}

/// At compile time; the text ends in NUL.
pub(crate) const fn c_string(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"",
    }
}

/// What a hooked function returns.
pub(crate) trait Return: Sized {
    /// The value that tells the caller to look at errno.
    const FAILED: Self;
    /// The value for a system call's successful result.
    fn of(value: usize) -> Self;
}

impl Return for c_int {
    const FAILED: Self = -1;
    fn of(value: usize) -> Self {
        value as c_int
    }
}

impl Return for isize {
    const FAILED: Self = -1;
    fn of(value: usize) -> Self {
        value as isize
    }
}

impl Return for () {
    const FAILED: Self = ();
    fn of(_: usize) -> Self {}
}

impl<T> Return for *mut T {
    const FAILED: Self = null_mut();
    fn of(value: usize) -> Self {
        value as *mut T
    }
}

/// Sets errno, and returns the value that says so. Nothing else in SocksDirect writes errno.
#[cold]
#[inline(never)]
pub(crate) fn fail<T: Return>(errno: Errno) -> T {
    let errno = if errno == sd_socket::cancel::CANCELLED { end_thread() } else { errno };
    #[cfg(not(sd_freestanding))]
    if errno == Errno::EINTR && sd_sys::libcs::is_musl() {
        // musl's pthread_cancel(3) has perhaps interrupted a call of ours, which is a cancellation point, and acts on none but its own.
        // SAFETY: as in `end_thread`.
        unsafe { pthread_testcancel() };
    }
    // SAFETY: libc gives the address of the calling thread's errno.
    unsafe { *libc::__errno_location() = errno.0 };
    T::FAILED
}

/// What libc's function has failed with in the calling thread.
pub(crate) fn last_errno() -> Errno {
    // SAFETY: libc gives the address of the calling thread's errno.
    Errno(unsafe { *libc::__errno_location() })
}

/// Does `what`, and leaves errno as it was: for a caller that is not libc's, between two calls of which libc's may look at it.
pub(crate) fn keeping_errno<T>(what: impl FnOnce() -> T) -> T {
    // SAFETY: libc gives the address of the calling thread's errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let result = what();
    // SAFETY: as above; it is the same thread, or its copy in the child of a fork.
    unsafe { *errno = before };
    result
}

unsafe extern "C" {
    fn pthread_testcancel();
}

/// Ends a thread that was cancelled while it waited in a call of ours: no frame below the hook's is left by now, and
/// the few up to the program's have nothing to free.
#[cold]
fn end_thread() -> Errno {
    sd_socket::cancel::acted();
    // SAFETY: a cancellation point, as the call that the program made is.
    unsafe { pthread_testcancel() };
    Errno::EINTR
}

/// Turns the result of a raw system call into that of libc's function.
#[cold]
#[inline(never)]
pub(crate) fn finish<T: Return>(ret: isize) -> T {
    match sd_sys::check(ret) {
        Ok(value) => T::of(value),
        Err(e) => fail(e),
    }
}

/// Calls the real function of a row; without one, or before the constructor, the row's system call.
///
/// The first call of a function is one of its own, which a hook goes to by a jump: so it needs no stack frame.
#[cfg(not(sd_freestanding))]
macro_rules! real {
    ($slot:expr, $symbol:expr, fn($($ty:ty),*) -> $ret:ty, [$($arg:ident),*], old $nr:ident) => {{
        #[cfg(target_arch = "x86_64")]
        {
            real!($slot, $symbol, fn($($ty),*) -> $ret, [$($arg),*], $nr)
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            real!($slot, $symbol, fn($($ty),*) -> $ret, [$($arg),*], lazy)
        }
    }};
    ($slot:expr, $symbol:expr, fn($($ty:ty),*) -> $ret:ty, [$($arg:ident),*], $($raw:tt)+) => {{
        let address = $slot.get();
        if address.is_null() {
            #[cold]
            #[inline(never)]
            #[allow(clippy::too_many_arguments, unused_unsafe)]
            unsafe fn first($($arg: $ty),*) -> $ret {
                real!(@first $slot, $symbol, fn($($ty),*) -> $ret, [$($arg),*], $($raw)+)
            }
            // SAFETY: libc's contract.
            unsafe { first($($arg),*) }
        } else {
            real!(@call address, fn($($ty),*) -> $ret, [$($arg),*])
        }
    }};
    (@first $slot:expr, $symbol:expr, fn($($ty:ty),*) -> $ret:ty, [$($arg:ident),*], lazy) => {{
        let address = $slot.resolve($symbol);
        match address.is_null() {
            true => $crate::edge::fail(sd_sys::Errno::ENOSYS),
            false => real!(@call address, fn($($ty),*) -> $ret, [$($arg),*]),
        }
    }};
    (@first $slot:expr, $symbol:expr, fn($($ty:ty),*) -> $ret:ty, [$($arg:ident),*], $nr:ident $(($($raw:expr),*))?) => {{
        let address = $slot.resolve_if_started($symbol);
        match address.is_null() {
            // SAFETY: libc's contract; the system call is what libc's function is made of.
            true => $crate::edge::finish(unsafe { real!(@raw $nr, [$($arg),*] $(, [$($raw),*])?) }),
            false => real!(@call address, fn($($ty),*) -> $ret, [$($arg),*]),
        }
    }};
    (@call $address:ident, fn($($ty:ty),*) -> $ret:ty, [$($arg:ident),*]) => {{
        // SAFETY: the table row declares the C signature of the symbol that dlsym found by that name.
        let real: unsafe extern "C" fn($($ty),*) -> $ret = unsafe { core::mem::transmute($address) };
        // SAFETY: libc's contract.
        unsafe { real($($arg),*) }
    }};
    (@raw $nr:ident, [$($arg:ident),*]) => { sd_sys::syscall_of_program!(libc::$nr $(, $arg)*) };
    (@raw $nr:ident, [$($arg:ident),*], [$($raw:expr),*]) => { sd_sys::syscall_of_program!(libc::$nr $(, $raw)*) };
}

/// Without libc: the row's system call. What has none is called by nobody, since nobody calls functions.
#[cfg(sd_freestanding)]
macro_rules! real {
    ($slot:expr, $symbol:expr, fn($($ty:ty),*) -> $ret:ty, [$($arg:ident),*], old $nr:ident) => {
        real!($slot, $symbol, fn($($ty),*) -> $ret, [$($arg),*], $nr)
    };
    ($slot:expr, $symbol:expr, fn($($ty:ty),*) -> $ret:ty, [$($arg:ident),*], lazy) => {{
        $(let _ = $arg;)*
        $crate::edge::fail(sd_sys::Errno::ENOSYS)
    }};
    ($slot:expr, $symbol:expr, fn($($ty:ty),*) -> $ret:ty, [$($arg:ident),*], $nr:ident $(($($raw:expr),*))?) => {
        // SAFETY: the caller's contract with the kernel.
        $crate::edge::finish(unsafe { real!(@raw $nr, [$($arg),*] $(, [$($raw),*])?) })
    };
    (@raw $nr:ident, [$($arg:ident),*]) => { sd_sys::syscall_of_program!(libc::$nr $(, $arg)*) };
    (@raw $nr:ident, [$($arg:ident),*], [$($raw:expr),*]) => { sd_sys::syscall_of_program!(libc::$nr $(, $raw)*) };
}

/// What a row's hook does; the forms are explained at the head of the table.
///
/// The part for our own descriptors is a function of its own, so that the hook needs no stack frame: it is the check
/// and one of two jumps.
macro_rules! act {
    ($real:expr, $sig:tt, then $then:expr) => { ($then)($real) };
    ($real:expr, $sig:tt, first $first:expr) => {{ $first; $real }};
    ($real:expr, $sig:tt, does $body:expr) => { $body };
    ($real:expr, $sig:tt, if ($holds:expr) $call:expr) => { if $holds { $call } else { $real } };
    ($real:expr, [$($arg:ident: $ty:ty),*; $ret:ty],
        ours($($fd:ident),+ $(; $or:expr)?) $call:expr $(, then $then:expr)?) => {
        if $(calls::is_ours($fd))||+ $(|| $or)? {
            #[inline(never)]
            unsafe fn ask($($arg: $ty),*) -> $ret {
                // SAFETY: libc's contract.
                unsafe { act!($real, [], any $call $(, then $then)?) }
            }
            ask($($arg),*)
        } else {
            act!(@otherwise $real $(; $or)? $(, then $then)?)
        }
    };
    ($real:expr, $sig:tt, any $call:expr $(, then $then:expr)?) => {
        match $call {
            Outcome::Done(value) => value,
            Outcome::Kernel => act!(@otherwise $real $(, then $then)?),
            Outcome::Errno(errno) => $crate::edge::fail(errno),
        }
    };
    // A condition in `ours` that does not hold means that `then` has nothing to do.
    (@otherwise $real:expr; $or:expr, then $then:expr) => { $real };
    (@otherwise $real:expr; $or:expr) => { $real };
    (@otherwise $real:expr, then $then:expr) => { ($then)($real) };
    (@otherwise $real:expr) => { $real };
}

/// An answer as syscall(2) gives it.
pub(crate) fn by_number<T>(outcome: Outcome<T>, value: impl FnOnce(T) -> isize) -> Outcome<isize> {
    match outcome {
        Outcome::Done(done) => Outcome::Done(value(done)),
        Outcome::Errno(errno) => Outcome::Errno(errno),
        Outcome::Kernel => Outcome::Kernel,
    }
}

/// What a row answers to its system call by number, if that has the function's own arguments; else the next row is looked at.
macro_rules! ask_row {
    ($nr:ident, $args:ident, $sig:tt, {lazy}, $($action:tt)+) => {};
    ($nr:ident, $args:ident, $sig:tt, {old $name:ident}, $($action:tt)+) => {
        #[cfg(target_arch = "x86_64")]
        ask_row!($nr, $args, $sig, {$name}, $($action)+);
    };
    ($nr:ident, $args:ident, [$($arg:ident: $ty:ty),*], {$name:ident},
        ours($($fd:ident),+ $(; $or:expr)?) $call:expr $(, then $then:expr)?) => {
        if $nr == libc::$name {
            let mut args = $args.into_iter();
            $(let $arg = args.next().unwrap_or(0) as $ty;)*
            return match $(calls::is_ours($fd))||+ $(|| $or)? {
                true => $crate::edge::by_number($call, |value| value as isize),
                false => Outcome::Kernel,
            };
        }
    };
    ($nr:ident, $args:ident, [$($arg:ident: $ty:ty),*], {$name:ident}, any $call:expr $(, then $then:expr)?) => {
        if $nr == libc::$name {
            let mut args = $args.into_iter();
            $(let $arg = args.next().unwrap_or(0) as $ty;)*
            return $crate::edge::by_number($call, |value| value as isize);
        }
    };
    ($nr:ident, $args:ident, $sig:tt, $raw:tt, $($action:tt)+) => {};
}

/// The result of a row's function, passed through its `then`.
pub(crate) fn through<T>(then: impl FnOnce(T) -> T, result: T) -> T {
    then(result)
}

/// What a row makes of the result of its system call: new descriptors, or that the kernel's call is over.
macro_rules! made_by_row {
    ($nr:ident, $args:ident, $ret:ident, $sig:tt, {lazy}, $($action:tt)+) => {};
    ($nr:ident, $args:ident, $ret:ident, $sig:tt, {old $name:ident}, $($action:tt)+) => {
        #[cfg(target_arch = "x86_64")]
        made_by_row!($nr, $args, $ret, $sig, {$name}, $($action)+);
    };
    ($nr:ident, $args:ident, $ret:ident, $sig:tt, {$name:ident}, any $call:expr, then $then:expr) => {
        made_by_row!($nr, $args, $ret, $sig, {$name}, then $then);
    };
    // Of the kernel's: ours were answered before.
    ($nr:ident, $args:ident, $ret:ident, $sig:tt, {$name:ident}, ours($($fd:ident),+) $call:expr, then $then:expr) => {
        made_by_row!($nr, $args, $ret, $sig, {$name}, then $then);
    };
    // As `ask_row` has asked, or not.
    ($nr:ident, $args:ident, $ret:ident, [$($arg:ident: $ty:ty),*; $result:ty], {$name:ident},
        ours($($fd:ident),+; $or:expr) $call:expr, then $then:expr) => {
        if $nr == libc::$name {
            let mut args = $args.into_iter();
            $(let $arg = args.next().unwrap_or(0) as $ty;)*
            return match $(calls::is_ours($fd))||+ || $or {
                true => $crate::edge::through::<$result>($then, $ret as _) as isize,
                false => $ret,
            };
        }
    };
    ($nr:ident, $args:ident, $ret:ident, [$($arg:ident: $ty:ty),*; $result:ty], {$name:ident}, then $then:expr) => {
        if $nr == libc::$name {
            let mut args = $args.into_iter();
            $(let $arg = args.next().unwrap_or(0) as $ty;)*
            return ($then)($ret as _) as isize;
        }
    };
    ($nr:ident, $args:ident, $ret:ident, $sig:tt, $raw:tt, $($action:tt)+) => {};
}

/// Whether a row's system call is that one.
macro_rules! is_rows {
    ($nr:ident, {lazy}) => {};
    ($nr:ident, {old $name:ident}) => {
        #[cfg(target_arch = "x86_64")]
        is_rows!($nr, { $name });
    };
    ($nr:ident, {$name:ident}) => {
        if $nr == libc::$name {
            return true;
        }
    };
    ($nr:ident, $raw:tt) => {};
}

/// Makes of the table: `resolve_all`, `real::NAME` (the next library's function), `hook::NAME` (what the
/// library does instead, for use in here), and the exported symbols.
macro_rules! hooks {
    ($(
        $name:ident $(| $alias:ident)* ($($arg:ident: $ty:ty),*) -> $ret:ty
            { $($raw:ident)+ $(($($raw_arg:expr),*))?; $($action:tt)+ }
    )+
    ... { $($variadic:ident = $c_name:ident,)+ }
    chosen { $($chosen:ident = $choose:path,)+ }) => {
        #[cfg(not(sd_freestanding))]
        #[allow(non_upper_case_globals)]
        mod slot {
            $(pub(super) static $name: $crate::edge::Slot = $crate::edge::Slot::new();)+
        }

        /// Looks all functions up, where there are any.
        #[cold]
        pub(crate) fn resolve_all() {
            $(#[cfg(not(sd_freestanding))]
            slot::$name.resolve($crate::edge::c_string(concat!(stringify!($name), "\0")));)+
        }

        /// The functions that the program would call without us. A hook that `does` all itself never calls its own.
        #[allow(dead_code, non_snake_case)]
        pub(crate) mod real {
            use super::*;
            $(#[inline(always)]
            #[cfg_attr(sd_freestanding, allow(unused_variables, reason = "without a system call of the same arguments"))]
            pub(crate) unsafe fn $name($($arg: $ty),*) -> $ret {
                real!(slot::$name, $crate::edge::c_string(concat!(stringify!($name), "\0")), fn($($ty),*) -> $ret, [$($arg),*], $($raw)+ $(($($raw_arg),*))?)
            })+
        }

        /// The functions that the program calls with us. Some rows only call what is safe to call.
        #[allow(unused_unsafe, non_snake_case)]
        pub(crate) mod hook {
            use super::*;
            $(#[inline(always)]
            pub(crate) unsafe fn $name($($arg: $ty),*) -> $ret {
                // SAFETY: libc's contract.
                unsafe { act!(real::$name($($arg),*), [$($arg: $ty),*; $ret], $($action)+) }
            })+
        }

        /// What the rows answer to a system call by number.
        ///
        /// # Safety
        /// The caller's contract with the kernel.
        #[allow(unused_variables, unused_mut, clippy::unnecessary_cast)]
        pub(crate) unsafe fn by_number(nr: c_long, args: [usize; 6]) -> Outcome<isize> {
            // SAFETY: the kernel's contract about this call, which is that of the row's function.
            unsafe {
                $(ask_row!(nr, args, [$($arg: $ty),*], {$($raw)+ $(($($raw_arg),*))?}, $($action)+);)+
            }
            Outcome::Kernel
        }

        /// The result of a system call by number, where rows do something with it.
        ///
        /// # Safety
        /// The caller's contract with the kernel.
        #[allow(unused_variables, unused_mut, clippy::unnecessary_cast)]
        pub(crate) unsafe fn made_by(nr: c_long, args: [usize; 6], ret: isize) -> isize {
            // SAFETY: as above.
            unsafe {
                $(made_by_row!(nr, args, ret, [$($arg: $ty),*; $ret], {$($raw)+ $(($($raw_arg),*))?}, $($action)+);)+
            }
            ret
        }

        /// Whether a row answers to that system call by number.
        pub(crate) const fn has_row(nr: c_long) -> bool {
            $(is_rows!(nr, {$($raw)+ $(($($raw_arg),*))?});)+
            false
        }

        #[cfg(not(sd_freestanding))]
        mod export {
            use super::*;
            $(#[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($arg: $ty),*) -> $ret {
                // SAFETY: libc's contract.
                unsafe { hook::$name($($arg),*) }
            }
            hooks!(@alias [$($alias)*] $name ($($arg: $ty),*) -> $ret);)+
            $(#[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $variadic() {
                // A jump keeps every register and the stack as the caller of the variadic function left them.
                sd_sys::jump_to!(super::variadic::$c_name)
            })+
            $(#[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $chosen() {
                // Nothing of this function is left on the stack when the chosen one begins.
                sd_sys::jump_to_chosen!($choose)
            })+
        }

        #[cfg(not(sd_freestanding))]
        /// src/variadic.c; never called from Rust, so their signatures do not matter.
        mod variadic {
            unsafe extern "C" {
                $(pub(super) fn $c_name();)+
            }
        }
    };
    (@alias [] $name:ident $args:tt -> $ret:ty) => {};
    (@alias [$alias:ident $($rest:ident)*] $name:ident ($($arg:ident: $ty:ty),*) -> $ret:ty) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $alias($($arg: $ty),*) -> $ret {
            // SAFETY: libc's contract.
            unsafe { hook::$name($($arg),*) }
        }
        hooks!(@alias [$($rest)*] $name ($($arg: $ty),*) -> $ret);
    };
}
