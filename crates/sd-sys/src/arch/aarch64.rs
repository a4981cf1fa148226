//! aarch64, with 64-bit pointers, little-endian. It has run in an emulator of a user's programs, not on such a processor.

use crate::thread::{self, Block, Record};
use core::arch::asm;
use core::sync::atomic::AtomicU32;

/// `arch` of seccomp's data (`AUDIT_ARCH_AARCH64`).
pub const AUDIT_ARCH: u32 = 0xC000_00B7;
/// `e_machine` of programs (elf(5)).
pub const ELF_MACHINE: u64 = 183;
/// Where the first six arguments of a function are in what a probe is given (`struct user_pt_regs`, asm/ptrace.h): bytes from its start.
pub const ARGUMENT_OFFSETS: [i16; 6] = [0, 8, 16, 24, 32, 40];
/// Where its result is.
pub const RESULT_OFFSET: i16 = 0;
/// Where `struct _IO_FILE` of glibc keeps the number that fileno(3) returns: after `_flags` (padded to 8), eleven buffer
/// pointers, `_markers` and `_chain`.
pub const FILENO_OFFSET: usize = 8 + 11 * 8 + 2 * 8;
/// So many lower bits of [`ticks`] come round in about a tenth of a second, where it counts nanoseconds; the older clocks of
/// 24 to 62 MHz take some times as long.
pub const TENTH_OF_SECOND_BITS: u32 = 24;
/// So many bits of [`ticks`] are finer than what the time-stamps of messages need.
pub const STAMP_STEP_BITS: u32 = 2;
/// poll(2): there is ppoll(2) only.
pub const POLL: Option<i64> = None;
/// select(2): there is pselect6(2) only.
pub const SELECT: Option<i64> = None;
/// epoll_wait(2): there is epoll_pwait(2) only.
pub const EPOLL_WAIT: Option<i64> = None;

/// Issues system call `nr` with six arguments; unused ones are ignored by the kernel.
///
/// # Safety
/// The caller vouches for the call: pointers among the arguments must be valid for what the
/// kernel does with them, and the call's effect on the process must be sound.
#[inline(always)]
pub unsafe fn syscall6(nr: i64, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
    let ret: isize;
    // SAFETY: the kernel's calling convention: it keeps all registers but x0.
    unsafe {
        asm!("svc #0", in("x8") nr, inlateout("x0") a => ret, in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack));
    }
    ret
}

/// The processor's clock: the virtual counter.
#[inline(always)]
pub fn ticks() -> u64 {
    let now: u64;
    // SAFETY: reads a register that the kernel lets everybody read.
    unsafe { asm!("mrs {}, cntvct_el0", out(reg) now, options(nomem, nostack, preserves_flags)) };
    now
}

/// How fast [`ticks`] goes, where the processor says so.
pub fn ticks_per_second() -> Option<u64> {
    let rate: u64;
    // SAFETY: reads a register that the kernel lets everybody read.
    unsafe { asm!("mrs {}, cntfrq_el0", out(reg) rate, options(pure, nomem, nostack, preserves_flags)) };
    Some(rate).filter(|rate| *rate != 0)
}

/// A full fence: no store before it and no load after it change places.
#[inline(always)]
pub fn fence_full() {
    // SAFETY: a barrier.
    unsafe { asm!("dmb ish", options(nostack, preserves_flags)) };
}

/// A full fence for who has changed an atomic since what it keeps apart: here such a change is none.
#[inline(always)]
pub fn fence_after_change() {
    fence_full();
}

/// Asks for the cache line of an address, to be written soon. It may be any address.
#[inline(always)]
pub fn fetch_for_writing(at: *const u8) {
    // SAFETY: a hint, which never faults and changes nothing.
    unsafe { asm!("prfm pstl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly)) };
}

/// Asks for the cache line of an address, to be read soon. It may be any address.
#[inline(always)]
pub fn fetch_for_reading(at: *const u8) {
    // SAFETY: a hint, which never faults and changes nothing.
    unsafe { asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly)) };
}

/// Reads eight bytes that a peer may be writing.
///
/// # Safety
/// They can be read, at any alignment.
#[inline(always)]
pub unsafe fn load8(src: *const u8) -> u64 {
    let word: u64;
    // SAFETY: eight readable bytes, any alignment.
    unsafe { asm!("ldr {}, [{}]", out(reg) word, in(reg) src, options(nostack, preserves_flags, readonly)) };
    word
}

/// Writes eight bytes that a peer may be reading.
///
/// # Safety
/// They can be written, at any alignment.
#[inline(always)]
pub unsafe fn store8(dst: *mut u8, word: u64) {
    // SAFETY: eight writable bytes, any alignment.
    unsafe { asm!("str {}, [{}]", in(reg) word, in(reg) dst, options(nostack, preserves_flags)) };
}

/// Copies many bytes; either side may be shared with a peer.
///
/// # Safety
/// Both ranges are mapped and do not overlap; the destination can be written.
#[inline]
pub unsafe fn copy_string(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: by contract: 32 bytes at a time while there are as many, then one at a time.
    unsafe {
        asm!("cmp {len}, #32", "b.lo 3f",
            "2:", "ldp {a}, {b}, [{src}], #16", "ldp {c}, {d}, [{src}], #16",
            "stp {a}, {b}, [{dst}], #16", "stp {c}, {d}, [{dst}], #16",
            "sub {len}, {len}, #32", "cmp {len}, #32", "b.hs 2b",
            "3:", "cbz {len}, 5f",
            "4:", "ldrb {a:w}, [{src}], #1", "strb {a:w}, [{dst}], #1", "subs {len}, {len}, #1", "b.ne 4b",
            "5:",
            len = inout(reg) len => _, src = inout(reg) src => _, dst = inout(reg) dst => _,
            a = out(reg) _, b = out(reg) _, c = out(reg) _, d = out(reg) _, options(nostack));
    }
}

/// The top of the stack.
#[inline(always)]
pub fn stack_pointer() -> usize {
    let stack: usize;
    // SAFETY: copies a register.
    unsafe { asm!("mov {}, sp", out(reg) stack, options(nomem, nostack, preserves_flags)) };
    stack
}

/// Adds to a counter, modulo 2^32, so that a handler of a signal may come in between, but without a lock; the value before.
///
/// # Safety
/// No other thread changes the counter now.
#[inline(always)]
pub unsafe fn add_unlocked(counter: &AtomicU32, value: u32) -> u32 {
    let before: u32;
    // SAFETY: by contract. A handler in between ends the exclusive state, and the loop begins anew.
    unsafe {
        asm!("2:", "ldxr {before:w}, [{at}]", "add {sum:w}, {before:w}, {value:w}",
            "stxr {failed:w}, {sum:w}, [{at}]", "cbnz {failed:w}, 2b",
            at = in(reg) counter.as_ptr(), value = in(reg) value, before = out(reg) before, sum = out(reg) _,
            failed = out(reg) _, options(nostack, preserves_flags));
    }
    before
}

/// The calling thread's block.
#[inline(always)]
pub fn block() -> *const Block {
    let at: *const Block;
    // SAFETY: reads the thread pointer and the block's offset from it.
    unsafe {
        asm!("adrp {offset}, :gottprel:sd_thread", "ldr {offset}, [{offset}, :gottprel_lo12:sd_thread]",
            "mrs {at}, tpidr_el0", "add {at}, {at}, {offset}",
            at = out(reg) at, offset = out(reg) _, options(pure, nomem, nostack, preserves_flags));
    }
    at
}

/// The calling thread's record.
#[inline(always)]
pub fn record() -> *const Record {
    let record;
    // SAFETY: reads the thread's own word.
    unsafe {
        asm!("ldr {record}, [{block}, #{place}]", record = out(reg) record, block = in(reg) block(),
            place = const thread::RECORD, options(pure, readonly, nostack, preserves_flags));
    }
    record
}

/// Changes which record is the calling thread's.
#[inline(always)]
pub fn set_record(record: *const Record) {
    // SAFETY: writes the thread's own word.
    unsafe {
        asm!("str {record}, [{block}, #{place}]", record = in(reg) record, block = in(reg) block(),
            place = const thread::RECORD, options(nostack, preserves_flags));
    }
}

/// One section more, so that a handler may come in between.
#[inline(always)]
pub fn section_enter() {
    // SAFETY: the thread's own word, the block's first; a handler in between ends the exclusive state, and the loop
    // begins anew.
    unsafe {
        asm!("2:", "ldxr {count:w}, [{at}]", "add {count:w}, {count:w}, #1", "stxr {failed:w}, {count:w}, [{at}]",
            "cbnz {failed:w}, 2b",
            at = in(reg) block(), count = out(reg) _, failed = out(reg) _, options(nostack, preserves_flags));
    }
}

/// One section less; `due` runs where the highest bit of their number is set.
#[inline(always)]
pub fn section_leave(due: impl FnOnce()) {
    // SAFETY: as for `section_enter`.
    unsafe {
        asm!("2:", "ldxr {count:w}, [{at}]", "sub {count:w}, {count:w}, #1", "stxr {failed:w}, {count:w}, [{at}]",
            "cbnz {failed:w}, 2b", "tbz {count:w}, #31, 3f", "b {due}", "3:",
            at = in(reg) block(), count = out(reg) _, failed = out(reg) _, due = label { due() },
            options(nostack, preserves_flags));
    }
}
const _: () = assert!(thread::SECTION == 0);

/// In a naked function: goes on in another function, with all arguments, and with what the caller left on the stack.
#[macro_export]
macro_rules! jump_to {
    ($to:path) => {
        ::core::arch::naked_asm!("b {}", sym $to)
    };
}

/// In a naked function without arguments: goes on in the function whose address another one returns.
#[macro_export]
macro_rules! jump_to_chosen {
    ($choose:path) => {
        ::core::arch::naked_asm!(
            "stp x29, x30, [sp, #-16]!",
            "bl {}",
            "ldp x29, x30, [sp], #16",
            "mov x16, x0",
            "br x16",
            sym $choose
        )
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
                "adrp x9, :gottprel:sd_thread",
                "ldr x9, [x9, :gottprel_lo12:sd_thread]",
                "mrs x10, tpidr_el0",
                "add x9, x9, x10",
                "ldr w10, [x9, #{section}]",
                "cbz w10, 2f",
                // The kernel says where these are only to handlers that want them; they lie where the stack ends (arch/arm64/kernel/signal.c,
                // `struct rt_sigframe`), what is known of the signal being 128 bytes.
                "mov x1, sp",
                "add x2, sp, #128",
                "b {inside}",
                // Bit `signal` of two words of 64.
                "2:",
                "lsr w10, w0, #6",
                "add x9, x9, #{handled}",
                "add x9, x9, x10, lsl #3",
                "mov x10, #1",
                "lsl x10, x10, x0",
                "3:",
                "ldxr x11, [x9]",
                "orr x11, x11, x10",
                "stxr w12, x11, [x9]",
                "cbnz w12, 3b",
                "adrp x9, {handlers}",
                "add x9, x9, :lo12:{handlers}",
                "ldr x9, [x9, w0, uxtw #3]",
                "br x9",
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
            ".balign 4",
            ".hidden rust_eh_personality",
            ".globl rust_eh_personality",
            ".type rust_eh_personality,@function",
            "rust_eh_personality:",
            "brk #1",
            ".popsection",
        );
    };
}

/// See x86-64; here nobody has looked where musl has them.
pub fn follows_itself() -> bool {
    false
}
