//! x86-64.

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

/// The calling thread's block.
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

/// The calling thread's record.
#[inline(always)]
pub fn record() -> *const Record {
    let record;
    // SAFETY: reads the thread's own word.
    unsafe {
        asm!("mov {record}, qword ptr [rip + sd_thread@GOTTPOFF]", "mov {record}, qword ptr fs:[{record} + {place}]",
            record = out(reg) record, place = const thread::RECORD, options(pure, readonly, nostack, preserves_flags));
    }
    record
}

/// Changes which record is the calling thread's.
#[inline(always)]
pub fn set_record(record: *const Record) {
    // SAFETY: writes the thread's own word.
    unsafe {
        asm!("mov {at}, qword ptr [rip + sd_thread@GOTTPOFF]", "mov qword ptr fs:[{at} + {place}], {record}",
            at = out(reg) _, record = in(reg) record, place = const thread::RECORD,
            options(nostack, preserves_flags));
    }
}

/// One section more, by one instruction, which a handler cannot come into.
#[inline(always)]
pub fn section_enter() {
    // SAFETY: the thread's own word.
    unsafe {
        asm!("mov {at}, qword ptr [rip + sd_thread@GOTTPOFF]", "inc dword ptr fs:[{at} + {place}]",
            at = out(reg) _, place = const thread::SECTION, options(nostack));
    }
}

/// One section less; `due` runs where the highest bit of their number is set.
#[inline(always)]
pub fn section_leave(due: impl FnOnce()) {
    // SAFETY: as for `section_enter`.
    unsafe {
        asm!("mov rax, qword ptr [rip + sd_thread@GOTTPOFF]", "dec dword ptr fs:[rax + {place}]", "js {due}",
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
                "mov rax, qword ptr [rip + sd_thread@GOTTPOFF]",
                "cmp dword ptr fs:[rax + {section}], 0",
                "jne {inside}",
                "bts qword ptr fs:[rax + {handled}], rdi",
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

/// What [`site_entry!`](crate::site_entry) keeps at the top of a thread's own stack, and what it gives to `answer`.
#[derive(Debug)]
#[repr(C, align(16))]
pub struct Top {
    /// The caller's stack pointer.
    pub stack_pointer: usize,
    /// Not 0: the stack is in use.
    pub level: u32,
}

/// A system call as the program's instruction would have made it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Call {
    /// Which one.
    pub number: i64,
    /// Its arguments.
    pub args: [usize; 6],
    /// Where the instruction stands now, and the caller goes on behind it.
    pub instruction: usize,
}

/// `answer` of [`site_entry!`](crate::site_entry) says: make the call by the instruction, on the caller's stack. No result of a system call.
pub const CALLER_MAKES_IT: isize = -0x10000;
/// The length of a stack of [`site_entry!`](crate::site_entry), with all that is at its ends.
pub const STACK_LEN: usize = 256 << 10;
/// So many numbers of system calls `site_entry` knows; higher ones are the kernel's.
pub const NUMBERS: usize = 512;

/// Defines where a program's own `syscall` instructions are led to: `entry`.
///
/// All registers are as for the instruction, and rcx, which it would change, is the address of such an instruction, behind which
/// is the way back. Numbers that `passes` marks go there at once. For others it changes to the thread's own stack,
/// which the first of them makes, and returns what `answer` says. While that runs, calls of the thread's (a handler of a
/// signal makes some) go to the kernel. As with the instruction, nothing is written to the caller's stack, and every
/// register is kept but rax, rcx, r11. Vector registers are not kept, as Go has them: of no use after a call, and xmm15 zero.
#[macro_export]
macro_rules! site_entry {
    ($entry:ident, answer: $answer:path, begin: $begin:path, passes: $passes:path) => {
        #[unsafe(naked)]
        unsafe extern "C" fn $entry() {
            ::core::arch::naked_asm!(
                "cmp rax, {numbers}",
                "jae 3f",
                "lea r11, [rip + {passes}]",
                "cmp byte ptr [r11 + rax], 0",
                "jne 3f",
                "mov r11, qword ptr [rip + sd_thread@GOTTPOFF]",
                "mov r11, qword ptr fs:[r11 + {stack}]",
                "test r11, r11",
                "jz 4f",
                "cmp dword ptr [r11 + {level}], 0",
                "jne 3f",
                "mov dword ptr [r11 + {level}], 1",
                "mov qword ptr [r11 + {stack_pointer}], rsp",
                "mov rsp, r11",
                // A `Call`, in the order of its fields from below.
                "push rcx",
                "push r9",
                "push r8",
                "push r10",
                "push rdx",
                "push rsi",
                "push rdi",
                "push rax",
                "2:",
                "mov rdi, rsp",
                "call {answer}",
                "pop r11",
                "pop rdi",
                "pop rsi",
                "pop rdx",
                "pop r10",
                "pop r8",
                "pop r9",
                "pop rcx",
                "xorps xmm15, xmm15",
                "cmp rax, {caller_makes_it}",
                "je 5f",
                // The caller's stack first: a handler that comes in between must not find the other one free.
                "mov r11, rsp",
                "mov rsp, qword ptr [r11 + {stack_pointer}]",
                "mov dword ptr [r11 + {level}], 0",
                "add rcx, {instruction_len}",
                "3:",
                "jmp rcx",
                "5:",
                "mov rax, r11",
                "mov r11, rsp",
                "mov rsp, qword ptr [r11 + {stack_pointer}]",
                "mov dword ptr [r11 + {level}], 0",
                "jmp rcx",
                // The thread has no stack yet. Its registers wait in vector registers, since there is nowhere else.
                "4:",
                "movq xmm0, rax",
                "movq xmm1, rdi",
                "movq xmm2, rsi",
                "movq xmm3, rdx",
                "movq xmm4, r10",
                "movq xmm5, r8",
                "movq xmm6, r9",
                "movq xmm7, rcx",
                "mov eax, {mmap}",
                "xor edi, edi",
                "mov esi, {stack_len}",
                "mov edx, {read_write}",
                "mov r10d, {private}",
                "mov r8, -1",
                "xor r9d, r9d",
                "syscall",
                "lea r11, [rax + {top}]",
                "cmp rax, -4096",
                "movq rax, xmm0",
                "movq rdi, xmm1",
                "movq rsi, xmm2",
                "movq rdx, xmm3",
                "movq r10, xmm4",
                "movq r8, xmm5",
                "movq r9, xmm6",
                "movq rcx, xmm7",
                "ja 6f",
                "mov dword ptr [r11 + {level}], 1",
                "mov qword ptr [r11 + {stack_pointer}], rsp",
                "mov rsp, r11",
                "push rcx",
                "push r9",
                "push r8",
                "push r10",
                "push rdx",
                "push rsi",
                "push rdi",
                "push rax",
                "mov rdi, r11",
                "call {begin}",
                "jmp 2b",
                "6:",
                "mov rax, {no_memory}",
                "xorps xmm15, xmm15",
                "add rcx, {instruction_len}",
                "jmp rcx",
                numbers = const $crate::arch::NUMBERS,
                passes = sym $passes,
                stack = const $crate::thread::STACK,
                level = const ::core::mem::offset_of!($crate::arch::Top, level),
                stack_pointer = const ::core::mem::offset_of!($crate::arch::Top, stack_pointer),
                answer = sym $answer,
                begin = sym $begin,
                caller_makes_it = const $crate::arch::CALLER_MAKES_IT,
                instruction_len = const 2,
                mmap = const ::libc::SYS_mmap,
                stack_len = const $crate::arch::STACK_LEN,
                read_write = const ::libc::PROT_READ | ::libc::PROT_WRITE,
                private = const ::libc::MAP_PRIVATE | ::libc::MAP_ANONYMOUS | ::libc::MAP_NORESERVE | ::libc::MAP_STACK,
                top = const $crate::arch::STACK_LEN - ::core::mem::size_of::<$crate::arch::Top>(),
                no_memory = const -::libc::ENOMEM,
            )
        }
    };
}

/// Defines the functions of the C++ ABI's unwinder, hidden: `_Unwind_Backtrace` says `end_of_stack`, all others trap.
#[macro_export]
macro_rules! unwinder {
    ($end_of_stack:expr, $others:literal) => {
        ::core::arch::global_asm!(
            ".pushsection .text.sd_unwind,\"ax\",@progbits",
            ".hidden _Unwind_Backtrace",
            ".globl _Unwind_Backtrace",
            ".type _Unwind_Backtrace,@function",
            "_Unwind_Backtrace:",
            "mov eax, {end_of_stack}",
            "ret",
            concat!(".irp name, ", $others),
            ".hidden _Unwind_\\name",
            ".globl _Unwind_\\name",
            ".type _Unwind_\\name,@function",
            "_Unwind_\\name:",
            ".endr",
            "ud2",
            ".popsection",
            end_of_stack = const $end_of_stack,
        );
    };
}
