//! What differs between processors: all assembly of the library, and constants of the kernel's that each architecture has
//! its own value of. Nothing else in the library asks for `target_arch` but for rows of system calls that only some
//! architectures have.
//!
//! x86-64 is what the project runs on. aarch64 is written and checked by the compiler (`cargo xtask ci`), and its words are
//! tried under an emulator now and then; nobody has run the library there.
//!
//! Each file has the same names: [`syscall6`]; [`ticks`] and [`ticks_per_second`]; [`fence_full`], [`fence_after_change`]; [`fetch_for_writing`], [`fetch_for_reading`],
//! [`load8`], [`store8`] and [`copy_string`] for memory that a peer may write; [`stack_pointer`]; [`add_unlocked`]; the words
//! of a thread ([`block`], [`record`], [`set_record`], [`section_enter`], [`section_leave`]); [`follows_itself`]; and, for `sd-preload`, the macros
//! `jump_to!`, `jump_to_chosen!`, `handler_entry!`, `personality!` and `libc_names!`. x86-64 has `site_entry!` besides, for programs that make system calls by
//! an instruction of their own.

#[cfg(not(sd_freestanding))]
use crate::thread::{Block, NOBODY, RECORD};
#[cfg(not(sd_freestanding))]
use core::arch::global_asm;

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

/// Miri knows no assembly, and finds out whether the ranges are what callers say.
#[cfg(miri)]
mod plain;
#[cfg(miri)]
pub use plain::{
    copy_string, fence_after_change, fence_full, fetch_for_reading, fetch_for_writing, load8, store8,
};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!(
    "SocksDirect knows x86-64 and aarch64; another architecture needs a file in crates/sd-sys/src/arch"
);
#[cfg(not(target_os = "linux"))]
compile_error!("SocksDirect runs on Linux");

// The block of each thread. Its words start as zero, but for the record.
#[cfg(not(sd_freestanding))]
global_asm!(
    ".pushsection .tdata,\"awT\",@progbits",
    ".hidden sd_thread",
    ".globl sd_thread",
    ".type sd_thread,@object",
    ".balign 64",
    "sd_thread:",
    ".zero {before}",
    ".quad {nobody}",
    ".zero {after}",
    ".size sd_thread, {len}",
    ".popsection",
    before = const RECORD,
    nobody = sym NOBODY,
    after = const size_of::<Block>() - RECORD - 8,
    len = const size_of::<Block>(),
);

/// Defines `sd_libc_names`, of type [`Names`](crate::libcs::Names): weak, so that a libc that lacks one can load the library.
#[macro_export]
macro_rules! libc_names {
    () => {
        ::core::arch::global_asm!(
            ".weak __libc_single_threaded",
            ".weak __register_atfork",
            ".weak __sysconf",
            ".weak gnu_get_libc_version",
            ".pushsection .data.rel.ro.sd_libc_names,\"aw\",@progbits",
            ".hidden sd_libc_names",
            ".globl sd_libc_names",
            ".type sd_libc_names,@object",
            ".balign 8",
            "sd_libc_names:",
            ".quad __libc_single_threaded",
            ".quad __register_atfork",
            ".quad __sysconf",
            ".quad gnu_get_libc_version",
            ".size sd_libc_names, 32",
            ".popsection",
        );
    };
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn words_and_strings_are_copied() {
        let from: Vec<u8> = (0..4096u32).map(|i| (i * 7 + 3) as u8).collect();
        for len in [0, 1, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 200, 1000, 4000] {
            for shift in [0, 1, 5, 8] {
                let mut to = vec![0xAAu8; 4200];
                // SAFETY: both vectors are large enough.
                unsafe { super::copy_string(to.as_mut_ptr().add(shift), from.as_ptr().add(shift), len) };
                assert_eq!(&to[shift..shift + len], &from[shift..shift + len]);
                assert!(to[..shift].iter().chain(&to[shift + len..]).all(|byte| *byte == 0xAA));
            }
        }
        let mut word = [0u8; 9];
        super::fetch_for_writing(word.as_ptr());
        // SAFETY: eight bytes from the second on.
        unsafe { super::store8(word.as_mut_ptr().add(1), super::load8(from.as_ptr().add(3))) };
        assert_eq!(word[1..], from[3..11]);
    }

    #[test]
    fn a_counter_is_added_to() {
        let counter = AtomicU32::new(u32::MAX);
        // SAFETY: no other thread knows it.
        let before =
            [unsafe { super::add_unlocked(&counter, 3) }, unsafe { super::add_unlocked(&counter, 1) }];
        assert_eq!((before, counter.load(Ordering::Relaxed)), ([u32::MAX, 2], 3));
    }

    #[test]
    fn ticks_pass_and_the_stack_is_where_it_is() {
        let (first, here) = (super::ticks(), 0u64);
        std::thread::sleep(core::time::Duration::from_millis(2));
        super::fence_full();
        assert!(super::ticks() > first);
        assert!((&raw const here as usize).wrapping_sub(super::stack_pointer()) < 1 << 16);
    }
}
