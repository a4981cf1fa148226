//! Who listens where: what the monitor tells all processes of a network namespace, so that those that know each other
//! already need not ask.
//!
//! The monitor maps it writable and then seals it, so that others can map it read-only only. It changes under a
//! sequence lock: a reader that meets a change looks again.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sd_ring::fence_full;
use sd_sys::fd::Owned;

/// Listeners that it has room for; with more the monitor has to be asked.
pub const LISTENERS: usize = 4000;
/// Size of the segment; pages appear when touched.
pub const LEN: usize = 224 << 10;
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;
/// Looks at a time at which the monitor changes it; then it may have died there.
const LOOKS: usize = 100;

/// A listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Its process, as the monitor counts.
    pub client: u64,
    /// Address, an IPv6 or IPv4-mapped address in memory order.
    pub ip: [u64; 2],
    /// Its port.
    pub port: u16,
    /// IPV6_V6ONLY, of importance for `::` only.
    pub v6only: bool,
    /// Connections may be given to it.
    pub accepting: bool,
    /// It is about to listen: the monitor has to be asked for its port.
    pub soon: bool,
    /// Its process's user, and SO_COOKIE of the kernel's listener, by which the kernel can be asked for it.
    pub user: u32,
    /// See `user`.
    pub cookie: u64,
    /// Index and generation in its process's public page.
    pub index: u32,
    /// See `index`.
    pub generation: u32,
}

impl Listing {
    /// Of nobody.
    pub const NONE: Listing = Listing {
        client: 0,
        ip: [0; 2],
        port: 0,
        v6only: false,
        accepting: false,
        soon: false,
        user: 0,
        cookie: 0,
        index: 0,
        generation: 0,
    };
}

const V6ONLY: u64 = 1 << 16;
const ACCEPTING: u64 = 1 << 17;
const SOON: u64 = 1 << 18;

#[repr(C)]
struct Words {
    client: AtomicU64,
    ip: [AtomicU64; 2],
    /// Port, flags, user << 32.
    place: AtomicU64,
    cookie: AtomicU64,
    /// Index << 32 | generation.
    listener: AtomicU64,
}

/// The segment. The monitor alone writes it.
#[repr(C)]
struct Directory {
    /// Odd while it is being changed.
    sequence: AtomicU32,
    /// How many there are; [`UNKNOWN`].
    count: AtomicU32,
    _pad: [u64; 7],
    /// In the order of their ports.
    listeners: [Words; LISTENERS],
}

/// What the monitor says depends on who asks, or there is no room for all.
const UNKNOWN: u32 = u32::MAX;

const _: () = assert!(core::mem::size_of::<Directory>() <= LEN);

impl Words {
    fn port(&self) -> u16 {
        self.place.load(Ordering::Relaxed) as u16
    }

    fn load(&self) -> Listing {
        let place = self.place.load(Ordering::Relaxed);
        let listener = self.listener.load(Ordering::Relaxed);
        let [first, second] = &self.ip;
        Listing {
            client: self.client.load(Ordering::Relaxed),
            ip: [first.load(Ordering::Relaxed), second.load(Ordering::Relaxed)],
            port: place as u16,
            v6only: place & V6ONLY != 0,
            accepting: place & ACCEPTING != 0,
            soon: place & SOON != 0,
            user: (place >> 32) as u32,
            cookie: self.cookie.load(Ordering::Relaxed),
            index: (listener >> 32) as u32,
            generation: listener as u32,
        }
    }

    fn store(&self, new: &Listing) {
        let flag = |is_set: bool, bit: u64| if is_set { bit } else { 0 };
        let flags = flag(new.v6only, V6ONLY) | flag(new.accepting, ACCEPTING) | flag(new.soon, SOON);
        self.client.store(new.client, Ordering::Relaxed);
        self.ip.iter().zip(new.ip).for_each(|(word, half)| word.store(half, Ordering::Relaxed));
        let user = u64::from(new.user) << 32;
        self.place.store(u64::from(new.port) | flags | user, Ordering::Relaxed);
        self.cookie.store(new.cookie, Ordering::Relaxed);
        self.listener.store(u64::from(new.index) << 32 | u64::from(new.generation), Ordering::Relaxed);
    }
}

/// A mapping of the segment, unmapped when dropped.
struct Mapping(*mut u8);

// SAFETY: an address of shared atomics; may be used from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn directory(&self) -> &Directory {
        // SAFETY: a page-aligned mapping of LEN bytes, made of atomics, that lives as long as `self`. Those who have
        // mapped it read-only only load.
        unsafe { &*(self.0 as *const Directory) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: references from it are borrowed from `self`.
        unsafe { sd_sys::mem::unmap(self.0, LEN) };
    }
}

/// The monitor's.
pub struct Writer(Mapping);

impl Writer {
    /// A new one, of which nothing is known, and its memfd.
    pub fn create() -> sd_sys::Result<(Owned, Writer)> {
        let fd = sd_sys::mem::memfd_sealed(c"sd-directory", LEN)?;
        let map = sd_sys::mem::map_shared(fd.raw(), LEN, true).map(Mapping)?;
        sd_sys::mem::add_seals(fd.raw(), SEALS)?;
        let writer = Writer(map);
        writer.publish(None);
        Ok((fd, writer))
    }

    /// All that there are from now on, in the order of their ports; `None`: the monitor has to be asked.
    pub fn publish(&self, all: Option<&[Listing]>) {
        let directory = self.0.directory();
        let sequence = directory.sequence.load(Ordering::Relaxed) & !1;
        directory.sequence.store(sequence.wrapping_add(1), Ordering::Relaxed);
        fence_full();
        let all = all.filter(|all| all.len() <= LISTENERS);
        for (words, new) in directory.listeners.iter().zip(all.unwrap_or_default()) {
            words.store(new);
        }
        directory.count.store(all.map_or(UNKNOWN, |all| all.len() as u32), Ordering::Relaxed);
        directory.sequence.store(sequence.wrapping_add(2), Ordering::Release);
    }
}

/// Another process's.
pub struct Reader(Mapping);

impl Reader {
    /// Maps it, after checking its length, and that it cannot shrink.
    pub fn map(fd: i32) -> sd_sys::Result<Reader> {
        crate::check_segment(fd, LEN)?;
        sd_sys::mem::map_shared(fd, LEN, false).map(|base| Reader(Mapping(base)))
    }

    /// The listeners of a port, as many as `found` has room for; how many there are. `None`: the monitor has to be asked.
    pub fn find(&self, port: u16, found: &mut [Listing]) -> Option<usize> {
        let directory = self.0.directory();
        for _ in 0..LOOKS {
            let before = directory.sequence.load(Ordering::Acquire);
            if before & 1 == 0 {
                let count = directory.find(port, found);
                fence_full();
                if directory.sequence.load(Ordering::Relaxed) == before {
                    return count;
                }
            }
            core::hint::spin_loop();
        }
        None
    }
}

impl Directory {
    fn find(&self, port: u16, found: &mut [Listing]) -> Option<usize> {
        let count = self.count.load(Ordering::Relaxed);
        if count == UNKNOWN {
            return None;
        }
        let all = self.listeners.get(..count as usize)?;
        let first = all.partition_point(|words| words.port() < port);
        let of_port = all.get(first..)?.iter().take_while(|words| words.port() == port);
        let mut count = 0;
        for words in of_port {
            if words.place.load(Ordering::Relaxed) & SOON != 0 {
                return None;
            }
            if let Some(place) = found.get_mut(count) {
                *place = words.load();
            }
            count += 1;
        }
        Some(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(port: u16, client: u64) -> Listing {
        let accepting = client.is_multiple_of(2);
        let (user, cookie) = (u32::MAX - client as u32, client << 33);
        Listing { port, client, ip: [1, client], accepting, user, cookie, ..Listing::NONE }
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps files")]
    fn what_is_published_is_found() {
        let (fd, writer) = Writer::create().unwrap();
        let reader = Reader::map(fd.raw()).unwrap();
        let mut found = [Listing::NONE; 2];
        assert_eq!(reader.find(80, &mut found), None, "nothing is known yet");
        let all = [(22, 1), (80, 2), (80, 3), (80, 4), (443, 5)].map(|(port, client)| listing(port, client));
        writer.publish(Some(&all));
        assert_eq!(reader.find(80, &mut found), Some(3));
        assert_eq!(found, [all[1], all[2]], "as many as there is room for");
        assert_eq!(reader.find(443, &mut found), Some(1));
        assert_eq!(found[0], all[4]);
        assert_eq!([81, 0, u16::MAX].map(|port| reader.find(port, &mut found)), [Some(0); 3]);
        writer.publish(Some(&[]));
        assert_eq!(reader.find(80, &mut found), Some(0));
        writer.publish(Some(&[Listing { soon: true, ..listing(22, 1) }, listing(80, 2)]));
        assert_eq!(reader.find(22, &mut found), None, "somebody is about to listen there");
        assert_eq!(reader.find(80, &mut found), Some(1));
        writer.publish(Some(&vec![listing(1, 1); LISTENERS + 1]));
        assert_eq!(reader.find(1, &mut found), None, "no room for all");
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps files")]
    fn readers_meet_no_half_changed_one() {
        let (fd, writer) = Writer::create().unwrap();
        let reader = Reader::map(fd.raw()).unwrap();
        writer.publish(Some(&[]));
        std::thread::scope(|scope| {
            let changes = scope.spawn(|| {
                for client in 0..20_000 {
                    let all: Vec<Listing> =
                        (0..client % 7).map(|port| listing(port as u16, client)).collect();
                    writer.publish(Some(&all));
                }
            });
            let mut found = [Listing::NONE; 1];
            while !changes.is_finished() {
                if reader.find(3, &mut found) == Some(1) {
                    assert_eq!(found[0], listing(3, found[0].client));
                    assert!(found[0].client % 7 > 3);
                }
            }
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps files")]
    fn only_the_monitor_can_change_it() {
        let (fd, _writer) = Writer::create().unwrap();
        assert!(sd_sys::mem::map_shared(fd.raw(), LEN, true).is_err());
    }
}
