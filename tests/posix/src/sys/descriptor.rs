//! Calls on descriptors of any kind.

use std::ffi::{CStr, CString};
use std::mem;

use super::Ret;

pub(crate) fn close(fd: i32) -> Ret {
    call!(libc::close(fd))
}

pub(crate) fn dup(fd: i32) -> Ret {
    call!(libc::dup(fd))
}

pub(crate) fn dup2(old: i32, new: i32) -> Ret {
    call!(libc::dup2(old, new))
}

pub(crate) fn dup3(old: i32, new: i32, flags: i32) -> Ret {
    call!(libc::dup3(old, new, flags))
}

pub(crate) fn close_range(first: i32, last: i32, flags: i32) -> Ret {
    call!(super::lacking::closes_range(first as u32, last as u32, flags))
}

pub(crate) fn fcntl(fd: i32, command: i32, argument: i32) -> Ret {
    call!(libc::fcntl(fd, command, argument))
}

/// An `ioctl` whose argument is an int in and out.
pub(crate) fn ioctl_int(fd: i32, request: libc::Ioctl, value: i32) -> (Ret, i32) {
    let mut value = value;
    let result = call!(libc::ioctl(fd, request, &raw mut value));
    (result, value)
}

pub(crate) fn ioctl_raw(fd: i32, request: libc::Ioctl, value: *mut libc::c_void) -> Ret {
    call!(libc::ioctl(fd, request, value))
}

/// The number of bytes ready to be read.
pub(crate) fn fionread(fd: i32) -> i32 {
    ioctl_int(fd, libc::FIONREAD, -1).1
}

/// Sets or clears `O_NONBLOCK`.
pub(crate) fn set_nonblocking(fd: i32, on: bool) -> Ret {
    let flags = fcntl(fd, libc::F_GETFL, 0).fd();
    fcntl(fd, libc::F_SETFL, if on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK })
}

/// Status flags as words.
pub(crate) fn status_flags(fd: i32) -> String {
    let result = fcntl(fd, libc::F_GETFL, 0);
    if !result.ok() {
        return result.to_string();
    }
    let flags = result.fd();
    let mode = ["O_RDONLY", "O_WRONLY", "O_RDWR", "O_ACCMODE"][(flags & libc::O_ACCMODE) as usize];
    let known = [
        (libc::O_NONBLOCK, "O_NONBLOCK"),
        (libc::O_APPEND, "O_APPEND"),
        (libc::O_ASYNC, "O_ASYNC"),
        (libc::O_DIRECT, "O_DIRECT"),
        (libc::O_NOATIME, "O_NOATIME"),
    ];
    let words = known.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name);
    std::iter::once(mode).chain(words).collect::<Vec<_>>().join("|")
}

/// Whether a descriptor is open, and closed on exec.
pub(crate) fn descriptor_flags(fd: i32) -> String {
    let result = fcntl(fd, libc::F_GETFD, 0);
    match result.value {
        0 => "open".to_owned(),
        1 => "open FD_CLOEXEC".to_owned(),
        _ => result.to_string(),
    }
}

/// The lowest free descriptor number, found by a `dup` of standard input or output.
pub(crate) fn lowest_free() -> i32 {
    let fd = dup(1).fd();
    close(fd);
    fd
}

/// The file type of a descriptor, as `fstat` tells it.
pub(crate) fn file_type(fd: i32) -> String {
    // SAFETY: all-zero bytes are a valid struct stat.
    let mut stat: libc::stat = unsafe { mem::zeroed() };
    let result = call!(libc::fstat(fd, &raw mut stat));
    match (result.ok(), stat.st_mode & libc::S_IFMT) {
        (false, _) => result.to_string(),
        (true, libc::S_IFSOCK) => "S_IFSOCK".to_owned(),
        (true, libc::S_IFREG) => "S_IFREG".to_owned(),
        (true, libc::S_IFIFO) => "S_IFIFO".to_owned(),
        (true, libc::S_IFCHR) => "S_IFCHR".to_owned(),
        (true, other) => format!("type {other:#o}"),
    }
}

pub(crate) fn lseek(fd: i32, offset: i64, whence: i32) -> Ret {
    call!(libc::lseek(fd, offset, whence))
}

pub(crate) fn fsync(fd: i32) -> Ret {
    call!(libc::fsync(fd))
}

pub(crate) fn ftruncate(fd: i32, len: i64) -> Ret {
    call!(libc::ftruncate(fd, len))
}

pub(crate) fn isatty(fd: i32) -> Ret {
    let result = call!(libc::isatty(fd));
    // isatty fails with 0, not with -1.
    if result.value == 0 { Ret { value: -1, errno: super::errno() } } else { result }
}

/// Whether `mmap` of the descriptor works.
pub(crate) fn mmap(fd: i32) -> Ret {
    call!(libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, fd, 0))
}

/// An unlinked temporary file with the given content, positioned at its start.
pub(crate) fn temporary_file(content: &[u8]) -> i32 {
    let result = call!(libc::memfd_create(c"sd-posix".as_ptr(), libc::MFD_CLOEXEC));
    if !result.ok() || write(result.fd(), content).count() != content.len() {
        super::give_up(&format!("memfd_create = {result}"));
    }
    lseek(result.fd(), 0, libc::SEEK_SET);
    result.fd()
}

use super::write;

/// A regular file under /tmp that is deleted at once: unlike a memfd it lives on a disk file system where there is one.
pub(crate) fn open_path(path: &CStr, flags: i32) -> Ret {
    call!(libc::open(path.as_ptr(), flags, 0o600))
}

/// Where /proc/self/fd/N points to, up to the first digit.
pub(crate) fn proc_link(fd: i32) -> String {
    let path = CString::new(format!("/proc/self/fd/{fd}")).expect("no NUL");
    let mut buffer = [0u8; 256];
    let result = call!(libc::readlink(path.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()));
    let link = String::from_utf8_lossy(&buffer[..result.count()]).into_owned();
    link.chars().take_while(|letter| !letter.is_ascii_digit()).collect()
}

pub(crate) fn eventfd(initial: u32, flags: i32) -> i32 {
    call!(libc::eventfd(initial, flags)).fd()
}

/// A monotonic timer that expires once after the given time.
pub(crate) fn timerfd(milliseconds: i64) -> i32 {
    let fd = call!(libc::timerfd_create(libc::CLOCK_MONOTONIC, 0)).fd();
    set_timer(fd, milliseconds);
    fd
}

pub(crate) fn set_timer(fd: i32, milliseconds: i64) {
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let value = libc::timespec { tv_sec: milliseconds / 1000, tv_nsec: milliseconds % 1000 * 1_000_000 };
    let spec = libc::itimerspec { it_interval: zero, it_value: value };
    call!(libc::timerfd_settime(fd, 0, &raw const spec, std::ptr::null_mut()));
}

/// Soft limit of descriptors, set; the old one comes back.
pub(crate) fn limit_descriptors(soft: u64) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    call!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit));
    let old = limit.rlim_cur;
    limit.rlim_cur = soft.min(limit.rlim_max);
    call!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit));
    old
}
