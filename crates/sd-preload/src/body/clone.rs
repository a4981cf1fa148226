//! clone(2), by libc's function of that name and by number: which kinds are a fork of ours.
//!
//! | memory | descriptors | here |
//! |---|---|---|
//! | copied | copied | a fork |
//! | shared, the parent waits (CLONE_VFORK) | copied | a fork too, with memory of its own, where the process has sockets of ours: as vfork(2) |
//! | shared or copied | shared | left to the kernel: a thread; or a process that may use our sockets while its parent waits |

use super::process::fork_bare;
use crate::edge;
use crate::table::real;
use core::ffi::{c_int, c_long, c_void};
use sd_socket::{calls, network};
use sd_sys::user;

pub(crate) type Entry = Option<unsafe extern "C" fn(*mut c_void) -> c_int>;

/// What a child on a stack of its own begins with.
struct Beginning {
    entry: unsafe extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
}

/// Whether the child is to have descriptors and memory of its own, and the flags for that. The parent does not wait: it
/// holds what all its threads need until it goes on.
fn as_fork(flags: c_int) -> Option<c_int> {
    let shared = flags & (libc::CLONE_VM | libc::CLONE_FILES);
    let like_vfork = shared == libc::CLONE_VM && flags & libc::CLONE_VFORK != 0 && calls::has_sockets();
    (shared == 0 || like_vfork).then_some(flags & !(libc::CLONE_VM | libc::CLONE_VFORK))
}

/// clone(3).
///
/// # Safety
/// libc's contract.
pub(crate) unsafe fn clone(
    entry: Entry,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    [parent_tid, tls, child_tid]: [*mut c_void; 3],
) -> c_int {
    let (Some(program), Some(own), false) = (entry, as_fork(flags), stack.is_null()) else {
        // SAFETY: libc's contract.
        return unsafe { real::clone(entry, stack, flags, argument, parent_tid, tls, child_tid) };
    };
    let beginning = Beginning { entry: program, argument };
    let beginning = (&raw const beginning).cast_mut().cast();
    network::child(flags, || {
        super::process::fork_begins();
        calls::fork_prepare();
        // SAFETY: libc's contract; the child has a copy of what `begin` reads.
        let pid = unsafe { real::clone(Some(begin), stack, own, beginning, parent_tid, tls, child_tid) };
        calls::fork_parent();
        calls::fork_announce(pid);
        pid
    })
}

unsafe extern "C" fn begin(beginning: *mut c_void) -> c_int {
    calls::fork_child_bare();
    calls::fork_late();
    // SAFETY: the child's copy of what `clone` made; the program's function and its argument.
    unsafe {
        let Beginning { entry, argument } = beginning.cast::<Beginning>().read();
        entry(argument)
    }
}

/// fork, clone and clone3 by number: the result, where they fork and the child goes on behind the call.
///
/// # Safety
/// The caller's contract with the kernel.
pub(crate) unsafe fn by_number(nr: c_long, args: [usize; 6]) -> Option<c_int> {
    // SAFETY: the caller's contract.
    let said = unsafe { said(nr, args) }.filter(|said| shares_nothing(said.flags, said.stack));
    let [a, b, c, d, e, f] = args;
    // SAFETY: the caller's contract.
    let make = || edge::finish(unsafe { sd_sys::raw::syscall6(nr, a, b, c, d, e, f) });
    said.map(|said| network::child(said.flags as c_int, || fork_bare(make)))
}

/// What fork, clone and clone3 by number say of the child.
struct Said {
    flags: usize,
    /// Its stack; zero: a copy of the caller's.
    stack: usize,
    /// Where that begins.
    #[cfg_attr(not(sd_freestanding), allow(dead_code, reason = "of `on_stack`"))]
    top: usize,
}

/// # Safety
/// The caller's contract with the kernel.
unsafe fn said(nr: c_long, args: [usize; 6]) -> Option<Said> {
    let [a, b, ..] = args;
    match nr {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => Some(Said { flags: 0, stack: 0, top: 0 }),
        libc::SYS_clone => Some(Said { flags: a, stack: b, top: b }),
        libc::SYS_clone3 if b >= CLONE_ARGS_LEN && user::is_readable(a as *const u8, CLONE_ARGS_LEN) => {
            // SAFETY: so long, and it can be read.
            let words = unsafe { (a as *const [u64; CLONE_ARGS_LEN / 8]).read_unaligned() };
            let [flags, stack, len] =
                [words[FLAGS_AT], words[STACK_AT], words[STACK_AT + 1]].map(|word| word as usize);
            Some(Said { flags, stack, top: stack.wrapping_add(len) })
        }
        _ => None,
    }
}

/// Of a child that begins on another stack: flags, and where that begins.
///
/// # Safety
/// The caller's contract with the kernel.
#[cfg(sd_freestanding)]
pub(crate) unsafe fn on_stack(nr: c_long, args: [usize; 6]) -> Option<(usize, usize)> {
    // SAFETY: the caller's contract.
    unsafe { said(nr, args) }.filter(|said| said.stack != 0).map(|said| (said.flags, said.top))
}

/// Such a call with a copy of everything on a copy of the caller's stack; the result. `None`: it is none that this can change.
///
/// # Safety
/// As [`on_stack`], which has said `Some`.
#[cfg(sd_freestanding)]
pub(crate) unsafe fn on_own_stack(nr: c_long, mut args: [usize; 6]) -> Option<c_int> {
    let [a, b, ..] = args;
    // SAFETY: the caller's contract; the copy is there until the call has been made.
    unsafe {
        let mut copy;
        if nr == libc::SYS_clone3 {
            copy = copied(a, b)?;
            (copy[STACK_AT], copy[STACK_AT + 1]) = (0, 0);
            args[0] = copy.as_ptr() as usize;
        } else {
            args[1] = 0;
        }
        without_lending(nr, args, |nr, args| by_number(nr, args))
    }
}

/// What clone3(2) is given, where it is not longer than known, and can be read.
///
/// # Safety
/// The caller's contract with the kernel.
unsafe fn copied(at: usize, len: usize) -> Option<[u64; CLONE_ARGS_LEN_MAX / 8]> {
    let is_known = (CLONE_ARGS_LEN..=CLONE_ARGS_LEN_MAX).contains(&len);
    (is_known && user::is_readable(at as *const u8, len)).then(|| {
        let mut copy = [0; CLONE_ARGS_LEN_MAX / 8];
        // SAFETY: so long, and it can be read.
        unsafe { core::ptr::copy_nonoverlapping(at as *const u8, copy.as_mut_ptr().cast(), len) };
        copy
    })
}

/// Makes such a call by `make`, with what it says of a parent that lends its memory and waits (CLONE_VFORK) taken back, if the
/// child goes on behind the call.
///
/// # Safety
/// The caller's contract with the kernel.
pub(crate) unsafe fn without_lending<T>(
    nr: c_long,
    mut args: [usize; 6],
    make: impl FnOnce(c_long, [usize; 6]) -> T,
) -> T {
    let [a, b, ..] = args;
    let mut copy;
    match nr {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_vfork => return make(libc::SYS_fork, args),
        libc::SYS_clone if b == 0 => args[0] = lending_nothing(a),
        libc::SYS_clone3 => {
            // SAFETY: the caller's contract.
            if let Some(found) = unsafe { copied(a, b) } {
                copy = found;
                copy[FLAGS_AT] = lending_nothing(copy[FLAGS_AT] as usize) as u64;
                args[0] = copy.as_ptr() as usize;
            }
        }
        _ => {}
    }
    make(nr, args)
}

/// Flags of clone(2), without what they say of such a parent.
pub(crate) fn lending_nothing(flags: usize) -> usize {
    const LENT: usize = (libc::CLONE_VM | libc::CLONE_VFORK) as usize;
    if flags & LENT == LENT { flags & !LENT } else { flags }
}

/// As long as `struct clone_args` may become: what is longer is left as it is.
const CLONE_ARGS_LEN_MAX: usize = 256;
/// The first version of `struct clone_args`, and two of its words.
const CLONE_ARGS_LEN: usize = 64;
const FLAGS_AT: usize = 0;
const STACK_AT: usize = 5;

/// A copy of everything on a copy of the stack.
fn shares_nothing(flags: usize, stack: usize) -> bool {
    stack == 0 && flags & (libc::CLONE_VM | libc::CLONE_FILES) as usize == 0
}
