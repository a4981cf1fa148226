//! What an epoll instance of the kernel's knows of a descriptor, from `/proc/self/fdinfo`.
//!
//! Programs register descriptors before the library knows that they will be of interest. The kernel tells nobody but a
//! reader of this file for which events, and with which data.

use crate::fd::{Owned, open_to_read};
use crate::scratch::Scratch;
use crate::{Errno, Result, fd, procfs};
use alloc::vec::Vec;

/// A registration as epoll_ctl(2) made it. EPOLLERR and EPOLLHUP are always among the events, unless EPOLLONESHOT has fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    pub events: u32,
    pub data: u64,
}

/// A line of the file: which number it is about, and the inode of what that led to when it was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    pub fd: i32,
    pub inode: u64,
    pub registration: Registration,
}

/// Longer than a line of the file.
const LINE_MAX: usize = 256;

/// The registration of `fd` in the instance `epfd`, if there is one.
pub fn registration(epfd: i32, fd: i32) -> Result<Option<Registration>> {
    let (_, inode) = fd::identity(fd)?;
    let mut found = None;
    each(epfd, |listed| {
        let is_it = (listed.fd, listed.inode) == (fd, inode);
        found = is_it.then_some(listed.registration);
        !is_it
    })?;
    Ok(found)
}

/// All registrations of an instance.
pub fn all(epfd: i32) -> Result<Vec<Listed>> {
    let mut all = Vec::new();
    each(epfd, |listed| {
        all.push(listed);
        true
    })?;
    Ok(all)
}

/// Hands over one after the other, as long as the caller wants more.
fn each(epfd: i32, mut wants_more: impl FnMut(Listed) -> bool) -> Result<()> {
    let file = open(epfd)?;
    let (mut text, mut len) = (Scratch::take()?, 0);
    loop {
        let got = text.get_mut(len..).map_or(Ok(0), |rest| fd::read(file.raw(), rest))?;
        len += got;
        let whole = text.get(..len).unwrap_or(&[]);
        // What is behind the last newline is the beginning of a line.
        let end = whole.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let lines = whole.get(..end).unwrap_or(&[]).split(|byte| *byte == b'\n');
        for listed in lines.filter_map(of) {
            if !wants_more(listed) {
                return Ok(());
            }
        }
        if got == 0 {
            return Ok(());
        }
        // A line that fills all of the room is none of these.
        let kept = if len - end > LINE_MAX { 0 } else { len - end };
        text.copy_within(len - kept..len, 0);
        len = kept;
    }
}

fn open(epfd: i32) -> Result<Owned> {
    let number = u32::try_from(epfd).map_err(|_| Errno::EBADF)?;
    open_to_read(&procfs::path::<32>(b"/proc/self/fdinfo/", number, b""))
}

/// `tfd: 5 events: 19 data: 5 pos:0 ino:8a3 sdev:8`.
fn of(line: &[u8]) -> Option<Listed> {
    let line = core::str::from_utf8(line).ok()?;
    let mut words = line.split([' ', ':']).filter(|word| !word.is_empty());
    let mut value = |name: &str| words.find(|word| *word == name).and_then(|_| words.next());
    let fd: i32 = value("tfd")?.parse().ok()?;
    let events = u32::from_str_radix(value("events")?, 16).ok()?;
    let data = u64::from_str_radix(value("data")?, 16).ok()?;
    let inode = u64::from_str_radix(value("ino")?, 16).ok()?;
    Some(Listed { fd, inode, registration: Registration { events, data } })
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
        let listed = all(instance.raw()).unwrap();
        let in_order = |mut numbers: Vec<i32>| {
            numbers.sort_unstable();
            numbers
        };
        // Another test may close a number meanwhile, which is given again then: they need not rise.
        let wanted = in_order(of_events.iter().map(Owned::raw).collect());
        assert_eq!(in_order(listed.iter().map(|listed| listed.fd).collect()), wanted);
        let other = fd::eventfd(0).unwrap();
        assert_eq!(registration(instance.raw(), other.raw()), Ok(None));
        assert_eq!(registration(other.raw(), instance.raw()), Ok(None));
        assert_eq!(registration(-1, instance.raw()), Err(Errno::EBADF));
    }

    #[test]
    fn a_line_says_all_or_nothing() {
        let line = b"tfd:        5 events:       19 data:             beef  pos:0 ino:8a3 sdev:8";
        let registration = Registration { events: 0x19, data: 0xbeef };
        assert_eq!(of(line), Some(Listed { fd: 5, inode: 0x8a3, registration }));
        assert_eq!(of(b"tfd: 5 events: 19"), None);
    }
}
