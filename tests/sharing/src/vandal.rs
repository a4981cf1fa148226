//! The hostile half of a hostile peer: a bare process, without any library of ours, that has mapped the segments which
//! a client shares with others, and writes into them as it likes, at any speed, beyond the client's end.
//!
//! Half of it is chance: any value in any word. The other half are `attacks`: what code that trusts its peer
//! would fall over. Every write is counted in a file, so that its number is known however the vandal ends.

use crate::attacks::{ATTACKS, Prey};
use crate::note;
use crate::pattern::Random;
use crate::thief::{EVENTFD, SEGMENT, numbers, open, steal};
use sd_shm::channel::{GEOMETRY, Mapping, SLOTS, Side};
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// It ends by itself then, should nobody end it.
const LIFE: Duration = Duration::from_secs(60);
/// New segments of the client are looked for so often.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Slots that are attacked: a client has a dozen connections, and takes slots from the first on.
const SLOTS_HIT: u64 = 32;

/// What it has got hold of.
#[derive(Default)]
struct Loot {
    known: HashSet<u64>,
    segments: Vec<(File, Mapping)>,
    /// Those that the process may write to wake itself or its peers.
    eventfds: Vec<RawFd>,
}

impl Loot {
    /// Maps what the process has now. It may be gone.
    fn take(&mut self, pid: u32) {
        for number in numbers(pid, SEGMENT) {
            let Ok(file) = open(pid, number) else { continue };
            let is_new = file.metadata().is_ok_and(|meta| self.known.insert(meta.ino()));
            if is_new && let Ok(map) = Mapping::map(file.as_raw_fd()) {
                self.segments.push((file, map));
                let taken = numbers(pid, EVENTFD).into_iter().filter_map(|fd| steal(pid as i32, fd).ok());
                self.eventfds = taken.collect();
            }
        }
    }
}

/// Any value in any word of what is used of a segment.
fn scribble(map: &Mapping, random: &mut Random) {
    let start = map.base() as usize;
    let end_of = |ring: *mut u8, len: u32| ring as usize + len as usize - start;
    // Control words lie in front; most writes go there.
    let reach = match random.below(6) {
        0 => core::ptr::from_ref(map.slot(0)) as usize - start,
        1 | 2 => core::ptr::from_ref(map.slot(SLOTS_HIT as usize)) as usize - start,
        3 => core::ptr::from_ref(map.names(SLOTS - 1)) as usize - start,
        4 => end_of(map.small_ring(SLOTS_HIT as usize, Side::B), GEOMETRY.small),
        _ => end_of(map.large_ring(2, Side::B), GEOMETRY.large),
    };
    let place = start + random.below(reach as u64 / 8) as usize * 8;
    // SAFETY: an aligned word in a mapping that lasts until the end of this process; others change it too.
    let word = unsafe { &*(place as *const AtomicU64) };
    match random.below(4) {
        0 => drop(word.fetch_xor(1 << random.below(64), Ordering::SeqCst)),
        1 => drop(word.fetch_add(random.below(64), Ordering::SeqCst)),
        _ => word.store(random.nasty(), Ordering::SeqCst),
    }
}

/// Writes into what a client shares; `strangers` are processes to which nothing must happen. `kind` is an attack, `chance`
/// or anything else for all. Words of the file: writes, segments, then how often each attack was made.
pub(crate) fn run(pid: u32, seed: u64, kind: &str, file: &str, strangers: &[u32]) -> io::Result<()> {
    let which = ATTACKS.iter().position(|(name, _)| *name == kind);
    let by_chance = which.map(|_| false).or((kind == "chance").then_some(true));
    let note = note::open::<{ 2 + ATTACKS.len() }>(file)?;
    let [writes, segments, made @ ..] = note;
    let (mut random, mut loot) = (Random::new(!seed), Loot::default());
    let (start, mut last_look) = (Instant::now(), None);
    // Connections have to live for a while at times, so that there is something to attack.
    let mut rage = 2;
    while start.elapsed() < LIFE {
        if last_look.is_none_or(|last: Instant| last.elapsed() > LOOK_EVERY) {
            loot.take(pid);
            segments.store(loot.segments.len() as u64, Ordering::Relaxed);
            rage = [2, 64, 4096][random.below(3) as usize];
            last_look = Some(Instant::now());
        }
        if loot.segments.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let (segment, map) = &loot.segments[random.below(loot.segments.len() as u64) as usize];
        if by_chance.unwrap_or_else(|| random.below(2) == 0) {
            let count = random.below(200);
            (0..count).for_each(|_| scribble(map, &mut random));
            writes.fetch_add(count, Ordering::Relaxed);
        } else {
            let which = which.unwrap_or_else(|| random.below(ATTACKS.len() as u64) as usize);
            let slot = random.below(SLOTS_HIT) as usize;
            let eventfds = &loot.eventfds;
            let mut prey = Prey { map, segment, slot, strangers, eventfds, random: &mut random };
            writes.fetch_add(ATTACKS[which].1(&mut prey), Ordering::Relaxed);
            made[which].fetch_add(1, Ordering::Relaxed);
        }
        if random.below(rage) == 0 {
            std::thread::sleep(Duration::from_micros(random.below(300)));
        }
    }
    Ok(())
}
