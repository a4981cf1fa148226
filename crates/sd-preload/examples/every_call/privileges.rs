//! Users, groups and capabilities, each set to what it is.

use crate::report::show;
use libc::{c_int, c_void};

/// `_LINUX_CAPABILITY_VERSION_3` of `linux/capability.h`.
const VERSION: u32 = 0x2008_0522;

unsafe extern "C" {
    fn capget(header: *mut c_void, data: *mut c_void) -> c_int;
    fn capset(header: *mut c_void, data: *const c_void) -> c_int;
}

pub(crate) fn run() {
    // SAFETY: no pointers but to local variables, as long as the kernel's structures of this version.
    unsafe {
        let (user, group) = (libc::geteuid(), libc::getegid());
        show("setreuid", libc::setreuid(user, user));
        show("setresuid", libc::setresuid(user, user, user));
        show("seteuid", libc::seteuid(user));
        show("setuid", libc::setuid(user));
        show("setregid", libc::setregid(group, group));
        show("setresgid", libc::setresgid(group, group, group));
        show("setegid", libc::setegid(group));
        show("setgid", libc::setgid(group));
        let (mut header, mut data) = ([VERSION, 0], [0u32; 6]);
        capget((&raw mut header).cast(), (&raw mut data).cast());
        show("capset", capset((&raw mut header).cast(), (&raw const data).cast()));
        show("capset", capset(std::ptr::null_mut(), std::ptr::null()));
    }
}
