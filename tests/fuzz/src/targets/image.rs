//! The words that an exec leaves for the next image. Each input is taken over by a process of its own, with descriptors
//! of every kind that such words name; it must come to its end by itself.

use super::Bytes;
use crate::coverage;
use sd_shm::channel::Mapping;
use sd_shm::slab::Slab;
use std::sync::OnceLock;

/// What the child has reached, for the parent.
fn shared() -> *mut u8 {
    static SHARED: OnceLock<usize> = OnceLock::new();
    let len = coverage::edges().max(1);
    *SHARED.get_or_init(|| {
        let file = sd_sys::mem::memfd_sealed(c"coverage", len).expect("a memfd can be made");
        sd_sys::mem::map_shared(file.raw(), len, true).expect("and mapped") as usize
    }) as *mut u8
}

/// Their numbers: slab, channel, eventfd.
fn descriptors() -> [u64; 3] {
    static MADE: OnceLock<[u64; 3]> = OnceLock::new();
    *MADE.get_or_init(|| {
        let (slab, _) = Slab::create(std::process::id()).expect("a slab can be made");
        let (segment, _) = Mapping::create(3, 1, 2).expect("a channel can be made");
        let event = sd_sys::fd::eventfd(libc::EFD_NONBLOCK).expect("an eventfd can be made");
        [slab, segment, event].map(|fd| fd.into_raw() as u64)
    })
}

const BASES: [u64; 3] = [0x7100_0000_0000, 0x7200_0000_0000, 0x7300_0010_0000];

pub(super) fn run(input: &[u8]) {
    let mut bytes = Bytes(input);
    let mut words = Vec::new();
    let made = descriptors();
    while !bytes.is_empty() && words.len() < 256 {
        words.push(match bytes.u8() {
            place @ 240..=242 => made[usize::from(place) - 240],
            place @ 243..=245 => BASES[usize::from(place) - 243],
            246 => u64::MAX,
            255 => bytes.u64(),
            small => u64::from(small),
        });
    }
    let shared = shared();
    // SAFETY: this process has one thread; the child does nothing but to look at the words.
    let child = unsafe { libc::fork() };
    if child == 0 {
        sd_socket::testing::take_over(words);
        // SAFETY: room for all counters; the end of the process.
        unsafe {
            std::ptr::copy_nonoverlapping(coverage::counters(), shared, coverage::edges());
            libc::_exit(0);
        }
    }
    let mut status = 0;
    // SAFETY: the kernel writes one word.
    unsafe { libc::waitpid(child, &mut status, 0) };
    // Neither by a signal nor by a panic, which has a status of its own.
    assert!(
        libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        "the next image ended with {status:#x}"
    );
    // SAFETY: as above, the other way.
    unsafe { std::ptr::copy_nonoverlapping(shared, coverage::counters(), coverage::edges()) };
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let slab = [240, 243, 1];
    let channel = [241, 242, 244, 3, 0, 2, 0];
    let lists = |slabs: &[u8], channels: &[u8], rest: &[u8]| {
        let count = |list: &[u8], len: usize| (list.len() / len) as u8;
        [&[246, count(slabs, 3)][..], slabs, &[count(channels, 7)], channels, rest].concat()
    };
    vec![
        lists(&[], &[], &[0, 0, 0]),
        lists(&slab, &[], &[0, 0, 0]),
        lists(&slab, &channel, &[1, 242, 1, 9, 0, 0, 0]),
        lists(&slab, &channel, &[0, 0, 1, 0, 1, 0, 5, 1, 0, 3, 1]),
        lists(&[slab, slab].concat(), &[channel, channel].concat(), &[0, 0, 0]),
    ]
}
