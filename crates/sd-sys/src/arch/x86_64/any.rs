//! How the system calls of static programs that were not made for this (C, Rust) come to the library; what they share with Go's is in `sites`.

use super::sites::Call;

/// What `any_entry!` gives to `answer`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct AnyCall {
    /// The call.
    pub call: Call,
    /// The stack of the library's that this runs on, or zero.
    own_stack: usize,
    /// The caller's, which is taken up when the call has been answered.
    pub stack_pointer: usize,
}

/// `answer` of `any_entry!` says: make the call that begins a thread, at the other instruction. No result of a system call.
pub const CALLER_MAKES_THREAD: isize = -0x10001;
/// So far before an island's instruction stands the one for [`CALLER_MAKES_THREAD`].
pub const THREAD_LEN: u32 = 20;

/// A system call that the program makes, and which the thread may be cancelled in: it is not made, or ends, with EINTR then.
/// See [`end_program_call`].
///
/// # Safety
/// As for [`syscall6`](super::syscall6).
#[cfg(sd_freestanding)]
#[unsafe(naked)]
pub unsafe extern "C" fn program_call6(
    nr: i64,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    ::core::arch::naked_asm!(
        ".globl sd_program_call",
        ".hidden sd_program_call",
        "sd_program_call:",
        "cmp word ptr gs:[{cancel}], {cancelled}",
        "je 2f",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, qword ptr [rsp + 8]",
        "syscall",
        ".globl sd_program_call_end",
        ".hidden sd_program_call_end",
        "sd_program_call_end:",
        "ret",
        ".globl sd_program_call_cancelled",
        ".hidden sd_program_call_cancelled",
        "sd_program_call_cancelled:",
        "2:",
        "mov rax, {interrupted}",
        "ret",
        cancel = const crate::thread::CANCEL,
        cancelled = const crate::thread::CANCELLED,
        interrupted = const -libc::EINTR,
    )
}

#[cfg(sd_freestanding)]
unsafe extern "C" {
    static sd_program_call: u8;
    static sd_program_call_end: u8;
    static sd_program_call_cancelled: u8;
    static sd_any_work: u8;
}

/// Where a thread goes on that is to be cancelled, and that a signal has found at `place`: the same, but for one in [`program_call6`] whose
/// call has not come to its end.
#[cfg(sd_freestanding)]
pub fn end_program_call(place: usize) -> usize {
    let (begin, end) = (&raw const sd_program_call as usize, &raw const sd_program_call_end as usize);
    if (begin..end).contains(&place) { &raw const sd_program_call_cancelled as usize } else { place }
}

/// Whether a place is in `any_entry!`, which begins at `entry`, before it has changed anything.
#[cfg(sd_freestanding)]
pub fn is_before_work(entry: usize, place: usize) -> bool {
    (entry..&raw const sd_any_work as usize).contains(&place)
}

/// Defines where the calls go of programs that were not made for this (C): `entry`.
///
/// As [`site_entry!`](crate::site_entry), but for what such code expects: vector registers are kept, too; below the stack pointer 128 bytes are the
/// caller's (the red zone), and the library runs on the caller's stack below these, so a handler that comes meanwhile may call
/// here again. A child that begins on a small stack, and all threads of a program that is Go's too, have one of the library's ([`STACK`](crate::thread::STACK)). `begin`
/// makes the block of a thread that has none; zero: there is no memory. Calls that `passes` says a thread to end by go to `end`.
#[cfg(sd_freestanding)]
#[macro_export]
macro_rules! any_entry {
    ($entry:ident, answer: $answer:path, begin: $begin:path, end: $end:path, passes: $passes:path, table: $table:path, table_len: $table_len:expr) => {
        #[unsafe(naked)]
        unsafe extern "C" fn $entry() {
            ::core::arch::naked_asm!(
                $crate::jump_by_number!(passes: "3f", looks: "9f"),
                "cmp byte ptr [r11 + rax], {ends}",
                "je {end}",
                $crate::jump_if_nobodys!("3f"),
                "jmp 9f",
                "3:",
                "jmp rcx",
                // Up to here the caller's registers are as they were, but for rcx and r11.
                ".globl sd_any_work",
                ".hidden sd_any_work",
                "sd_any_work:",
                "9:",
                concat!("mov r11, qword ptr ", $crate::thread_word!("r11", "{stack}")),
                "test r11, r11",
                "jz 23f",
                "cmp dword ptr [r11 + {level}], 0",
                "je 4f",
                "23:",
                "lea r11, [rsp - 128]",
                "xchg r11, rsp",
                "and rsp, -16",
                "push r11",
                "push 0",
                "jmp 20f",
                // While that stack is in use, handlers that call here run on theirs.
                "4:",
                "mov dword ptr [r11 + {level}], 1",
                "xchg r11, rsp",
                "push r11",
                "lea r11, [rsp + 8]",
                "push r11",
                "20:",
                $crate::push_call!(),
                "sub rsp, 256",
                ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
                "movaps xmmword ptr [rsp + 16 * \\n], xmm\\n",
                ".endr",
                concat!("cmp qword ptr ", $crate::thread_word!("r11", "{own}"), ", 0"),
                "jne 5f",
                "call {begin}",
                "test eax, eax",
                "mov rax, {no_memory}",
                "jz 6f",
                "5:",
                "lea rdi, [rsp + 256]",
                "call {answer}",
                "6:",
                ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
                "movaps xmm\\n, xmmword ptr [rsp + 16 * \\n]",
                ".endr",
                "add rsp, 256",
                $crate::pop_call!(),
                "cmp rax, {caller_makes_thread}",
                "je 7f",
                "cmp rax, {caller_makes_it}",
                "je 8f",
                "mov r11, qword ptr [rsp]",
                "mov rsp, qword ptr [rsp + 8]",
                "add rcx, {instruction_len}",
                "test r11, r11",
                "jz 3b",
                "mov dword ptr [r11 + {level}], 0",
                "jmp rcx",
                "7:",
                "sub rcx, {thread_len}",
                "8:",
                "mov rax, qword ptr [rsp]",
                "mov rsp, qword ptr [rsp + 8]",
                "test rax, rax",
                "jz 21f",
                "mov dword ptr [rax + {level}], 0",
                "21:",
                "mov rax, r11",
                "jmp rcx",
                numbers = const $crate::arch::NUMBERS,
                passes = sym $passes,
                passes_it = const $crate::arch::PASSES,
                ends = const $crate::arch::ENDS,
                table = sym $table,
                table_len = const $table_len,
                stack = const $crate::thread::STACK,
                level = const ::core::mem::offset_of!($crate::arch::Top, level),
                own = const $crate::thread::OWN,
                answer = sym $answer,
                begin = sym $begin,
                end = sym $end,
                caller_makes_it = const $crate::arch::CALLER_MAKES_IT,
                caller_makes_thread = const $crate::arch::CALLER_MAKES_THREAD,
                thread_len = const $crate::arch::THREAD_LEN,
                instruction_len = const 2,
                no_memory = const -::libc::ENOMEM,
            )
        }
    };
}
