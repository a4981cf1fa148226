//! The system calls of Go programs: which are found in a text, and what becomes of them.
#![cfg(target_arch = "x86_64")]

#[path = "../src/sites/find.rs"]
mod find;
#[path = "../src/sites/island.rs"]
mod island;

use find::{Kind, Site, Sites, sites};
use island::{ISLAND_LEN, JUMP_LEN, build, jump};
use std::iter::once;

const ANY: &[u8] = &[0x48, 0x89, 0xdf, 0x0f, 0x05, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff];
const VFORK: &[u8] = &[0x41, 0x5c, 0x0f, 0x05, 0x41, 0x54];

/// `mov $number,%eax; syscall; mov %eax,0x18(%rsp); ret`
fn by_number(number: i64) -> Vec<u8> {
    let [a, b, c, d] = (number as u32).to_le_bytes();
    vec![0xb8, a, b, c, d, 0x0f, 0x05, 0x89, 0x44, 0x24, 0x18, 0xc3]
}

/// The parts, one behind the other, with much that is none of them in between.
fn text(parts: &[&[u8]]) -> Vec<u8> {
    let filling: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8 & 0xf0).collect();
    parts.iter().flat_map(|part| filling.iter().chain(*part)).chain(&filling).copied().collect()
}

fn kinds(parts: &[&[u8]]) -> Option<Vec<Kind>> {
    sites(once(&text(parts)[..])).map(|sites| sites.iter().map(|site| site.kind).collect())
}

#[test]
fn a_program_is_led_by_the_one_for_all_calls() {
    assert_eq!(kinds(&[]), None);
    assert_eq!(kinds(&[VFORK]), None);
    assert_eq!(kinds(&[ANY]), Some(vec![Kind::Any]));
    assert_eq!(kinds(&[ANY, VFORK]), Some(vec![Kind::Any, Kind::Vfork]));
    assert_eq!(kinds(&[ANY, &by_number(libc::SYS_futex)]), Some(vec![Kind::Any]));
    let epoll = by_number(libc::SYS_epoll_ctl);
    assert_eq!(kinds(&[&epoll, ANY]), Some(vec![Kind::Number(libc::SYS_epoll_ctl as u32), Kind::Any]));
}

#[test]
fn one_that_looks_otherwise_or_is_there_twice_is_not() {
    assert_eq!(kinds(&[ANY, ANY]), None);
    assert_eq!(kinds(&[ANY, VFORK, VFORK]), None);
    let epoll = by_number(libc::SYS_epoll_pwait);
    assert_eq!(kinds(&[ANY, &epoll, &epoll]), None);
    assert_eq!(kinds(&[ANY, &epoll[..7]]), None, "its result goes elsewhere");
}

#[test]
fn places_are_those_of_the_first_byte_replaced() {
    for before in [0, 1, 200, 254, 255, 256, 257, 1000] {
        let text = [&vec![0x0f; before], ANY].concat();
        let found = sites([&[][..], &text[..]].into_iter());
        let expected = Site { text: 1, at: before, kind: Kind::Any };
        assert_eq!(found.iter().flat_map(Sites::iter).collect::<Vec<_>>(), [&expected]);
    }
    // Cut off at either end.
    assert_eq!(sites(once(&ANY[1..])), None);
    assert_eq!(sites(once(&ANY[..10])), None);
}

const PAGE: usize = 4096;

/// A page of code.
fn page(bytes: &[u8]) -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    // SAFETY: a new mapping, and no more bytes than it has.
    unsafe {
        let page = libc::mmap(
            std::ptr::null_mut(),
            PAGE,
            protection,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(page, libc::MAP_FAILED);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), page.cast(), bytes.len());
        page.cast()
    }
}

/// What a function returns that asks for the parent's id, and whose instruction is led to `entry`.
fn led_to(entry: &[u8], kind: Kind) -> i64 {
    const GETPPID: [u8; 5] = [0xb8, 110, 0, 0, 0];
    let instruction = match kind {
        Kind::Number(number) => by_number(i64::from(number))[..7].to_vec(),
        _ => kind.replaced().to_vec(),
    };
    // Two words for `pop %r12`, which takes the first for the return address, and `push %r12`.
    let function =
        [&[0x41, 0x54, 0x53][..], &GETPPID, &[0x54], &instruction, &[0x58 + 1, 0x5b, 0x41, 0x5c, 0xc3]]
            .concat();
    let at = page(&function);
    let (island, entry) = (page(&[]), page(entry));
    let from = at.wrapping_add(9);
    let mut code = [0xcc; ISLAND_LEN];
    build(&mut code, island as usize, from as usize, kind, entry as usize).unwrap();
    let jump: [u8; JUMP_LEN] = jump(from as usize, island as usize).unwrap();
    // SAFETY: pages of code, which keep what the calling convention says; the stack is balanced.
    unsafe {
        island.cast::<[u8; ISLAND_LEN]>().write(code);
        from.cast::<[u8; JUMP_LEN]>().write(jump);
        let function: extern "C" fn() -> i64 = std::mem::transmute(at);
        function()
    }
}

#[test]
fn an_island_has_both_ways() {
    let parent = i64::from(std::os::unix::process::parent_id());
    // jmp *%rcx
    let to_kernel = [0xff, 0xe1];
    // mov $42,%eax; add $2,%rcx; jmp *%rcx
    let answers = [0xb8, 42, 0, 0, 0, 0x48, 0x83, 0xc1, 0x02, 0xff, 0xe1];
    for kind in [Kind::Any, Kind::Vfork, Kind::Number(libc::SYS_getppid as u32)] {
        assert_eq!(led_to(&to_kernel, kind), parent, "{kind:?}");
        assert_eq!(led_to(&answers, kind), 42, "{kind:?}");
    }
}

#[test]
fn what_is_too_far_is_not_jumped_to() {
    assert!(jump(0x1000, 0x1000 + (1 << 31)).is_some());
    assert!(jump(0x1000, 0x2000 + (1 << 31)).is_none());
    assert!(jump(1 << 40, 0x1000).is_none());
}
