//! Numbers of system calls that newer processors have not. There the number is one that no call has, for the kernel as for us.

#[cfg(target_arch = "x86_64")]
pub(crate) use libc::{
    SYS_dup2, SYS_epoll_create, SYS_epoll_wait, SYS_eventfd, SYS_fork, SYS_inotify_init, SYS_open, SYS_pipe,
    SYS_poll, SYS_select,
};

#[cfg(not(target_arch = "x86_64"))]
macro_rules! absent {
    ($($name:ident)*) => { $(#[allow(non_upper_case_globals)] pub(crate) const $name: libc::c_long = -1;)* };
}

#[cfg(not(target_arch = "x86_64"))]
absent!(SYS_dup2 SYS_epoll_create SYS_epoll_wait SYS_eventfd SYS_fork SYS_inotify_init SYS_open SYS_pipe SYS_poll SYS_select);
