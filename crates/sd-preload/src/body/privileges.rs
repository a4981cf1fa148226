//! setuid(2) and its relatives, capset(2): calls by which a process may give rights up for good (see
//! `sd_socket::separate`).
//!
//! | call | gives something up when |
//! |---|---|
//! | setuid, seteuid, setreuid, setresuid | one of the three user ids is lost, and none of them is root's afterwards |
//! | setgid, setegid, setregid, setresgid | one of the three group ids is lost, and the process may not take it again |
//! | capset | a capability is lost |
//! | prctl(PR_SET_NO_NEW_PRIVS), landlock_restrict_self, seccomp | always; see `confine` for the last one |
//!
//! A user id that is only put aside, as seteuid does, is given up as little as it is for the kernel. setgroups(2) takes a
//! capability by which the groups can be taken again; when that goes, the process leaves its family. Some of these calls
//! are one thread's: by number, and capset, prctl, seccomp and landlock always. The threads share their memory whatever rights
//! each has, so Linux separates nothing before the last thread with the rights is gone. When that is nobody tells us;
//! so the process leaves at the first.

use super::ids::{Ids, ids_then, loses};
use core::ffi::{c_int, c_long};
use sd_socket::{Outcome, separate, stranger};
use sd_sys::{check, syscall};

const ROOT: u32 = 0;
const CAP_SETGID: u32 = 6;
const CAP_SETUID: u32 = 7;
/// Not in libc yet; a system call without a function.
pub(crate) const SYS_LANDLOCK_RESTRICT_SELF: c_long = 446;

/// Makes the `call`, which is system call `nr` with these arguments; before it the process leaves its family, if it gives
/// something up.
pub(crate) fn change(nr: c_long, args: [usize; 3], call: impl FnOnce() -> c_int) -> Outcome<c_int> {
    if separate::has_relatives() && gives_up(nr, args) {
        return separate::before(call);
    }
    if ![libc::SYS_setuid, libc::SYS_setreuid, libc::SYS_setresuid].contains(&nr) {
        return Outcome::Kernel;
    }
    let result = call();
    stranger::may_have_become();
    Outcome::Done(result)
}

/// All threads of a static program are about to be stopped by its libc, for one of these calls by each of them: most likely to give something up, and when they stand,
/// wherever that is, the process cannot leave its family any more.
#[cfg(sd_freestanding)]
pub(crate) fn may_change_for_all() {
    // Where it fails, so will the call itself.
    let _ = separate::now();
}

fn gives_up(nr: c_long, args: [usize; 3]) -> bool {
    let ids = args.map(|arg| arg as u32);
    match nr {
        libc::SYS_setuid | libc::SYS_setreuid | libc::SYS_setresuid => {
            let now = ids_now(libc::SYS_getresuid);
            let then = ids_then(nr == libc::SYS_setuid, now, ids, has(CAP_SETUID), args_of(nr));
            loses(now, then) && !then.contains(&ROOT)
        }
        libc::SYS_setgid | libc::SYS_setregid | libc::SYS_setresgid => {
            let now = ids_now(libc::SYS_getresgid);
            let then = ids_then(nr == libc::SYS_setgid, now, ids, has(CAP_SETGID), args_of(nr));
            loses(now, then) && !has(CAP_SETGID)
        }
        libc::SYS_capset => {
            let [header, data, _] = args;
            // SAFETY: the caller's contract with capset(2).
            unsafe { loses_capabilities(header as *const Header, data as *const Capabilities) }
        }
        _ => true,
    }
}

/// How many ids the call takes.
fn args_of(nr: c_long) -> usize {
    match nr {
        libc::SYS_setreuid | libc::SYS_setregid => 2,
        libc::SYS_setresuid | libc::SYS_setresgid => 3,
        _ => 1,
    }
}

fn ids_now(nr: c_long) -> Ids {
    let mut ids = [0; 3];
    let [real, effective, saved] = &mut ids;
    // SAFETY: the kernel writes three numbers.
    unsafe { syscall!(nr, &raw mut *real, &raw mut *effective, &raw mut *saved) };
    ids
}

/// cap_user_header_t, and one element of cap_user_data_t.
#[repr(C)]
struct Header {
    version: u32,
    pid: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Capabilities {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// _LINUX_CAPABILITY_VERSION_1 and _3: one element, and two.
const VERSION_1: u32 = 0x1998_0330;
const VERSION_3: u32 = 0x2008_0522;

fn capabilities_now() -> [Capabilities; 2] {
    let mut now = [Capabilities::default(); 2];
    let header = Header { version: VERSION_3, pid: 0 };
    // SAFETY: the kernel reads the header and writes two elements.
    let _ = check(unsafe { syscall!(libc::SYS_capget, &raw const header, now.as_mut_ptr()) });
    now
}

/// Whether the process has a capability, one of the first 32.
fn has(capability: u32) -> bool {
    let [low, _] = capabilities_now();
    low.effective >> capability & 1 != 0
}

/// # Safety
/// Null, or what capset(2) takes.
unsafe fn loses_capabilities(header: *const Header, data: *const Capabilities) -> bool {
    if header.is_null() || data.is_null() {
        return false;
    }
    // SAFETY: by contract; version 1 has one element only.
    let then = unsafe {
        let second = || data.add(1).read_unaligned();
        let has_one = (*header).version == VERSION_1;
        [data.read_unaligned(), if has_one { Capabilities::default() } else { second() }]
    };
    capabilities_now().iter().zip(then).any(|(now, then)| now.permitted & !then.permitted != 0)
}

/// PR_SET_NO_NEW_PRIVS, unless it is set already.
pub(crate) fn no_new_privileges(call: impl FnOnce() -> c_int) -> Outcome<c_int> {
    // SAFETY: no pointers.
    let is_set = check(unsafe { syscall!(libc::SYS_prctl, libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) }) == Ok(1);
    if is_set { Outcome::Kernel } else { separate::before(call) }
}
