//! x86-64.

mod any;
mod apart;
mod bootstrap;
mod sites;

pub use any::*;
pub use apart::*;
pub use bootstrap::*;
pub use sites::*;

use crate::thread::{self, Block, Record};
use core::arch::asm;
use core::sync::atomic::AtomicU32;

/// `arch` of seccomp's data (`AUDIT_ARCH_X86_64`).
pub const AUDIT_ARCH: u32 = 0xC000_003E;
/// `e_machine` of programs (elf(5)).
pub const ELF_MACHINE: u64 = 62;
/// Where the first six arguments of a function are in what a probe is given (`struct pt_regs`, asm/ptrace.h): bytes from its start.
pub const ARGUMENT_OFFSETS: [i16; 6] = [112, 104, 96, 88, 72, 64];
/// Where its result is.
pub const RESULT_OFFSET: i16 = 80;
/// Where `struct _IO_FILE` of glibc keeps the number that fileno(3) returns: after `_flags` (padded to 8), eleven buffer
/// pointers, `_markers` and `_chain`.
pub const FILENO_OFFSET: usize = 8 + 11 * 8 + 2 * 8;
/// So many lower bits of [`ticks`] come round in about a tenth of a second.
pub const TENTH_OF_SECOND_BITS: u32 = 28;
/// So many bits of [`ticks`] are finer than what the time-stamps of messages need.
pub const STAMP_STEP_BITS: u32 = 5;
/// poll(2).
pub const POLL: Option<i64> = Some(libc::SYS_poll);
/// select(2).
pub const SELECT: Option<i64> = Some(libc::SYS_select);
/// epoll_wait(2).
pub const EPOLL_WAIT: Option<i64> = Some(libc::SYS_epoll_wait);

/// Issues system call `nr` with six arguments; unused ones are ignored by the kernel.
///
/// # Safety
/// The caller vouches for the call: pointers among the arguments must be valid for what the
/// kernel does with them, and the call's effect on the process must be sound.
#[inline(always)]
pub unsafe fn syscall6(nr: i64, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
    let ret: isize;
    // SAFETY: the kernel's calling convention; rcx and r11 are clobbered by the instruction.
    unsafe {
        asm!("syscall", inlateout("rax") nr as isize => ret,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    ret
}

/// The processor's clock: the time-stamp counter.
#[inline(always)]
pub fn ticks() -> u64 {
    // SAFETY: rdtsc has no preconditions in user space.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// How fast [`ticks`] goes, where the processor says so: this one does not, everywhere.
pub fn ticks_per_second() -> Option<u64> {
    None
}

/// A full fence: no store before it and no load after it change places.
///
/// A `lock`-prefixed read-modify-write of the stack; `mfence` costs ten times as much.
#[cfg(not(miri))]
#[inline(always)]
pub fn fence_full() {
    // SAFETY: adds zero to the word at the top of the stack, in which nothing changes.
    unsafe {
        asm!("lock or dword ptr [rsp], 0");
    }
}

/// A full fence for who has changed an atomic since what it keeps apart: here such a change is one, and only the compiler is told.
#[cfg(not(miri))]
#[inline(always)]
pub fn fence_after_change() {
    core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
}

/// Asks for the cache line of an address, to be written soon. It may be any address.
#[cfg(not(miri))]
#[inline(always)]
pub fn fetch_for_writing(at: *const u8) {
    // SAFETY: a hint, which never faults and changes nothing.
    unsafe { asm!("prefetchw [{}]", in(reg) at, options(nostack, preserves_flags, readonly)) };
}

/// Asks for the cache line of an address, to be read soon. It may be any address.
#[cfg(not(miri))]
#[inline(always)]
pub fn fetch_for_reading(at: *const u8) {
    // SAFETY: a hint, which never faults and changes nothing.
    unsafe { asm!("prefetcht0 [{}]", in(reg) at, options(nostack, preserves_flags, readonly)) };
}

/// Reads eight bytes that a peer may be writing.
///
/// # Safety
/// They can be read, at any alignment.
#[cfg(not(miri))]
#[inline(always)]
pub unsafe fn load8(src: *const u8) -> u64 {
    let word: u64;
    // SAFETY: eight readable bytes, any alignment.
    unsafe {
        asm!("mov {}, qword ptr [{}]", out(reg) word, in(reg) src,
            options(nostack, preserves_flags, readonly));
    }
    word
}

/// Writes eight bytes that a peer may be reading.
///
/// # Safety
/// They can be written, at any alignment.
#[cfg(not(miri))]
#[inline(always)]
pub unsafe fn store8(dst: *mut u8, word: u64) {
    // SAFETY: eight writable bytes, any alignment.
    unsafe { asm!("mov qword ptr [{}], {}", in(reg) dst, in(reg) word, options(nostack, preserves_flags)) };
}

/// Copies many bytes; either side may be shared with a peer.
///
/// # Safety
/// Both ranges are mapped and do not overlap; the destination can be written.
#[cfg(not(miri))]
#[inline]
pub unsafe fn copy_string(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: by contract; the direction flag is clear by the calling convention.
    unsafe {
        asm!("rep movsb", inout("rcx") len => _, inout("rdi") dst => _, inout("rsi") src => _,
            options(nostack, preserves_flags));
    }
}

/// As [`copy_string`], from the last byte on: the destination may begin within the source.
///
/// # Safety
/// Both ranges are mapped; the destination can be written.
#[cfg(sd_freestanding)]
pub unsafe fn copy_string_backwards(dst: *mut u8, src: *const u8, len: usize) {
    let (dst, src) = (dst.wrapping_add(len).wrapping_sub(1), src.wrapping_add(len).wrapping_sub(1));
    // SAFETY: by contract; the direction flag is cleared again.
    unsafe {
        asm!("std", "rep movsb", "cld", inout("rcx") len => _, inout("rdi") dst => _, inout("rsi") src => _,
            options(nostack));
    }
}

/// Writes the same byte many times.
///
/// # Safety
/// The range is mapped, and can be written.
#[cfg(sd_freestanding)]
pub unsafe fn fill_string(dst: *mut u8, byte: u8, len: usize) {
    // SAFETY: by contract; the direction flag is clear by the calling convention.
    unsafe {
        asm!("rep stosb", inout("rcx") len => _, inout("rdi") dst => _, in("al") byte,
            options(nostack, preserves_flags));
    }
}

/// At which of the first sixteen bytes a branch over a long distance may begin, `jmp` (e9) or `jcc` (0f 80 to 0f 8f): bit n for byte n.
#[inline(always)]
pub fn long_branches(bytes: &[u8; 17]) -> u32 {
    use core::arch::x86_64::{
        _mm_and_si128, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8,
    };
    // SAFETY: sixteen bytes each, at any alignment; every such processor has these instructions.
    unsafe {
        let is = |bytes, byte: u8| _mm_cmpeq_epi8(bytes, _mm_set1_epi8(byte as i8));
        let (these, next) =
            (_mm_loadu_si128(bytes.as_ptr().cast()), _mm_loadu_si128(bytes.as_ptr().add(1).cast()));
        let is_condition = is(_mm_and_si128(next, _mm_set1_epi8(0xf0u8 as i8)), 0x80);
        let all = _mm_or_si128(is(these, 0xe9), _mm_and_si128(is(these, 0x0f), is_condition));
        _mm_movemask_epi8(all) as u32
    }
}

/// Which of sixteen bytes may begin a branch over a distance of one byte: `70` to `7f`, `e0` to `e3`, `eb`. Bit n is the one at n.
#[inline(always)]
pub fn short_branches(bytes: &[u8; 16]) -> u32 {
    use core::arch::x86_64::{
        _mm_and_si128, _mm_cmpeq_epi8, _mm_loadu_si128, _mm_movemask_epi8, _mm_or_si128, _mm_set1_epi8,
    };
    // SAFETY: sixteen bytes, at any alignment; every such processor has these instructions.
    unsafe {
        let these = _mm_loadu_si128(bytes.as_ptr().cast());
        let all = |byte: u8| _mm_set1_epi8(byte as i8);
        let is = |mask: u8, byte: u8| _mm_cmpeq_epi8(_mm_and_si128(these, all(mask)), all(byte));
        let found = _mm_or_si128(_mm_or_si128(is(0xf0, 0x70), is(0xfc, 0xe0)), is(0xff, 0xeb));
        _mm_movemask_epi8(found) as u32
    }
}

/// The top of the stack.
#[inline(always)]
pub fn stack_pointer() -> usize {
    let stack: usize;
    // SAFETY: copies a register.
    unsafe { asm!("mov {}, rsp", out(reg) stack, options(nomem, nostack, preserves_flags)) };
    stack
}

/// Adds to a counter, modulo 2^32, by one instruction, which a handler of a signal cannot come into, but without a lock;
/// the value before.
///
/// # Safety
/// No other thread changes the counter now.
#[inline(always)]
pub unsafe fn add_unlocked(counter: &AtomicU32, mut value: u32) -> u32 {
    // SAFETY: by contract.
    unsafe {
        asm!("xadd dword ptr [{at}], {value:e}", at = in(reg) counter.as_ptr(), value = inout(reg) value,
            options(nostack));
    }
    value
}

/// In assembly: makes a register lead to the thread's words, for [`thread_word!`](crate::thread_word). Where libc makes the threads they are in
/// its thread-local storage, which FS leads to; else the library makes them, and GS leads to them.
#[cfg(not(sd_freestanding))]
#[macro_export]
macro_rules! to_thread {
    ($register:literal) => {
        concat!("mov ", $register, ", qword ptr [rip + sd_thread@GOTTPOFF]")
    };
}
/// In assembly: a word of the thread's, at a place in its block, where [`to_thread!`](crate::to_thread) has made a register lead there.
#[cfg(not(sd_freestanding))]
#[macro_export]
macro_rules! thread_word {
    ($register:literal, $place:literal) => {
        concat!("fs:[", $register, " + ", $place, "]")
    };
}
/// In assembly: makes a register lead to the thread's words: GS does so already.
#[cfg(sd_freestanding)]
#[macro_export]
macro_rules! to_thread {
    ($register:literal) => {
        concat!("# ", $register)
    };
}
/// In assembly: a word of the thread's, at a place in its block.
#[cfg(sd_freestanding)]
#[macro_export]
macro_rules! thread_word {
    ($register:literal, $place:literal) => {
        concat!("gs:[", $place, "]")
    };
}

/// The calling thread's block.
#[cfg(not(sd_freestanding))]
#[inline(always)]
pub fn block() -> *const Block {
    let at: *const Block;
    // SAFETY: reads the thread pointer and the block's offset from it.
    unsafe {
        asm!("mov {at}, qword ptr fs:[0]", "add {at}, qword ptr [rip + sd_thread@GOTTPOFF]",
            at = out(reg) at, options(pure, nomem, nostack));
    }
    at
}

/// The calling thread's block.
#[cfg(sd_freestanding)]
#[inline(always)]
pub fn block() -> *const Block {
    let at: *const Block;
    // SAFETY: the block's word that says where it is.
    unsafe {
        asm!("mov {at}, qword ptr gs:[{place}]", at = out(reg) at, place = const thread::OWN,
            options(pure, nomem, nostack, preserves_flags));
    }
    at
}

/// Makes GS lead to the calling thread's block.
///
/// # Safety
/// It is the thread's own, or nobody writes to it, and it stays. The kernel lets programs change GS (AT_HWCAP2, FSGSBASE).
#[cfg(sd_freestanding)]
#[inline(always)]
pub unsafe fn set_block(block: *const Block) {
    // SAFETY: by contract; nothing but this library uses GS.
    unsafe { asm!("wrgsbase {}", in(reg) block, options(nostack, preserves_flags)) };
}

/// What GS leads to.
///
/// # Safety
/// The kernel lets programs use GS (`FSGSBASE` of AT_HWCAP2).
#[cfg(not(sd_freestanding))]
#[inline]
pub unsafe fn gs() -> usize {
    let base;
    // SAFETY: by contract; it reads a register.
    unsafe { asm!("rdgsbase {}", out(reg) base, options(nostack, nomem, preserves_flags)) };
    base
}

/// The calling thread's record.
#[inline(always)]
pub fn record() -> *const Record {
    let record;
    // SAFETY: reads the thread's own word.
    unsafe {
        asm!(to_thread!("{record}"), concat!("mov {record}, qword ptr ", thread_word!("{record}", "{place}")),
            record = out(reg) record, place = const thread::RECORD, options(pure, readonly, nostack, preserves_flags));
    }
    record
}

/// Changes which record is the calling thread's.
#[inline(always)]
pub fn set_record(record: *const Record) {
    // SAFETY: writes the thread's own word.
    unsafe {
        asm!(to_thread!("{at}"), concat!("mov qword ptr ", thread_word!("{at}", "{place}"), ", {record}"),
            at = out(reg) _, record = in(reg) record, place = const thread::RECORD,
            options(nostack, preserves_flags));
    }
}

/// One section more, by one instruction, which a handler cannot come into.
#[inline(always)]
pub fn section_enter() {
    // SAFETY: the thread's own word.
    unsafe {
        asm!(to_thread!("{at}"), concat!("inc dword ptr ", thread_word!("{at}", "{place}")),
            at = out(reg) _, place = const thread::SECTION, options(nostack));
    }
}

/// One section less; `due` runs where the highest bit of their number is set.
#[inline(always)]
pub fn section_leave(due: impl FnOnce()) {
    // SAFETY: as for `section_enter`.
    unsafe {
        asm!(to_thread!("rax"), concat!("dec dword ptr ", thread_word!("rax", "{place}")), "js {due}",
            out("rax") _, place = const thread::SECTION, due = label { due() }, options(nostack));
    }
}

/// In a naked function: goes on in another function, with all arguments, and with what the caller left on the stack.
#[macro_export]
macro_rules! jump_to {
    ($to:path) => {
        ::core::arch::naked_asm!("jmp {}", sym $to)
    };
}

/// In a naked function without arguments: goes on in the function whose address another one returns.
#[macro_export]
macro_rules! jump_to_chosen {
    ($choose:path) => {
        ::core::arch::naked_asm!("sub rsp, 8", "call {}", "add rsp, 8", "jmp rax", sym $choose)
    };
}

/// Defines what the kernel calls instead of the program's handlers: `entry`. Outside of sections it notes the signal and goes
/// on in the handler of that signal of the array `handlers`, else in `inside`, always by a jump, which leaves no frame.
#[macro_export]
macro_rules! handler_entry {
    ($entry:ident, $inside:path, $handlers:path) => {
        #[unsafe(naked)]
        unsafe extern "C" fn $entry(
            _: ::core::ffi::c_int,
            _: *mut ::libc::siginfo_t,
            _: *mut ::libc::ucontext_t,
        ) {
            ::core::arch::naked_asm!(
                $crate::to_thread!("rax"),
                concat!("cmp dword ptr ", $crate::thread_word!("rax", "{section}"), ", 0"),
                "jne {inside}",
                concat!("bts qword ptr ", $crate::thread_word!("rax", "{handled}"), ", rdi"),
                "mov eax, edi",
                "lea rcx, [rip + {handlers}]",
                "jmp qword ptr [rcx + 8 * rax]",
                section = const $crate::thread::SECTION,
                handled = const $crate::thread::HANDLED,
                inside = sym $inside,
                handlers = sym $handlers,
            )
        }
    };
}

/// Defines, hidden, what the tables of the standard library's own code name. Nothing here unwinds.
#[macro_export]
macro_rules! personality {
    () => {
        ::core::arch::global_asm!(
            ".pushsection .text.sd_unwind,\"ax\",@progbits",
            ".hidden rust_eh_personality",
            ".globl rust_eh_personality",
            ".type rust_eh_personality,@function",
            "rust_eh_personality:",
            "ud2",
            ".popsection",
        );
    };
}

/// Whether the calling thread is the next one of itself, in the words that musl (1.2) has at the thread pointer: itself, a table, the
/// thread before and the one behind it.
#[inline(always)]
pub fn follows_itself() -> bool {
    let (own, next): (usize, usize);
    // SAFETY: reads two words of the calling thread's.
    unsafe {
        asm!("mov {own}, qword ptr fs:[0]", "mov {next}, qword ptr fs:[24]", own = out(reg) own, next = out(reg) next,
            options(nostack, preserves_flags, readonly));
    }
    own == next
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::{long_branches, short_branches};

    #[test]
    fn short_branches_begin_with_these_bytes() {
        for first in 0..16u8 {
            let bytes: [u8; 16] = core::array::from_fn(|n| first * 16 + n as u8);
            let begins = |byte: &u8| matches!(byte, 0x70..=0x7f | 0xe0..=0xe3 | 0xeb);
            let wanted = (0..16).filter(|n| begins(&bytes[*n])).fold(0, |bits, n| bits | 1 << n);
            assert_eq!(short_branches(&bytes), wanted, "{first}");
        }
    }

    #[test]
    fn long_branches_begin_where_they_do() {
        let mut state = 1u64;
        for _ in 0..20_000 {
            let bytes: [u8; 17] = core::array::from_fn(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                // Many of the few that matter.
                [0xe9, 0x0f, 0x80, 0x8f, 0x7f, 0x90, 0x0e, state as u8][(state >> 32) as usize % 8]
            });
            let begins =
                |at: &usize| bytes[*at] == 0xe9 || bytes[*at] == 0x0f && bytes[at + 1] & 0xf0 == 0x80;
            let all = (0..16).filter(begins).fold(0, |all, at| all | 1 << at);
            assert_eq!(long_branches(&bytes), all, "{bytes:02x?}");
        }
    }
}
