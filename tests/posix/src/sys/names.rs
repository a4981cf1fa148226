//! Names of errno values, signals, event bits and TCP states.

macro_rules! names {
    ($($name:ident)*) => { &[$((libc::$name as i64, stringify!($name))),*] };
}

const ERRNOS: &[(i64, &str)] = names!(
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT ENOTBLK EBUSY EEXIST
    EXDEV ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE EDEADLK
    ENAMETOOLONG ENOSYS ELOOP ENODATA EOVERFLOW ENOTSOCK EDESTADDRREQ EMSGSIZE EPROTOTYPE ENOPROTOOPT
    EPROTONOSUPPORT ESOCKTNOSUPPORT EOPNOTSUPP EPFNOSUPPORT EAFNOSUPPORT EADDRINUSE EADDRNOTAVAIL ENETDOWN
    ENETUNREACH ENETRESET ECONNABORTED ECONNRESET ENOBUFS EISCONN ENOTCONN ESHUTDOWN ETOOMANYREFS ETIMEDOUT
    ECONNREFUSED EHOSTDOWN EHOSTUNREACH EALREADY EINPROGRESS ECANCELED
);

const SIGNALS: &[(i64, &str)] = names!(
    SIGHUP SIGINT SIGQUIT SIGILL SIGTRAP SIGABRT SIGBUS SIGFPE SIGKILL SIGUSR1 SIGSEGV SIGUSR2 SIGPIPE SIGALRM SIGTERM
    SIGCHLD SIGURG SIGIO SIGSYS
);

const POLL_BITS: &[(i64, &str)] = names!(
    POLLIN POLLPRI POLLOUT POLLERR POLLHUP POLLNVAL POLLRDNORM POLLRDBAND POLLWRNORM POLLWRBAND POLLRDHUP
);

const EPOLL_BITS: &[(i64, &str)] = names!(
    EPOLLIN EPOLLPRI EPOLLOUT EPOLLERR EPOLLHUP EPOLLRDNORM EPOLLRDBAND EPOLLWRNORM EPOLLWRBAND EPOLLMSG EPOLLRDHUP
    EPOLLEXCLUSIVE EPOLLONESHOT
);

const MSG_BITS: &[(i64, &str)] = names!(
    MSG_OOB MSG_PEEK MSG_CTRUNC MSG_TRUNC MSG_EOR MSG_WAITALL MSG_ERRQUEUE MSG_NOSIGNAL MSG_CMSG_CLOEXEC MSG_DONTWAIT
);

/// RFC 793 states as `tcpi_state` numbers them (include/net/tcp_states.h).
const TCP_STATES: &[&str] = &[
    "0",
    "ESTABLISHED",
    "SYN_SENT",
    "SYN_RECV",
    "FIN_WAIT1",
    "FIN_WAIT2",
    "TIME_WAIT",
    "CLOSE",
    "CLOSE_WAIT",
    "LAST_ACK",
    "LISTEN",
    "CLOSING",
];

fn find(table: &[(i64, &'static str)], value: i64) -> String {
    let known = table.iter().find(|(number, _)| *number == value);
    known.map_or_else(|| value.to_string(), |(_, name)| (*name).to_owned())
}

fn bits(table: &[(i64, &'static str)], prefix: &str, value: i64) -> String {
    let mut rest = value;
    let mut words = Vec::new();
    for (bit, name) in table.iter().filter(|(bit, _)| value & bit != 0) {
        words.push(name.strip_prefix(prefix).unwrap_or(name).to_owned());
        rest &= !bit;
    }
    if rest != 0 {
        words.push(format!("{rest:#x}"));
    }
    if words.is_empty() { "none".to_owned() } else { words.join("|") }
}

pub(crate) fn errno_name(errno: i32) -> String {
    find(ERRNOS, i64::from(errno))
}

pub(crate) fn signal_name(signal: i32) -> String {
    find(SIGNALS, i64::from(signal))
}

pub(crate) fn poll_mask(events: i16) -> String {
    bits(POLL_BITS, "POLL", i64::from(events as u16))
}

pub(crate) fn epoll_mask(events: u32) -> String {
    bits(EPOLL_BITS, "EPOLL", i64::from(events))
}

pub(crate) fn msg_flags(flags: i32) -> String {
    bits(MSG_BITS, "MSG_", i64::from(flags as u32))
}

pub(crate) fn tcp_state(state: u8) -> &'static str {
    TCP_STATES.get(usize::from(state)).copied().unwrap_or("unknown state")
}
