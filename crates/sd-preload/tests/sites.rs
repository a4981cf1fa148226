//! What becomes of the system calls of Go programs.
#![cfg(target_arch = "x86_64")]

#[path = "../src/sites/island.rs"]
mod island;

use island::{ISLAND_LEN, JUMP_LEN, build, jump};
use sd_attach::sites::Kind;

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
        Kind::Number(number) => [&[0xb8][..], &number.to_le_bytes(), &[0x0f, 0x05]].concat(),
        // The instruction stays.
        Kind::Any => [kind.replaced(), &[0x0f, 0x05]].concat(),
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

/// GS in the child and in the parent of a clone that is led to its island; the child tells by its
/// exit status.
#[test]
fn a_new_thread_forgets_whose_block_it_has() {
    // mov $SIGCHLD,%edi; xor %esi,%esi; xor %edx,%edx; xor %r10,%r10; xor %r8,%r8
    let begin = [0xbf, 17, 0, 0, 0, 0x31, 0xf6, 0x31, 0xd2, 0x4d, 0x31, 0xd2, 0x4d, 0x31, 0xc0];
    let at = page(&[&begin[..], Kind::Clone.replaced(), &[0xc3]].concat());
    let island = page(&[]);
    let from = at.wrapping_add(begin.len());
    let mut code = [0xcc; ISLAND_LEN];
    build(&mut code, island as usize, from as usize, Kind::Clone, 0x1234_5000).unwrap();
    let jump = jump(from as usize, island as usize).unwrap();
    let gs = || {
        let mut base = 0usize;
        const ARCH_GET_GS: i32 = 0x1004;
        // SAFETY: the kernel writes a word.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_GET_GS, &raw mut base) };
        base
    };
    // SAFETY: pages of code, which keep what the calling convention says but for the child, which ends at once.
    unsafe {
        island.cast::<[u8; ISLAND_LEN]>().write(code);
        from.cast::<[u8; JUMP_LEN]>().write(jump);
        let clone: extern "C" fn() -> i32 = std::mem::transmute(at);
        let child = clone();
        if child == 0 {
            libc::_exit(i32::from(gs() == 0x1234_5000));
        }
        let mut status = 0;
        assert_eq!((libc::waitpid(child, &mut status, 0), gs()), (child, 0));
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 1);
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
