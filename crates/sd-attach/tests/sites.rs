//! The system calls of Go programs: which are found in a text.
#![cfg(target_arch = "x86_64")]

use sd_attach::sites::{Kind, Site, Sites, Threads, has_libc, sites};
use std::iter::once;

const ANY: &[u8] = &[0x48, 0x89, 0xce, 0x48, 0x89, 0xdf, 0x0f, 0x05, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff];
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
    sites(once(&text(parts)[..]), Threads::OfLibc).map(|sites| sites.iter().map(|site| site.kind).collect())
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
        let found = sites([&[][..], &text[..]].into_iter(), Threads::OfLibc);
        let expected = Site { text: 1, at: before, kind: Kind::Any };
        assert_eq!(found.iter().flat_map(Sites::iter).collect::<Vec<_>>(), [&expected]);
    }
    // Cut off at either end.
    assert_eq!(sites(once(&ANY[1..]), Threads::OfLibc), None);
    assert_eq!(sites(once(&ANY[..10]), Threads::OfLibc), None);
}

/// `mov $56,%eax; syscall; cmp $0,%rax; je 5`
const CLONE: &[u8] = &[0xb8, 56, 0, 0, 0, 0x0f, 0x05, 0x48, 0x83, 0xf8, 0x00, 0x74, 0x05];
/// `mov $60,%eax; syscall; int $3`
const EXIT: &[u8] = &[0xb8, 60, 0, 0, 0, 0x0f, 0x05, 0xcd, 0x03];

#[test]
fn threads_of_the_runtimes_own_are_led_too() {
    let kinds = |parts: &[&[u8]], threads| {
        sites(once(&text(parts)[..]), threads).map(|sites| sites.iter().map(|site| site.kind).collect())
    };
    assert_eq!(
        kinds(&[EXIT, ANY, CLONE], Threads::OfRuntime),
        Some(vec![Kind::Exit, Kind::Any, Kind::Clone])
    );
    assert_eq!(kinds(&[EXIT, ANY, CLONE], Threads::OfLibc), Some(vec![Kind::Any]), "nobody uses them");
    for parts in [&[EXIT, ANY][..], &[ANY, CLONE], &[EXIT, CLONE], &[EXIT, ANY, CLONE, CLONE]] {
        assert_eq!(kinds(parts, Threads::OfRuntime), None::<Vec<Kind>>);
    }
    // Another thread's end, and a clone whose child goes on at once.
    let others: [&[u8]; 2] = [&[0xb8, 60, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf2], &CLONE[..7]];
    assert_eq!(kinds(&[ANY, others[0], others[1]], Threads::OfLibc), Some(vec![Kind::Any]));
}

#[test]
fn a_program_with_a_libc_in_it_is_left_alone_where_that_would_make_the_threads() {
    // mov $218,%eax; lea N(%rip),%rdi; syscall
    let begins: &[u8] = &[0xb8, 218, 0, 0, 0, 0x48, 0x8d, 0x3d, 1, 2, 3, 0, 0x0f, 0x05];
    let parts = [EXIT, ANY, begins, CLONE];
    let of = |parts: &[&[u8]], threads| sites(once(&text(parts)[..]), threads).is_some();
    assert!(!of(&parts, Threads::OfRuntime) && of(&parts, Threads::OfLibc));
    assert!(has_libc(once(&text(&parts)[..])) && !has_libc(once(&text(&[EXIT, ANY, CLONE])[..])));
    // The number alone, far before an instruction, is one like others.
    assert!(of(&[EXIT, &begins[..5], ANY, CLONE], Threads::OfRuntime));
}
