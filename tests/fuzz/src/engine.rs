//! Changes inputs, and keeps those that reach what none has reached before.

use crate::random::Random;
use crate::targets::Target;
use crate::{corpus, coverage};
use std::collections::HashSet;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

/// Longer ones are cut.
const LEN_MAX: usize = 2048;

pub(crate) struct Engine {
    target: &'static Target,
    random: Random,
    reached: HashSet<usize>,
    inputs: Vec<Vec<u8>>,
    last: Last,
}

/// The input under way, in a file that outlives us.
struct Last(*mut u8);

impl Last {
    fn new(path: &Path) -> io::Result<Last> {
        let file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(path)?;
        file.set_len(8 + LEN_MAX as u64)?;
        let base = sd_sys::mem::map_shared(file.as_raw_fd(), 8 + LEN_MAX, true);
        base.map(Last).map_err(|error| io::Error::from_raw_os_error(error.0))
    }

    fn note(&self, input: &[u8]) {
        // SAFETY: the mapping has room for a length and the longest input.
        unsafe {
            self.0.cast::<u64>().write_volatile(input.len() as u64);
            std::ptr::copy_nonoverlapping(input.as_ptr(), self.0.add(8), input.len());
        }
    }
}

/// Of this process, with its threads and children: so much is tried whatever else the machine does meanwhile.
fn processor_time() -> Duration {
    let of = |who| {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the kernel writes one structure, of which zeros are a value.
        let usage = unsafe {
            libc::getrusage(who, usage.as_mut_ptr());
            usage.assume_init()
        };
        [usage.ru_utime, usage.ru_stime]
            .map(|time| Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64))
    };
    [libc::RUSAGE_SELF, libc::RUSAGE_CHILDREN].into_iter().flat_map(of).sum()
}

impl Engine {
    pub(crate) fn new(target: &'static Target, last: &Path, seed: u64) -> io::Result<Engine> {
        let random = Random::new(seed);
        Ok(Engine { target, random, reached: HashSet::new(), inputs: Vec::new(), last: Last::new(last)? })
    }

    pub(crate) fn run(mut self, seconds: f64, path: &Path, writes: bool) -> io::Result<()> {
        let mut seeds = corpus::read(path)?;
        let from_corpus = seeds.len();
        seeds.extend((self.target.seeds)());
        seeds.push(Vec::new());
        for seed in seeds {
            self.attempt(seed);
        }
        let known = self.reached.len();
        let end = processor_time() + Duration::from_secs_f64(seconds);
        let mut runs = 0u64;
        while processor_time() < end {
            // To ask the kernel costs as much as an input.
            for _ in 0..16 {
                let input = self.changed();
                self.attempt(input);
            }
            runs += 16;
        }
        if writes {
            let smallest = self.smallest();
            corpus::write(path, &smallest)?;
            println!("{} inputs written", smallest.len());
        }
        println!(
            "{from_corpus} inputs of the corpus, {runs} more; reached {known}, then {} of {} edges' counts",
            self.reached.len(),
            coverage::edges(),
        );
        Ok(())
    }

    /// Runs one; true when it reached something new, and is kept.
    fn attempt(&mut self, mut input: Vec<u8>) -> bool {
        input.truncate(LEN_MAX);
        self.last.note(&input);
        coverage::reset();
        (self.target.run)(&input);
        let before = self.reached.len();
        coverage::features(|feature| {
            self.reached.insert(feature);
        });
        let is_new = self.reached.len() > before;
        // Without coverage the seeds are all there is.
        if is_new || (coverage::edges() == 0 && self.inputs.len() < 64) {
            self.inputs.push(input);
        }
        is_new
    }

    /// The smallest inputs first, as long as they add something.
    fn smallest(&mut self) -> Vec<Vec<u8>> {
        let mut all = std::mem::take(&mut self.inputs);
        all.sort_by_key(Vec::len);
        self.reached.clear();
        all.retain(|input| self.attempt(input.clone()));
        self.inputs.clear();
        all
    }

    fn changed(&mut self) -> Vec<u8> {
        let which = self.random.below(self.inputs.len());
        let mut input = self.inputs.get(which).cloned().unwrap_or_default();
        for _ in 0..=self.random.below(5) {
            self.change(&mut input);
        }
        input
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        const WORDS: [u64; 10] = [0, 1, 7, 8, 63, 64, 1023, 1024, u32::MAX as u64, u64::MAX];
        let random = &mut self.random;
        let at = random.below(input.len() + 1);
        match random.below(8) {
            0 if at < input.len() => input[at] ^= 1 << random.below(8),
            1 if at < input.len() => input[at] = random.next() as u8,
            2 => input.insert(at, random.next() as u8),
            3 => drop(input.drain(at..(at + 1 + random.below(16)).min(input.len()).max(at))),
            4 => {
                let word = WORDS[random.below(WORDS.len())].to_le_bytes();
                let len = [1, 2, 4, 8][random.below(4)].min(input.len() - at);
                input[at..at + len].copy_from_slice(&word[..len]);
            }
            5 => {
                let from = random.below(input.len() + 1);
                let piece = input[from..(from + 1 + random.below(32)).min(input.len())].to_vec();
                input.splice(at..at, piece);
            }
            6 => {
                let other = random.below(self.inputs.len());
                let other = self.inputs.get(other).map_or(&[][..], Vec::as_slice);
                let from = random.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            _ => input.extend((0..random.below(24)).map(|_| random.next() as u8)),
        }
        input.truncate(LEN_MAX);
    }
}
