//! What becomes of the system calls of programs that were not made for the library: islands, run.
#![cfg(target_arch = "x86_64")]

#[path = "../src/sites/island.rs"]
#[allow(dead_code)]
mod island;
#[path = "../src/sites/moved.rs"]
mod moved;

use island::{JUMP_LEN, jump};
use moved::{PLACE_LEN, WORDS_LEN, Words, build};
use sd_attach::windows::Window;

const PAGE: usize = 4096;

/// Two pages next to each other: a text, and its islands.
fn pages() -> *mut u8 {
    let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping.
    let pages = unsafe { libc::mmap(std::ptr::null_mut(), 2 * PAGE, protection, flags, -1, 0) };
    assert_ne!(pages, libc::MAP_FAILED);
    pages.cast()
}

/// What a function returns, whose window is led to an entry with this code, before and behind.
fn led_to(entry: &[u8], function: &[u8], window: Window) -> i64 {
    let text = pages();
    let islands = text.wrapping_add(PAGE);
    let place = islands as usize + WORDS_LEN;
    let code_at = islands.wrapping_add(PAGE / 2);
    let mut code = [0xcc; PLACE_LEN];
    // SAFETY: pages of code, which keep what the calling convention says.
    unsafe {
        text.copy_from_nonoverlapping(function.as_ptr(), function.len());
        code_at.copy_from_nonoverlapping(entry.as_ptr(), entry.len());
        // What is Go's has the last word as its entry.
        let (entry, other) = (code_at as usize, 8);
        let words = if window.is_gos { [other, 0x1234_5000, entry] } else { [entry, 0x1234_5000, other] };
        islands.cast::<Words>().write(words);
        let bytes = std::slice::from_raw_parts(text, function.len()).to_vec();
        build(&mut code, place, window, (text as usize, &bytes), islands as usize, window.is_gos).unwrap();
        (place as *mut [u8; PLACE_LEN]).write(code);
        let from = text.wrapping_add(window.at as usize);
        let jump: [u8; JUMP_LEN] = jump(from as usize, place).unwrap();
        from.cast::<[u8; JUMP_LEN]>().write(jump);
        let function: extern "C" fn() -> i64 = std::mem::transmute(text);
        function()
    }
}

const fn window(at: u32, len: u8, instruction_at: u8) -> Window {
    Window { text: 0, len, instruction_at, at, is_cancellable: false, is_gos: false }
}

/// jmp *%rcx
const TO_KERNEL: [u8; 2] = [0xff, 0xe1];
/// mov $42,%eax; add $2,%rcx; jmp *%rcx
const ANSWERS: [u8; 11] = [0xb8, 42, 0, 0, 0, 0x48, 0x83, 0xc1, 0x02, 0xff, 0xe1];

#[test]
fn neighbours_do_what_they_did() {
    let parent = i64::from(std::os::unix::process::parent_id());
    // getppid, then: mov %rax,%rdi; lea 1(%rdi),%rax; ret
    let behind = [0xb8, 110, 0, 0, 0, 0x0f, 0x05, 0x48, 0x89, 0xc7, 0x48, 0x8d, 0x47, 0x01, 0xc3];
    // mov number(%rip),%eax; syscall; jmp to `ret`; int3; ret; the number
    let distances = [0x8b, 0x05, 6, 0, 0, 0, 0x0f, 0x05, 0xeb, 1, 0xcc, 0xc3, 110, 0, 0, 0];
    // mov; syscall; test %eax,%eax; jns to `ret`; int3; ret
    let condition = [0xb8, 110, 0, 0, 0, 0x0f, 0x05, 0x85, 0xc0, 0x79, 1, 0xcc, 0xc3];
    // mov; syscall; call the next function; ret. It: add $1,%rax; ret
    let call = [0xb8, 110, 0, 0, 0, 0x0f, 0x05, 0xe8, 1, 0, 0, 0, 0xc3, 0x48, 0x83, 0xc0, 0x01, 0xc3];
    let cases: [(&[u8], Window, i64); 8] = [
        (&behind, window(0, 7, 5), 1),
        (&behind, window(0, 5, 5), 1),
        (&distances, window(0, 6, 6), 0),
        (&behind, window(5, 5, 0), 1),
        (&behind, window(0, 14, 5), 1),
        (&distances, window(0, 10, 6), 0),
        (&condition, window(5, 6, 0), 0),
        (&call, window(5, 7, 0), 1),
    ];
    for (function, window, more) in cases {
        for window in [window, Window { is_gos: true, ..window }] {
            assert_eq!(led_to(&TO_KERNEL, function, window), parent + more, "{window:?}");
            assert_eq!(led_to(&ANSWERS, function, window), 42 + more, "{window:?}");
        }
    }
}

/// GS in the child and in the parent of a clone that is made at the island's other instruction; the child tells by its exit status.
#[test]
fn a_new_thread_forgets_whose_block_it_has() {
    // mov $SIGCHLD,%edi; xor %esi,%esi; xor %edx,%edx; xor %r10,%r10; xor %r8,%r8; mov $56,%eax; syscall; ret
    let function = [
        0xbf, 17, 0, 0, 0, 0x31, 0xf6, 0x31, 0xd2, 0x4d, 0x31, 0xd2, 0x4d, 0x31, 0xc0, 0xb8, 56, 0, 0, 0,
        0x0f, 0x05, 0xc3,
    ];
    // sub $20,%rcx; jmp *%rcx
    let begins = [0x48, 0x83, 0xe9, sd_sys::arch::THREAD_LEN as u8, 0xff, 0xe1];
    let gs = || {
        let mut base = 0usize;
        const ARCH_GET_GS: i32 = 0x1004;
        // SAFETY: the kernel writes a word.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_GET_GS, &raw mut base) };
        base
    };
    let child = led_to(&begins, &function, window(15, 7, 5)) as i32;
    // SAFETY: the child ends at once; an integer to be written.
    unsafe {
        if child == 0 {
            libc::_exit(i32::from(gs() == 0x1234_5000));
        }
        let mut status = 0;
        assert_eq!((libc::waitpid(child, &mut status, 0), gs()), (child, 0));
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 1);
    }
}
