//! What would be replaced in programs that were not made for this: on bytes.
#![cfg(target_arch = "x86_64")]

use sd_attach::windows::{Refusal, WINDOW_MAX, Window, windows};

/// Functions before and behind, as a compiler makes them: `push %rbx; mov %edi,%ebx; call; mov %ebx,%eax; pop %rbx; ret`.
const OTHER: [u8; 12] = [0x53, 0x89, 0xfb, 0xe8, 0x10, 0x00, 0x00, 0x00, 0x89, 0xd8, 0x5b, 0xc3];
const AROUND: usize = 30;

/// A text in which these bytes are, and where they are.
fn text(code: &[u8]) -> (Vec<u8>, usize) {
    let around = OTHER.repeat(AROUND);
    ([&around[..], code, &around].concat(), around.len())
}

/// Windows, counted from the code's first byte; or why there are none, likewise.
fn found(code: &[u8]) -> Result<Vec<(usize, u8, u8)>, Refusal> {
    let (text, start) = text(code);
    let near = |window: &Window| (window.at as usize - start, window.len, window.instruction_at);
    let place = |refusal| match refusal {
        Refusal::None => Refusal::None,
        Refusal::Unclear(at) => Refusal::Unclear(at - start),
        Refusal::Neighbours(at) => Refusal::Neighbours(at - start),
        Refusal::Gs(at) => Refusal::Gs(at - start),
    };
    windows([&text[..]].into_iter()).map(|found| found.all().iter().map(near).collect()).map_err(place)
}

/// `mov $NUMBER,%eax; syscall`
const fn call(number: u8) -> [u8; 7] {
    [0xb8, number, 0, 0, 0, 0x0f, 0x05]
}
const RETURN: u8 = 0xc3;

#[test]
fn the_number_goes_and_the_call_stays() {
    assert_eq!(found(&[&call(41)[..], &[RETURN]].concat()), Ok(vec![(0, 5, 5)]));
    // mov $41,%rax
    let long = [0x48, 0xc7, 0xc0, 41, 0, 0, 0, 0x0f, 0x05, RETURN];
    assert_eq!(found(&long), Ok(vec![(0, 7, 7)]));
    // xor %edi,%edi; mov %edi,%eax: its number is not known.
    assert_eq!(found(&[0x31, 0xff, 0x89, 0xf8, 0x0f, 0x05, 0x90, RETURN]), Ok(vec![(0, 6, 4)]));
}

#[test]
fn what_may_begin_a_thread_goes_with_its_number() {
    for number in [libc::SYS_clone, libc::SYS_fork, libc::SYS_vfork] {
        assert_eq!(found(&[&call(number as u8)[..], &[RETURN]].concat()), Ok(vec![(0, 7, 5)]));
    }
    let clone3 = [0xb8, 0xb3, 0x01, 0, 0, 0x0f, 0x05, RETURN];
    assert_eq!(found(&clone3), Ok(vec![(0, 7, 5)]));
}

#[test]
fn what_looks_like_a_number_may_belong_to_another_instruction() {
    // mov 200(%rax),%edi; syscall; mov %rax,%rdi; ret: the number is set before.
    let code = [0xb8, 41, 0, 0, 0, 0x8b, 0xb8, 200, 0, 0, 0, 0x0f, 0x05, 0x48, 0x89, 0xc7, RETURN];
    assert_eq!(found(&code), Ok(vec![(5, 8, 6)]));
    // mov $41,%r8d
    let other = [0x89, 0xf8, 0x41, 0xb8, 41, 0, 0, 0, 0x0f, 0x05, RETURN];
    assert_eq!(found(&other), Ok(vec![(2, 8, 6)]));
}

#[test]
fn what_is_behind_goes_with_it_where_others_lead_to_the_call() {
    // jmp to the syscall; mov; syscall; mov %rax,%rdi; ret
    let code = [&[0xeb, 5][..], &call(41), &[0x48, 0x89, 0xc7, RETURN]].concat();
    assert_eq!(found(&code), Ok(vec![(7, 5, 0)]));
    // The same from afar: the number is left where it is.
    let far = [&[0xe9, 5, 0, 0, 0][..], &call(41), &[0x48, 0x89, 0xc7, RETURN]].concat();
    assert_eq!(found(&far), Ok(vec![(10, 5, 0)]));
}

#[test]
fn a_short_branch_comes_from_before_what_is_no_code() {
    // jmp to the syscall, over a table and functions; mov; syscall; mov %rax,%rdi; ret
    let between = [&[0x06; 60][..], &OTHER.repeat(5)].concat();
    let jump = [0xeb, between.len() as u8 + 5];
    let code = [&jump[..], &between, &call(41), &[0x48, 0x89, 0xc7, RETURN]].concat();
    assert_eq!(found(&code), Ok(vec![(between.len() + 7, 5, 0)]));
}

#[test]
fn a_call_that_a_linker_has_made_is_one() {
    // addr32 call, over a distance with these bytes; mov; syscall; ret
    let code = [&[0x67, 0xe8, 0x0f, 0x05, 0x00, 0x00][..], &call(41), &[RETURN]].concat();
    assert_eq!(found(&code), Ok(vec![(6, 5, 5)]));
}

#[test]
fn what_looks_like_a_branch_may_be_part_of_an_instruction_well_before() {
    // mov $12,%eax; a call over a distance with the bytes of `jne 0x73`; functions; mov %esi,%eax; syscall; cmp $-4096,%rax; jbe
    let mut code = vec![0xb8, 0x0c, 0, 0, 0, 0xe8, 0x75, 0x73, 0x03, 0x00];
    code.extend(OTHER.repeat(8));
    code.extend([0x31, 0xc9, 0x31, 0xd2, 0xf4]);
    let at = code.len();
    code.extend([0x89, 0xf0, 0x0f, 0x05, 0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff, 0x76, 0xf0, RETURN]);
    assert_eq!((6 + 2 + 0x73) - at, 12, "it leads behind the window's beginning");
    code[7] -= 6;
    assert_eq!(found(&code), Ok(vec![(at + 2, 8, 0)]));
}

#[test]
fn all_its_neighbours_are_led_to() {
    // jmp to the syscall; mov; syscall; ret: there is nothing else.
    let code = [&[0xeb, 5][..], &call(41), &[RETURN]].concat();
    assert_eq!(found(&code), Err(Refusal::Neighbours(7)));
    // For what says nothing of a descriptor, that is as good.
    let mut two = [&[0xeb, 5][..], &call(202), &[RETURN]].concat();
    two.extend(call(41));
    two.push(RETURN);
    assert_eq!(found(&two), Err(Refusal::Neighbours(7)), "the number may be another one");
}

/// `mov $41,%eax; syscall`, what is behind, and behind four hundred bytes `jne` to a place of these.
fn led_to_from_afar(behind: &[u8], place: i32) -> Vec<u8> {
    let mut code = [&call(41)[..], behind].concat();
    code.extend([0x90; 400]);
    let end = code.len() as i32 + 6;
    code.extend([0x0f, 0x85]);
    code.extend((place - end).to_le_bytes());
    code.push(RETURN);
    code
}

#[test]
fn a_far_branch_leads_into_a_window() {
    assert_eq!(found(&led_to_from_afar(&[RETURN], 0)), Ok(vec![(0, 5, 5)]));
    // To the syscall: nothing before it may be moved, and what is behind is too short, or not.
    assert_eq!(found(&led_to_from_afar(&[RETURN], 5)), Err(Refusal::Neighbours(5)));
    assert_eq!(found(&led_to_from_afar(&[0x48, 0x89, 0xc7, RETURN], 5)), Ok(vec![(5, 5, 0)]));
    assert_eq!(found(&led_to_from_afar(&[0x48, 0x89, 0xc7, RETURN], 7)), Ok(vec![(0, 5, 5)]));
}

#[test]
fn bytes_of_other_instructions_are_none() {
    // mov $0x5050f,%ecx; mov; syscall; ret
    let code = [&[0xb9, 0x0f, 0x05, 0x05, 0x00][..], &call(41), &[RETURN]].concat();
    assert_eq!(found(&code), Ok(vec![(5, 5, 5)]));
    // Tables among code, which compilers do not make: of bytes that are no instruction, or odd ones.
    let table = [0x06, 0x0f, 0x05, 0x27].repeat(40);
    assert!(matches!(found(&[&table[..], &call(41), &[RETURN]].concat()), Err(Refusal::Unclear(_))));
}

#[test]
fn programs_that_are_left_alone() {
    // mov $15,%rax; syscall: alone it is nothing to be led.
    let returns = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05, RETURN];
    assert_eq!(found(&returns), Err(Refusal::None));
    assert_eq!(found(&[]), Err(Refusal::None));
}

#[test]
fn programs_that_use_the_register_of_the_librarys_are_left_alone() {
    let with = |bytes: &[u8]| found(&[&call(41)[..], bytes, &[RETURN]].concat());
    // arch_prctl: mov; syscall; ret. mov $0x1001,%edi; mov %rax,%rsi; call arch_prctl, and another function.
    let calls = |by: i8| {
        let own = [0xbf, 0x01, 0x10, 0, 0, 0x48, 0x89, 0xc6, 0xe8, (-21 + by) as u8, 0xff, 0xff, 0xff];
        with(&[&call(158)[..], &[RETURN], &own].concat())
    };
    assert_eq!(calls(0), Err(Refusal::Gs(16)));
    assert_eq!(calls(-7), Ok(vec![(0, 5, 5), (7, 5, 5)]));
    // mov $0x1001,%esi; mov $158,%edi
    assert_eq!(with(&[0xbe, 0x01, 0x10, 0, 0, 0xbf, 158, 0, 0, 0]), Err(Refusal::Gs(8)));
    // wrgsbase %rax, and %ecx.
    assert_eq!(with(&[0xf3, 0x48, 0x0f, 0xae, 0xd8]), Err(Refusal::Gs(9)));
    assert_eq!(with(&[0xf3, 0x0f, 0xae, 0xd9]), Err(Refusal::Gs(8)));
    // mov $0x1001,%edi, as malloc(3) is given; rdgsbase; a fence: not so.
    for other in [&[0xbf, 0x01, 0x10, 0, 0][..], &[0xf3, 0x48, 0x0f, 0xae, 0xc8], &[0x0f, 0xae, 0xf0]] {
        assert_eq!(with(other), Ok(vec![(0, 5, 5)]));
    }
}

#[test]
fn where_threads_are_cancelled() {
    // mov 16(%rsp),%rax; mov %r11,8(%rsp); syscall; ret
    let code = [0x48, 0x8b, 0x44, 0x24, 0x10, 0x4c, 0x89, 0x5c, 0x24, 0x08, 0x0f, 0x05, RETURN];
    let (text, start) = text(&[&code[..], &call(41), &[RETURN]].concat());
    let found = windows([&text[..]].into_iter()).unwrap();
    let said: Vec<_> =
        found.all().iter().map(|found| (found.at as usize - start, found.is_cancellable)).collect();
    assert_eq!(said, [(5, true), (13, false)]);
}

#[test]
fn any_bytes_may_come() {
    let mut state = 7u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..2000 {
        let mut code: Vec<u8> = (0..40).map(|_| random() as u8).collect();
        code.extend(call(41));
        code.extend((0..40).map(|_| random() as u8));
        let (text, _) = text(&code);
        let Ok(found) = windows([&text[..]].into_iter()) else { continue };
        let mut end = 0;
        for window in found.all() {
            let start = window.at as usize;
            let instruction = start + usize::from(window.instruction_at);
            assert!(start >= end && (5..=WINDOW_MAX).contains(&usize::from(window.len)));
            assert_eq!(text[instruction..instruction + 2], [0x0f, 0x05]);
            end = (start + usize::from(window.len)).max(instruction + 2);
            assert!(instruction >= start && end <= text.len());
        }
    }
}
