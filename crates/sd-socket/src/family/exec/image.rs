//! What the next image has to know, as words in a memfd that is found under a fixed number.
//!
//! Words, in order; lists begin with their length:
//! ```text
//!  magic, layout version, process id, flags, control socket (or -1)
//!  slabs      descriptor, address, this process's bit
//!  channels   segment, peer's eventfd, address, id, side, peer's process id and whether it is a stranger, inherited
//!  eventfds   descriptor
//!  sockets    number, slab, endpoint
//!  listeners  slab, endpoint, index, backlog, list of waiting connections (channel, slot, generation)
//! ```
//! Slabs and channels are named by their place in the lists. The segments are mapped at the same addresses
//! again, since the endpoints hold addresses (`sd_sys::mem::map_apart` chose them for that).

use super::proof;
use crate::link::channel::Channel;
use crate::process::PROCESS;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use sd_shm::slab::Endpoint;

pub(super) const MAGIC: u64 = 0x5344_6578_6563_3032;

/// Of the flags: the environment was completed.
pub(super) const COMPLETED: u64 = 1;
/// No filter kills for what the library does.
pub(super) const FREE: u64 = 2;

/// The numbers under one of which the state is found: no other descriptor is likely to have them. A low one first, as
/// in `fd::hidden`.
pub(super) fn state_fds() -> [i32; 2] {
    let last = sd_sys::fd::nofile_limit().min(crate::fd::table::LEN as u64) as i32 - 1;
    [last.min(crate::fd::hidden::HIDDEN_FROM - 1), last]
}

/// Written, and open for the next image.
pub(crate) struct Image {
    /// Descriptors that are not close-on-exec for now.
    passed: Vec<i32>,
    /// The state's number, once it is published.
    state: Option<i32>,
}

#[derive(Default)]
struct Words {
    words: Vec<u64>,
    fds: Vec<i32>,
}

impl Words {
    fn push(&mut self, word: u64) {
        self.words.push(word);
    }

    fn push_fd(&mut self, fd: i32) {
        self.words.push(fd as u64);
        if fd >= 0 {
            self.fds.push(fd);
        }
    }

    fn push_endpoint(&mut self, endpoint: &Endpoint) {
        let (slab, index) = place(endpoint).unwrap_or((u64::MAX, u64::MAX));
        self.push(slab);
        self.push(index);
    }

    /// A list whose items say themselves whether they belong to it.
    fn list<T>(&mut self, items: impl Iterator<Item = T>, write: impl Fn(&mut Words, T)) {
        let at = self.words.len();
        self.push(0);
        let mut count = 0;
        for item in items {
            write(self, item);
            count += 1;
        }
        if let Some(word) = self.words.get_mut(at) {
            *word = count;
        }
    }
}

/// Number of the slab, and of the endpoint in it.
fn place(endpoint: &Endpoint) -> Option<(u64, u64)> {
    let (rec, index) = PROCESS.locate(endpoint)?;
    let slab = PROCESS.slabs.iter().position(|other| core::ptr::eq(other, rec))?;
    Some((slab as u64, index as u64))
}

fn describe(sockets: &[(i32, &'static Endpoint)], is_completed: bool) -> Words {
    let mut words = Words::default();
    words.words.extend([MAGIC, u64::from(sd_shm::VERSION), sd_sys::fd::getpid() as u64]);
    // What the program has installed since, the next image has to find out about.
    let is_free = crate::process::env::may_work() && !sd_sys::confine::is_on();
    words.push(if is_completed { COMPLETED } else { 0 } | if is_free { FREE } else { 0 });
    words.push_fd(crate::monitor::client::image_fd());
    let slabs = PROCESS.slabs.iter().take(PROCESS.slab_count.load(Ordering::Acquire));
    words.list(slabs, |words, rec| {
        words.push_fd(rec.fd.raw());
        words.push(rec.slab().map_or(0, |slab| slab.base() as u64));
        words.push(rec.bit.load(Ordering::Relaxed));
    });
    let channels: Vec<&Channel> = PROCESS.channels().filter(|channel| channel.is_used()).collect();
    words.list(channels.iter(), |words, channel| {
        words.push_fd(channel.segment_fd.raw());
        words.push_fd(channel.peer.event_fd.raw());
        words.push(channel.map.base() as u64);
        words.push(channel.id);
        words.push(channel.side as u64 | u64::from(channel.adopter) << 8);
        let is_stranger = channel.peer.is_stranger.load(Ordering::Relaxed);
        words.push(u64::from(channel.peer.pid) | u64::from(is_stranger) << 32);
        words.push(u64::from(channel.inherited.load(Ordering::Relaxed)));
    });
    words.list(crate::process::waker::event_fds(), Words::push_fd);
    words.list(sockets.iter(), |words, (fd, endpoint)| {
        words.push(*fd as u64);
        words.push_endpoint(endpoint);
    });
    let number = |channel| channels.iter().position(|other| core::ptr::eq(*other, channel));
    words.list(super::listeners::exported().into_iter(), |words, (endpoint, exported)| {
        words.push_endpoint(endpoint);
        words.push(u64::from(exported.index));
        words.push(u64::from(exported.backlog));
        words.list(exported.waiting.iter(), |words, waiting| {
            words.push(number(waiting.channel).map_or(u64::MAX, |number| number as u64));
            words.push(waiting.slot as u64);
            words.push(u64::from(waiting.generation));
        });
    });
    words
}

impl Image {
    /// `None` when something is missing; nothing has changed then.
    pub(super) fn write(sockets: &[(i32, &'static Endpoint)], is_completed: bool) -> Option<Image> {
        let control = crate::monitor::client::CONTROL.lock();
        super::listeners::suspend();
        let words = describe(sockets, is_completed);
        drop(control);
        let mut image = Image { passed: words.fds, state: None };
        let Some(state) = image.publish(&words.words) else {
            image.undo();
            return None;
        };
        // The next image cannot write the pages in which its threads would say that they sleep.
        crate::process::waker::assume_asleep(true);
        crate::socket::thread_waker::close(sockets.iter().map(|(_, endpoint)| *endpoint), true);
        image.state = Some(state);
        Some(image)
    }

    /// The number of the state.
    fn publish(&self, words: &[u64]) -> Option<i32> {
        for &fd in &self.passed {
            sd_sys::fd::fcntl(fd, libc::F_SETFD, 0).ok()?;
        }
        let is_free = |fd: &i32| sd_sys::fd::fcntl(*fd, libc::F_GETFD, 0).is_err();
        let target = state_fds().into_iter().find(is_free)?;
        let len = words.len() * 8;
        let memfd = crate::monitor::budget::file_now(proof::NAME, len)?;
        // A write(2) would be subject to RLIMIT_FSIZE.
        let written = sd_sys::mem::map_shared(memfd.raw(), len, true).is_ok_and(|at| {
            // SAFETY: the mapping is as long as the words, and nobody else has it.
            unsafe {
                at.cast::<u64>().copy_from_nonoverlapping(words.as_ptr(), words.len());
                sd_sys::mem::unmap(at, len);
            }
            true
        });
        let named = written && proof::seal(memfd.raw()) && sd_sys::fd::dup3(memfd.raw(), target, 0).is_ok();
        named.then_some(target)
    }

    /// Everything is as it was before.
    pub(super) fn undo(self) {
        if let Some(state) = self.state {
            sd_sys::fd::close(state);
            crate::process::waker::assume_asleep(false);
            crate::socket::thread_waker::close(core::iter::empty(), false);
        }
        for fd in self.passed {
            let _ = sd_sys::fd::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC as usize);
        }
        super::listeners::resume();
    }
}
