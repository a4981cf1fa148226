//! Calls on file descriptors and processes.

use crate::arch::{EPOLL_WAIT, POLL};
pub use crate::eventfd::{eventfd_signal, signal_eventfd};
use crate::{Errno, Result, check, confine, syscall};
use core::sync::atomic::{AtomicU32, Ordering};

/// close(2); errors are of no use to any caller here.
pub fn close(fd: i32) {
    // SAFETY: no pointers.
    let _ = unsafe { syscall!(libc::SYS_close, fd) };
}

/// A descriptor that is closed when this is dropped. The standard library's own type would close it through libc, whose
/// function is hooked. Not for descriptors that the library hides from the program.
#[derive(Debug)]
pub struct Owned(i32);

impl Owned {
    /// Of a descriptor that nobody else closes.
    pub const fn new(fd: i32) -> Owned {
        Owned(fd)
    }

    /// Its number, while this lives.
    pub const fn raw(&self) -> i32 {
        self.0
    }

    /// Its number, which the caller closes, or gives to the program.
    pub const fn into_raw(self) -> i32 {
        let fd = self.0;
        core::mem::forget(self);
        fd
    }
}

/// Who has a descriptor's number, whatever happens at its end.
pub trait Number {
    /// The number.
    fn raw(&self) -> i32;
}

impl Number for Owned {
    fn raw(&self) -> i32 {
        self.0
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        close(self.0);
    }
}

/// The start of a file, as far as it fits. `path` ends with a zero byte.
pub fn read_file(path: &[u8], into: &mut [u8]) -> Result<usize> {
    read(open_to_read(path)?.raw(), into)
}

/// fcntl(2) with a plain argument.
pub fn fcntl(fd: i32, cmd: i32, arg: usize) -> Result<usize> {
    // SAFETY: the commands used take integers.
    check(unsafe { syscall!(libc::SYS_fcntl, fd, cmd, arg) })
}

/// Locks or unlocks one byte of a file for this process, as fcntl(2) does: a fork has none of it, and the process's end, or its closing of any
/// descriptor of the file, unlocks it. EAGAIN: another process has it.
pub fn lock_byte(fd: i32, at: usize, is_locked: bool) -> Result<()> {
    // SAFETY: all-zero bytes are a valid flock.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = if is_locked { libc::F_WRLCK } else { libc::F_UNLCK } as i16;
    (lock.l_start, lock.l_len) = (at as i64, 1);
    fcntl(fd, libc::F_SETLK, core::ptr::from_ref(&lock) as usize).map(drop)
}

/// dup(2): the lowest free number.
pub fn dup(fd: i32) -> Result<Owned> {
    // SAFETY: no pointers.
    check(unsafe { syscall!(libc::SYS_dup, fd) }).map(|n| Owned(n as i32))
}

/// dup3(2), without its EINVAL for equal numbers.
pub fn dup3(old: i32, new: i32, flags: i32) -> Result<i32> {
    // SAFETY: no pointers.
    check(unsafe { syscall!(libc::SYS_dup3, old, new, flags) }).map(|n| n as i32)
}

/// A duplicate at number `min` or above, close-on-exec.
pub fn dup_above(fd: i32, min: i32) -> Result<Owned> {
    fcntl(fd, libc::F_DUPFD_CLOEXEC, min as usize).map(|n| Owned(n as i32))
}

/// socket(2).
pub fn socket(domain: i32, ty: i32, protocol: i32) -> Result<Owned> {
    // SAFETY: no pointers.
    check(unsafe { syscall!(libc::SYS_socket, domain, ty, protocol) }).map(|n| Owned(n as i32))
}

/// eventfd2(2).
pub fn eventfd(flags: i32) -> Result<Owned> {
    // SAFETY: no pointers.
    check(unsafe { syscall!(libc::SYS_eventfd2, 0, flags) }).map(|n| Owned(n as i32))
}

/// Whether a number is open.
pub fn is_open(fd: i32) -> bool {
    fcntl(fd, libc::F_GETFD, 0).is_ok()
}

/// Whether a number leads to an epoll instance. `other` is some open descriptor that can be watched.
pub fn is_epoll(fd: i32, other: i32) -> bool {
    // EBADF: not open; EINVAL: something else.
    matches!(epoll_ctl(fd, libc::EPOLL_CTL_DEL, other, 0, 0), Ok(()) | Err(Errno(libc::ENOENT)))
}

/// What wakes a kernel epoll instance whenever an eventfd is signalled, and cannot be taken away again: that there is
/// something to read somebody else may have ended by reading it, that it can be written is always so.
pub const EVENTFD_EDGE: u32 = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET) as u32;

/// Makes an eventfd usable again that somebody has driven to its very end (POLLERR), without waiting (RWF_NOWAIT of
/// preadv2(2): somebody else may read it first, and may have made it blocking).
#[cold]
pub fn eventfd_reset(fd: i32) {
    let mut count = 0u64;
    let piece = libc::iovec { iov_base: (&raw mut count).cast(), iov_len: 8 };
    if poll_one(fd, libc::POLLIN, 0).is_ok_and(|events| events & libc::POLLERR != 0) {
        // SAFETY: the kernel writes eight bytes to `count`.
        let _ = unsafe { syscall!(libc::SYS_preadv2, fd, &raw const piece, 1, -1i64, 0, libc::RWF_NOWAIT) };
    }
}

/// write(2).
pub fn write(fd: i32, bytes: &[u8]) -> Result<usize> {
    // SAFETY: the kernel reads the slice.
    check(unsafe { syscall!(libc::SYS_write, fd, bytes.as_ptr(), bytes.len()) })
}

/// pwrite(2).
pub fn pwrite(fd: i32, bytes: &[u8], at: u64) -> Result<usize> {
    // SAFETY: the kernel reads the slice.
    check(unsafe { syscall!(libc::SYS_pwrite64, fd, bytes.as_ptr(), bytes.len(), at) })
}

/// read(2).
pub fn read(fd: i32, bytes: &mut [u8]) -> Result<usize> {
    // SAFETY: the kernel writes the slice.
    check(unsafe { syscall!(libc::SYS_read, fd, bytes.as_mut_ptr(), bytes.len()) })
}

/// pread(2).
///
/// # Safety
/// So many bytes at `to` may be written.
pub unsafe fn pread(fd: i32, to: *mut u8, len: usize, at: u64) -> Result<usize> {
    // SAFETY: as the caller says.
    check(unsafe { syscall!(libc::SYS_pread64, fd, to, len, at) })
}

/// getsockopt(2) of a plain integer option.
pub fn getsockopt_int(fd: i32, level: i32, name: i32) -> Result<i32> {
    let mut value = 0i32;
    let mut len = 4u32;
    // SAFETY: the kernel writes at most four bytes to `value`.
    check(unsafe {
        syscall!(libc::SYS_getsockopt, fd, level, name, &mut value as *mut i32, &mut len as *mut u32)
    })?;
    Ok(value)
}

/// The kernel's number for the network namespace of a socket (SO_NETNS_COOKIE, Linux 5.14).
pub fn netns_of(socket: i32) -> Result<u64> {
    const SO_NETNS_COOKIE: i32 = 71;
    getsockopt_u64(socket, libc::SOL_SOCKET, SO_NETNS_COOKIE)
}

/// That of the namespace in which the calling thread makes sockets.
pub fn netns() -> Result<u64> {
    netns_of(socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)?.raw())
}

/// getsockopt(2) of a 64-bit option, e.g. SO_COOKIE.
pub fn getsockopt_u64(fd: i32, level: i32, name: i32) -> Result<u64> {
    let mut value = 0u64;
    let mut len = 8u32;
    // SAFETY: the kernel writes at most eight bytes to `value`.
    check(unsafe {
        syscall!(libc::SYS_getsockopt, fd, level, name, &mut value as *mut u64, &mut len as *mut u32)
    })?;
    Ok(value)
}

/// The process and the user at the other end of a connected Unix-domain socket, when it was made (SO_PEERCRED).
pub fn peer(fd: i32) -> Result<(i32, u32)> {
    let mut cred = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as u32;
    // SAFETY: the kernel writes at most one ucred.
    check(unsafe {
        syscall!(
            libc::SYS_getsockopt,
            fd,
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            &mut cred as *mut libc::ucred,
            &mut len as *mut u32
        )
    })?;
    Ok((cred.pid, cred.uid))
}

/// The effective user of this process.
pub fn geteuid() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall!(libc::SYS_geteuid) as u32 }
}

/// Device and inode number: the same for every descriptor of one segment.
pub fn identity(fd: i32) -> Result<(u64, u64)> {
    // SAFETY: an all-zero stat is valid; the kernel writes one.
    unsafe {
        let mut found: libc::stat = core::mem::zeroed();
        check(syscall!(libc::SYS_fstat, fd, &raw mut found))?;
        Ok((found.st_dev, found.st_ino))
    }
}

/// Who owns the file; of a memfd, who has made it.
pub fn owner(fd: i32) -> Result<u32> {
    // SAFETY: an all-zero stat is valid; the kernel writes one.
    unsafe {
        let mut found: libc::stat = core::mem::zeroed();
        check(syscall!(libc::SYS_fstat, fd, &raw mut found)).map(|_| found.st_uid)
    }
}

/// setsockopt(2) of a plain integer option.
pub fn setsockopt_int(fd: i32, level: i32, name: i32, value: i32) -> Result<()> {
    // SAFETY: the kernel reads four bytes from `value`.
    check(unsafe { syscall!(libc::SYS_setsockopt, fd, level, name, &value as *const i32, 4) }).map(drop)
}

/// open(2) of a file for reading. `path` ends with a zero byte.
pub fn open_to_read(path: &[u8]) -> Result<Owned> {
    if path.last() != Some(&0) {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the kernel reads the path, which has a zero byte.
    check(unsafe {
        syscall!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC)
    })
    .map(|fd| Owned(fd as i32))
}

/// access(2). `path` ends with a zero byte.
pub fn access(path: &[u8], mode: i32) -> Result<()> {
    if path.last() != Some(&0) {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the kernel reads the path, which has a zero byte.
    check(unsafe { syscall!(libc::SYS_faccessat, libc::AT_FDCWD, path.as_ptr(), mode) }).map(drop)
}

/// poll(2) of one descriptor; the returned events, zero after `timeout_ms`.
pub fn poll_one(fd: i32, events: i16, timeout_ms: i32) -> Result<i16> {
    let mut pfd = libc::pollfd { fd, events, revents: 0 };
    poll(core::slice::from_mut(&mut pfd), timeout_ms)?;
    Ok(pfd.revents)
}

/// poll(2), or ppoll(2) where a filter of the program's forbids it (see `confine`).
pub fn poll(fds: &mut [libc::pollfd], timeout_ms: i32) -> Result<usize> {
    let (list, len) = (fds.as_mut_ptr(), fds.len());
    if let Some(poll) = POLL.filter(|nr| confine::allows(*nr)) {
        // SAFETY: the kernel reads and writes the slice.
        return check(unsafe { syscall!(poll, list, len, timeout_ms) });
    }
    let mut ts = u64::try_from(timeout_ms).ok().map(|ms| crate::time::timespec_of(ms * 1_000_000));
    let time = ts.as_mut().map_or(core::ptr::null_mut(), |ts| ts as *mut libc::timespec);
    // SAFETY: the kernel reads and writes the slice, and reads the time, and writes what is left of it.
    check(unsafe { syscall!(libc::SYS_ppoll, list, len, time, 0, 8) })
}

/// ppoll(2); `None`: no timeout.
///
/// # Safety
/// `mask` is null or leads to a kernel's signal mask.
pub unsafe fn ppoll(
    fds: &mut [libc::pollfd],
    timeout_ns: Option<u64>,
    mask: *const libc::sigset_t,
) -> Result<usize> {
    let mut ts = timeout_ns.map(crate::time::timespec_of);
    let time = ts.as_mut().map_or(core::ptr::null_mut(), |ts| ts as *mut libc::timespec);
    // SAFETY: the kernel reads and writes the slice and the time, and reads the mask (8 bytes).
    check(unsafe { syscall!(libc::SYS_ppoll, fds.as_mut_ptr(), fds.len(), time, mask, 8) })
}

/// epoll_create1(2).
pub fn epoll_create() -> Result<Owned> {
    // SAFETY: no pointers.
    check(unsafe { syscall!(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC) }).map(|n| Owned(n as i32))
}

/// epoll_ctl(2).
pub fn epoll_ctl(epfd: i32, op: i32, fd: i32, events: u32, data: u64) -> Result<()> {
    let mut event = libc::epoll_event { events, u64: data };
    // SAFETY: the kernel reads one event.
    check(unsafe { syscall!(libc::SYS_epoll_ctl, epfd, op, fd, &mut event as *mut libc::epoll_event) })
        .map(drop)
}

/// epoll_pwait2(2) is not everywhere, so epoll_wait(2) with milliseconds.
///
/// # Safety
/// `events` must have room for `max` entries.
pub unsafe fn epoll_pwait(
    epfd: i32,
    events: *mut libc::epoll_event,
    max: i32,
    timeout_ms: i32,
    sigmask: *const libc::sigset_t,
) -> Result<usize> {
    // SAFETY: promised by the caller; the mask is eight bytes as the kernel counts.
    let done = check(unsafe { syscall!(libc::SYS_epoll_pwait, epfd, events, max, timeout_ms, sigmask, 8) });
    match (done, EPOLL_WAIT) {
        // A filter forbids or refuses it.
        (Err(Errno::ENOSYS | Errno::EPERM), Some(epoll_wait)) if sigmask.is_null() => {
            // SAFETY: promised by the caller.
            check(unsafe { syscall!(epoll_wait, epfd, events, max, timeout_ms) })
        }
        (done, _) => done,
    }
}

/// Processors that the process may use, as they were at the first call.
pub fn processors() -> u32 {
    static KNOWN: AtomicU32 = AtomicU32::new(0);
    let known = KNOWN.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let mut set = [0u64; 128];
    // SAFETY: the kernel writes at most the array.
    let got = check(unsafe { syscall!(libc::SYS_sched_getaffinity, 0, size_of_val(&set), set.as_mut_ptr()) });
    let count = got.map_or(1, |_| set.iter().map(|word| word.count_ones()).sum::<u32>().max(1));
    KNOWN.store(count, Ordering::Relaxed);
    count
}

/// getpid(2).
pub fn getpid() -> i32 {
    // SAFETY: no arguments.
    unsafe { syscall!(libc::SYS_getpid) as i32 }
}

/// gettid(2).
pub fn gettid() -> i32 {
    // SAFETY: no arguments.
    unsafe { syscall!(libc::SYS_gettid) as i32 }
}

/// getppid(2); zero when the parent is in a PID namespace outside.
pub fn getppid() -> i32 {
    // SAFETY: no arguments.
    unsafe { syscall!(libc::SYS_getppid) as i32 }
}

/// Sends `sig` to the calling thread.
pub fn raise(sig: i32) {
    // SAFETY: signals the caller only.
    let _ = unsafe { syscall!(libc::SYS_tgkill, getpid(), gettid(), sig) };
}

/// Sends `sig` to the calling process.
pub fn signal_self(sig: i32) {
    // SAFETY: signals the caller only.
    let _ = unsafe { syscall!(libc::SYS_kill, getpid(), sig) };
}

/// Whether a thread or process `id` is gone for good; a zombie is. When in doubt it is not.
pub fn task_is_dead(id: i32) -> bool {
    // SAFETY: signal 0 only probes.
    if check(unsafe { syscall!(libc::SYS_kill, id, 0) }) == Err(Errno::ESRCH) {
        return true;
    }
    // Only a process has a pidfd, and only one that has ended is readable.
    let Ok(pidfd) = pidfd_open(id) else { return false };
    poll_one(pidfd.raw(), libc::POLLIN, 0).is_ok_and(|events| events & libc::POLLIN != 0)
}

/// Whether a thread or process `id` is stopped by a signal or a debugger. When in doubt it is not.
pub fn task_is_stopped(id: i32) -> bool {
    // Written from the end: "/stat", the digits, "/proc/".
    let (mut path, mut at, mut rest) = ([0u8; 32], 31, id.unsigned_abs());
    let mut put = |byte: u8| {
        at -= 1;
        path[at] = byte;
    };
    b"/stat".iter().rev().for_each(|byte| put(*byte));
    while rest > 0 {
        put(b'0' + (rest % 10) as u8);
        rest /= 10;
    }
    b"/proc/".iter().rev().for_each(|byte| put(*byte));
    let mut text = [0u8; 64];
    let Ok(got) = read_file(&path[at..], &mut text) else { return false };
    // The state follows the name, which may hold anything but is short.
    let after_name = text.iter().take(got).rposition(|byte| *byte == b')').map(|at| at + 2);
    matches!(after_name.and_then(|at| text.get(at)), Some(b'T' | b't'))
}

/// pidfd_open(2).
pub fn pidfd_open(pid: i32) -> Result<Owned> {
    // SAFETY: no pointers.
    check(unsafe { syscall!(libc::SYS_pidfd_open, pid, 0) }).map(|n| Owned(n as i32))
}

/// The program's soft limit on file descriptors.
pub fn nofile_limit() -> u64 {
    limit(libc::RLIMIT_NOFILE, 1024).min(crate::numbers::soft())
}

/// The soft limit on the size of files.
pub fn file_size_limit() -> u64 {
    limit(libc::RLIMIT_FSIZE, u64::MAX)
}

/// A limit of another process; `None` when that may not be asked.
pub fn limit_of(pid: i32, resource: libc::__rlimit_resource_t) -> Option<libc::rlimit> {
    let mut lim = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one rlimit.
    check(unsafe { syscall!(libc::SYS_prlimit64, pid, resource, 0, &raw mut lim) }).ok().map(|_| lim)
}

fn limit(resource: libc::__rlimit_resource_t, unknown: u64) -> u64 {
    let mut lim = libc::rlimit { rlim_cur: unknown, rlim_max: unknown };
    // SAFETY: the kernel writes one rlimit.
    let _ = unsafe { syscall!(libc::SYS_prlimit64, 0, resource, 0, &mut lim as *mut libc::rlimit) };
    lim.rlim_cur
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_runs_then_is_stopped_then_dead() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let id = child.id() as i32;
        let signal = |number: i32| {
            // SAFETY: signals the child.
            assert_eq!(unsafe { libc::kill(id, number) }, 0);
        };
        let becomes = |state: fn(i32) -> bool| (0..2000).any(|_| state(id) || sleep_a_moment());
        assert!(!task_is_stopped(id) && !task_is_dead(id));
        signal(libc::SIGSTOP);
        assert!(becomes(task_is_stopped) && !task_is_dead(id));
        signal(libc::SIGKILL);
        assert!(becomes(task_is_dead), "a zombie is dead");
        child.wait().unwrap();
        assert!(task_is_dead(id) && !task_is_stopped(id));
    }

    fn sleep_a_moment() -> bool {
        std::thread::sleep(std::time::Duration::from_millis(1));
        false
    }
}
