//! The start-up order.
//!
//! | step | works afterwards |
//! |---|---|
//! | (none yet) | every hook with a system call of the same shape, as that raw call; the others look their symbol up |
//! | 1. resolve | every hook as pass-through, through the next library's function |
//! | 2. `calls::start` | acceleration |
//! | 3. `sites::lead` | the same for the system calls of a Go program, which are no calls of libc |
//!
//! The library is marked DF_1_INITFIRST, so the dynamic linker runs [`constructor`] before the constructors of all
//! other libraries. pthread_atfork(3) calls prepare handlers in the opposite order of registration and the others in
//! that order: so ours come last before a fork and first after it, and no other library's handler meets our sockets
//! half-way. `sd_socket::calls` answers Kernel before its `start`.
//!
//! A program whose exec gave it rights that its caller has not (AT_SECURE: set-user-id, file capabilities) stays at step 1
//! for ever: nothing of what the caller has left, variables or descriptors, is looked at. It loads the library only where
//! /etc/ld.so.preload names it. Tested by `tests/secure.rs`. A program under a seccomp filter that kills for what the
//! library calls is found out when the library would make the first of these calls (`sd_sys::filters`).
//!
//! Each program that is executed pays for this, so the start makes next to no system call, resolves nothing, and writes to few
//! pages (ADR 79); `sd bench exec` measures it.

use crate::edge::Slot;
use crate::{next, table};
use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicBool, Ordering};
use sd_socket::calls;
use sd_sys::libcs::{self, Handler, Names};

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn(c_int, Argv, Argv) = constructor;

type Argv = *const *const c_char;

sd_sys::libc_names!();

unsafe extern "C" {
    static sd_libc_names: Names;
    static environ: Argv;
}

/// What the libc that is loaded has.
pub(crate) fn libc_names() -> &'static Names {
    // SAFETY: the dynamic linker has written it before it calls anything here.
    unsafe { &sd_libc_names }
}

/// Whether functions may be looked up though the constructor has not run: by musl's linker, when it has done with this library. glibc's calls functions
/// (those that choose others) before that, and has its locks then.
pub(crate) fn may_look_up() -> bool {
    // SAFETY: a word of this library's, which the linker changes.
    let noted = unsafe { (&raw const CONSTRUCTOR).cast::<usize>().read_volatile() };
    noted == constructor as *const () as usize && libc_names().version.is_none()
}

/// glibc passes main's arguments; `environ` itself is not set so early. musl passes none, and has set it.
extern "C" fn constructor(_argc: c_int, _argv: Argv, envp: Argv) {
    // SAFETY: of this process's libc.
    unsafe { libcs::begin(libc_names()) };
    // SAFETY: musl's variable; nobody else runs yet.
    let envp = if libcs::is_musl() { unsafe { environ } } else { envp };
    let own_path = resolve();
    // SAFETY: no pointers.
    let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if is_secure || is_served() {
        IS_PASSIVE.store(true, Ordering::Relaxed);
        return;
    }
    // SAFETY: libc's environment, null-terminated, and the dynamic linker's name of this library.
    unsafe { calls::start(envp, own_path) };
    crate::body::stdio::adopt_standard_streams();
    // SAFETY: the handlers are functions of this library, which is never unloaded (libc::dlclose does not unload a
    // preloaded library).
    unsafe { at_fork(Some(prepare), Some(parent), Some(child)) };
    #[cfg(target_arch = "x86_64")]
    crate::sites::lead();
}

/// The library for programs without libc is here, and serves a program that has a dynamic linker all the same (ADR 113): GS leads to its words.
/// Nobody else has changed that so early.
fn is_served() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        const FSGSBASE: libc::c_ulong = 1 << 1;
        // SAFETY: no pointers; and what the first one says.
        unsafe { libc::getauxval(libc::AT_HWCAP2) & FSGSBASE != 0 && sd_sys::arch::gs() != 0 }
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// pthread_atfork(3), which glibc links into each library.
///
/// # Safety
/// The handlers are functions that stay.
unsafe fn at_fork(prepare: Handler, parent: Handler, child: Handler) {
    if let Some(register) = libc_names().register_atfork {
        // SAFETY: by contract; without a name of a library, they are never taken back.
        unsafe { register(prepare, parent, child, core::ptr::null_mut()) };
        return;
    }
    let address = Slot::new().resolve(c"pthread_atfork");
    if address.is_null() {
        return;
    }
    // SAFETY: the function of that name.
    let register: unsafe extern "C" fn(Handler, Handler, Handler) -> c_int =
        unsafe { core::mem::transmute(address) };
    // SAFETY: by contract.
    unsafe { register(prepare, parent, child) };
}

/// See [`is_passive`].
static IS_PASSIVE: AtomicBool = AtomicBool::new(false);

/// The library changes nothing in this program.
pub(crate) fn is_passive() -> bool {
    IS_PASSIVE.load(Ordering::Relaxed)
}

/// Makes the functions behind the hooks known, and the path of this library.
#[inline(always)]
fn resolve() -> *const c_char {
    if !next::note_all() {
        // dlsym must not be asked later.
        table::resolve_all();
    }
    next::own_path()
}

unsafe extern "C" fn prepare() {
    calls::fork_prepare();
}

unsafe extern "C" fn parent() {
    calls::fork_parent();
}

unsafe extern "C" fn child() {
    calls::fork_child();
}
