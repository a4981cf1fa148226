//! The start of the library in an image that an exec has made: takes over what `image` wrote down.

use super::image::{COMPLETED, FREE, MAGIC, state_fds};
use super::listeners::Exported;
use crate::backlog::listener::Pending;
use crate::fd::hidden::Hidden;
use crate::link::channel::Channel;
use crate::link::peer::Peer;
use crate::process::PROCESS;
use crate::socket::endpoint::EndpointExt;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use sd_shm::channel::{Mapping, SEGMENT_LEN, Side};
use sd_shm::slab::{ENDPOINTS, Endpoint, Slab, State};
use sd_sys::fd::Owned;

/// Words as they were written.
struct Reader {
    words: Vec<u64>,
    at: usize,
}

impl Reader {
    fn word(&mut self) -> Option<u64> {
        let word = self.words.get(self.at).copied();
        self.at += 1;
        word
    }

    fn fd(&mut self) -> Option<i32> {
        self.word().map(|word| word as i32)
    }

    fn list<T>(&mut self, mut item: impl FnMut(&mut Reader) -> Option<T>) -> Option<Vec<T>> {
        let count = self.word()?;
        (0..count).map(|_| item(self)).collect()
    }
}

/// At the start of the program: a look at two numbers, almost always in vain. Of filters nothing is known yet; the loader of the
/// program has read files like this. What the state says of them, before it is believed, is the word of whoever started this program: a
/// lie would have the filter of that one kill it.
///
/// # Safety
/// `environment` is the array that the kernel made, and the program has not started yet.
pub(crate) unsafe fn attach(environment: *const *const core::ffi::c_char) {
    let found = state_fds().into_iter().filter(|fd| can_be_read(*fd)).find_map(|fd| Some((fd, read(fd)?)));
    let Some((state, mut reader)) = found else { return };
    drop(Owned::new(state));
    if reader.word().is_some_and(|flags| flags & COMPLETED != 0) {
        // SAFETY: by contract.
        unsafe { super::cleared::take_away(environment) };
    }
    let _ = take_over(reader);
}

/// Whether it is a file: reads nothing of it.
fn can_be_read(fd: i32) -> bool {
    // SAFETY: no byte is written.
    sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_pread64, fd, 0, 0, 0) }).is_ok()
}

/// The first words of a file; `None` of anything else, which is not read.
fn head(fd: i32) -> Option<[u64; 4]> {
    // SAFETY: an all-zero stat is valid; the kernel writes one, and then at most the words.
    unsafe {
        let mut found: libc::stat = core::mem::zeroed();
        sd_sys::check(sd_sys::syscall!(libc::SYS_fstat, fd, &raw mut found)).ok()?;
        let mut words = [0u64; 4];
        let is_file = found.st_mode & libc::S_IFMT == libc::S_IFREG;
        let mut read = || sd_sys::syscall!(libc::SYS_pread64, fd, words.as_mut_ptr(), size_of_val(&words), 0);
        (is_file && sd_sys::check(read()) == Ok(size_of::<[u64; 4]>())).then_some(words)
    }
}

fn read(fd: i32) -> Option<Reader> {
    let [magic, .., flags] = head(fd)?;
    let is_free = magic == MAGIC && flags & FREE != 0;
    if !is_free && !crate::process::env::may_work() {
        return None;
    }
    if !super::proof::is_believable(fd) {
        return None;
    }
    // SAFETY: an all-zero stat is valid; the kernel writes one.
    let len = unsafe {
        let mut found: libc::stat = core::mem::zeroed();
        sd_sys::check(sd_sys::syscall!(libc::SYS_fstat, fd, &raw mut found)).ok()?;
        found.st_size as usize
    };
    let mut words = vec![0u64; len / 8];
    // SAFETY: the kernel writes into the vector.
    let got =
        sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_pread64, fd, words.as_mut_ptr(), len & !7, 0) });
    let mut reader = Reader { words, at: 0 };
    // What an image of another process left for a program that did not load us is nobody's.
    let is_ours = got == Ok(len & !7)
        && reader.word()? == MAGIC
        && reader.word()? == u64::from(sd_shm::VERSION)
        && reader.word()? == sd_sys::fd::getpid() as u64;
    if is_ours && is_free {
        sd_sys::filters::was_let_work();
    }
    is_ours.then_some(reader)
}

/// For fuzzing: the words of an image, whoever wrote them.
pub(crate) fn take_over_words(words: Vec<u64>) {
    let _ = take_over(Reader { words, at: 0 });
}

/// `None` when the words end too early, which they do not.
fn take_over(mut reader: Reader) -> Option<()> {
    if !crate::fd::table::init() {
        return None;
    }
    PROCESS.pid.store(sd_sys::fd::getpid(), Ordering::Relaxed);
    PROCESS.forked.store(true, Ordering::Relaxed);
    let control = take_fd(&mut reader)?;
    let slabs = reader.list(take_slab)?;
    if slabs.first().is_some_and(Option::is_none) {
        // With the oldest slab the family's threads are out of sight (see `token`): no socket can be shared.
        return None;
    }
    let channels = reader.list(take_channel)?;
    reader.list(|reader| take_fd(reader).map(crate::process::waker::add_inherited))?;
    let mut left_to_kernel = Vec::new();
    reader.list(|reader| {
        let (fd, endpoint) = (reader.fd()?, take_endpoint(reader, &slabs)?);
        match endpoint {
            Some(listener) if is_short_of_numbers() && listener.state_now() == State::Listen => {
                super::give_listener(fd, listener);
                left_to_kernel.push((fd, listener));
            }
            Some(endpoint) => adopt(fd, endpoint),
            None => {}
        }
        Some(())
    })?;
    let listeners = reader.list(|reader| take_listener(reader, &slabs, &channels))?;
    crate::monitor::client::set_image_fd(control);
    for (exported, endpoint) in listeners {
        let is_left =
            |one: &&'static Endpoint| left_to_kernel.iter().any(|(_, left)| core::ptr::eq(*left, *one));
        match endpoint.filter(is_left) {
            Some(_) => super::listeners::leave_to_kernel(&exported),
            None => super::listeners::import(exported, endpoint.filter(|endpoint| is_held(endpoint))),
        }
    }
    left_to_kernel.iter().for_each(|(fd, _)| crate::setup::withdrawn::cannot_take(*fd));
    slabs.iter().flatten().for_each(|slab| release_the_rest(*slab));
    channels.iter().flatten().filter(|channel| !channel.is_used()).for_each(|channel| channel.doom());
    crate::link::reclaim::channels();
    Some(())
}

/// A descriptor of the library's own, hidden again.
fn take_fd(reader: &mut Reader) -> Option<Hidden> {
    let fd = reader.fd()?;
    if fd >= 0 {
        let _ = sd_sys::fd::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC as usize);
        crate::fd::table::set_hidden(fd, true);
    }
    Some(Hidden::from_raw(fd))
}

/// `Some(None)`, here and below: it could not be mapped; its sockets are lost.
fn take_slab(reader: &mut Reader) -> Option<Option<Slab>> {
    let (fd, base, bit) = (take_fd(reader)?, reader.word()?, reader.word()?);
    let slab = Slab::map_at(fd.raw(), base as usize).ok();
    Some(slab.filter(|slab| PROCESS.add_inherited_slab(*slab, fd, bit)))
}

fn take_channel(reader: &mut Reader) -> Option<Option<&'static Channel>> {
    let (segment, event_fd, base) = (take_fd(reader)?, take_fd(reader)?, reader.word()?);
    let (id, side, peer_pid, inherited) = (reader.word()?, reader.word()?, reader.word()?, reader.word()?);
    let (side, adopter) = (Side::from_u32(side as u32 & 0xff)?, (side >> 8) as u32);
    let Ok(map) = Mapping::map_at(segment.raw(), base as usize) else { return Some(None) };
    let is_stranger = peer_pid >> 32 != 0;
    let peer = Peer::new(peer_pid as u32, (None, event_fd), (id, side), is_stranger);
    let channel = Channel::new(id, (side, adopter), map, peer, segment);
    channel.inherited.store(inherited != 0, Ordering::Relaxed);
    Some(PROCESS.add_channel(channel))
}

fn take_endpoint(reader: &mut Reader, slabs: &[Option<Slab>]) -> Option<Option<&'static Endpoint>> {
    let (slab, index) = (reader.word()?, reader.word()?);
    let slab = slabs.get(slab as usize).copied().flatten();
    Some(slab.and_then(|slab| slab.endpoint(index as usize)))
}

fn take_listener(
    reader: &mut Reader,
    slabs: &[Option<Slab>],
    channels: &[Option<&'static Channel>],
) -> Option<(Exported, Option<&'static Endpoint>)> {
    let endpoint = take_endpoint(reader, slabs)?;
    let (index, backlog) = (reader.word()? as u32, reader.word()? as u32);
    let waiting = reader.list(|reader| {
        let (channel, slot, generation) = (reader.word()?, reader.word()?, reader.word()?);
        let channel = channels.get(channel as usize).copied().flatten();
        Some(channel.map(|channel| Pending {
            channel,
            slot: slot as usize,
            generation: generation as u32,
            since: crate::backlog::defer::Since::now(),
        }))
    })?;
    let waiting: Vec<Pending> = waiting.into_iter().flatten().collect();
    waiting.iter().for_each(|waiting| waiting.channel.used());
    Some((Exported { index, backlog, waiting }, endpoint))
}

/// The channel whose words the endpoint has the address of.
fn channel_of(endpoint: &Endpoint) -> Option<&'static Channel> {
    let peer = endpoint.peer.load(Ordering::Relaxed);
    PROCESS.channels().find(|channel| {
        let base = channel.map.base() as u64;
        (base..base + SEGMENT_LEN as u64).contains(&peer)
    })
}

/// Makes the endpoint's channel known to this image. False when it is connected and there is none.
fn connect(endpoint: &'static Endpoint) -> bool {
    if endpoint.state_now() != State::Connected {
        return true;
    }
    let (Some(channel), Some(private)) = (channel_of(endpoint), PROCESS.private(endpoint)) else {
        return false;
    };
    if !crate::link::placed::is_right(endpoint, channel) {
        return false;
    }
    if !private.change_channel(channel) {
        channel.bind(usize::from(endpoint.slot.load(Ordering::Relaxed)), endpoint);
    }
    true
}

/// The number leads to the endpoint again.
fn adopt(fd: i32, endpoint: &'static Endpoint) {
    if connect(endpoint) {
        crate::socket::life::retain(endpoint);
        endpoint.fd.store(fd, Ordering::Relaxed);
        crate::fd::table::set_socket(fd, endpoint);
    }
}

/// So few numbers may be open in all that the library's own would leave too few to the program: it gets its connections
/// from the kernel's listener.
const NUMBERS_MIN: u64 = 32;

fn is_short_of_numbers() -> bool {
    sd_sys::fd::nofile_limit() < NUMBERS_MIN
}

fn is_held(endpoint: &Endpoint) -> bool {
    PROCESS.private(endpoint).is_some_and(|private| private.fds.load(Ordering::Relaxed) != 0)
}

/// What was closed by the exec.
fn release_the_rest(slab: Slab) {
    let high = (slab.header().high.load(Ordering::Acquire) as usize).min(ENDPOINTS);
    for endpoint in (0..high).filter_map(|index| slab.endpoint(index)) {
        let Some((rec, _)) = PROCESS.locate(endpoint) else { return };
        let is_ours = endpoint.holders.load(Ordering::Acquire) & rec.bit.load(Ordering::Relaxed) != 0;
        if is_ours && !is_held(endpoint) && connect(endpoint) {
            crate::socket::life::retain(endpoint);
            crate::socket::life::release(endpoint);
        }
    }
}
