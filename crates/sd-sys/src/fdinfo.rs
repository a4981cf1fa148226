//! What an epoll instance of the kernel's knows of a descriptor, from `/proc/self/fdinfo`.
//!
//! Programs register descriptors before the library knows that they will be of interest. The kernel tells nobody but a
//! reader of this file for which events, and with which data.

use crate::fd::Owned;
use crate::{Errno, Result, check, fd, syscall};

/// A registration as epoll_ctl(2) made it. EPOLLERR and EPOLLHUP are always among the events, unless EPOLLONESHOT has fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    pub events: u32,
    pub data: u64,
}

/// Longer than a line of the file.
const LINE_MAX: usize = 256;

/// The registration of `fd` in the instance `epfd`, if there is one.
pub fn registration(epfd: i32, fd: i32) -> Result<Option<Registration>> {
    let (_, inode) = fd::identity(fd)?;
    let file = open(epfd)?;
    find(file.raw(), |line| of(line, fd, inode))
}

/// The first line of a file that is something.
fn find<T>(file: i32, of: impl Fn(&[u8]) -> Option<T>) -> Result<Option<T>> {
    let (mut text, mut len) = ([0u8; 4096], 0);
    loop {
        let got = text.get_mut(len..).map_or(Ok(0), |rest| fd::read(file, rest))?;
        len += got;
        let lines = text.get(..len).unwrap_or(&[]).split(|byte| *byte == b'\n');
        let found = lines.filter_map(&of).next();
        if found.is_some() || got == 0 {
            return Ok(found);
        }
        // The end may be the beginning of a line.
        let kept = len.min(LINE_MAX);
        text.copy_within(len - kept..len, 0);
        len = kept;
    }
}

fn open(epfd: i32) -> Result<Owned> {
    let mut rest = u32::try_from(epfd).map_err(|_| Errno::EBADF)?;
    let mut path = *b"/proc/self/fdinfo/\0\0\0\0\0\0\0\0\0\0\0\0";
    let len = (rest.max(1).ilog10() + 1) as usize;
    for digit in path.iter_mut().skip(18).take(len).rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    // SAFETY: a C string: of twelve bytes a number takes at most ten.
    check(unsafe {
        syscall!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC)
    })
    .map(|file| Owned::new(file as i32))
}

/// `tfd: 5 events: 19 data: 5 pos:0 ino:8a3 sdev:8`, where it is of this descriptor.
fn of(line: &[u8], fd: i32, inode: u64) -> Option<Registration> {
    let line = core::str::from_utf8(line).ok()?;
    let mut words = line.split([' ', ':']).filter(|word| !word.is_empty());
    let mut value = |name: &str| words.find(|word| *word == name).and_then(|_| words.next());
    let number: i32 = value("tfd")?.parse().ok()?;
    let events = u32::from_str_radix(value("events")?, 16).ok()?;
    let data = u64::from_str_radix(value("data")?, 16).ok()?;
    let of_file = u64::from_str_radix(value("ino")?, 16).ok()?;
    (number == fd && of_file == inode).then_some(Registration { events, data })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_registered_is_found_among_many() {
        let instance = fd::epoll_create().unwrap();
        let of_events: Vec<Owned> = (0..200).map(|_| fd::eventfd(0).unwrap()).collect();
        for (at, one) in of_events.iter().enumerate() {
            let (events, data) = (if at % 2 == 0 { 1 } else { 0x8000_0001 }, u64::MAX - at as u64);
            fd::epoll_ctl(instance.raw(), libc::EPOLL_CTL_ADD, one.raw(), events, data).unwrap();
        }
        for (at, one) in of_events.iter().enumerate() {
            let events = if at % 2 == 0 { 0x19 } else { 0x8000_0019 };
            assert_eq!(
                registration(instance.raw(), one.raw()),
                Ok(Some(Registration { events, data: u64::MAX - at as u64 }))
            );
        }
        let other = fd::eventfd(0).unwrap();
        assert_eq!(registration(instance.raw(), other.raw()), Ok(None));
        assert_eq!(registration(other.raw(), instance.raw()), Ok(None));
        assert_eq!(registration(-1, instance.raw()), Err(Errno::EBADF));
    }

    #[test]
    fn a_number_of_another_file_is_not_it() {
        let line = b"tfd:        5 events:       19 data:             beef  pos:0 ino:8a3 sdev:8";
        assert_eq!(of(line, 5, 0x8a3), Some(Registration { events: 0x19, data: 0xbeef }));
        assert_eq!(of(line, 5, 0x8a4), None);
        assert_eq!(of(line, 4, 0x8a3), None);
        assert_eq!(of(b"tfd: 5 events: 19", 5, 0x8a3), None);
    }
}
