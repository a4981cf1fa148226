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
    let [a, b, ..] = args;
    let flags = match nr {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => Some(0),
        libc::SYS_clone => shares_nothing(a, b).then_some(a),
        libc::SYS_clone3 if b >= CLONE_ARGS_LEN && user::is_readable(a as *const u8, CLONE_ARGS_LEN) => {
            // SAFETY: so long, and it can be read.
            let words = unsafe { (a as *const [u64; CLONE_ARGS_LEN / 8]).read_unaligned() };
            let flags = words[FLAGS_AT] as usize;
            shares_nothing(flags, words[STACK_AT] as usize).then_some(flags)
        }
        _ => None,
    };
    let [a, b, c, d, e, f] = args;
    // SAFETY: the caller's contract.
    let make = || edge::finish(unsafe { sd_sys::raw::syscall6(nr, a, b, c, d, e, f) });
    flags.map(|flags| network::child(flags as c_int, || fork_bare(make)))
}

/// The first version of `struct clone_args`, and two of its words.
const CLONE_ARGS_LEN: usize = 64;
const FLAGS_AT: usize = 0;
const STACK_AT: usize = 5;

/// A copy of everything on a copy of the stack.
fn shares_nothing(flags: usize, stack: usize) -> bool {
    stack == 0 && flags & (libc::CLONE_VM | libc::CLONE_FILES) as usize == 0
}
