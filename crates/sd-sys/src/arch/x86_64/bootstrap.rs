//! What a new program executes first to map a library into itself, as instructions that are copied to it.
//!
//! They know no address and need no memory but the stack. A table of *steps* says what is to be done ([`Step`]); each is a system call, or
//! something that has to be done between them. The first one that fails ends in the program's own beginning, as if nothing had been.
//!
//! | register | at the first instruction |
//! |---|---|
//! | rsp | the program's |
//! | r12 | the [`Head`] |
//! | r15 | the steps |

use core::arch::global_asm;
use core::mem::offset_of;

/// What concerns all steps.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Head {
    /// Where the program begins.
    pub program: u64,
    /// How much is given back after a failure, in bytes, of what [`Step::GIVES_BASE`] has mapped.
    pub len: u64,
    /// The last step gives it to the library.
    pub page: u64,
}

/// One step. All zeros are a call of read(2).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Step {
    /// Of a system call, or one of the constants below.
    pub number: i64,
    /// rdi, rsi, rdx, r10.
    pub arguments: [u64; 4],
    /// r9: for mmap(2).
    pub offset: u64,
    /// Of the flags below.
    pub flags: u64,
}

impl Step {
    /// Goes to the library, at the first argument, with rdi the second and rdx the third one, rsi the base and rcx [`Head::page`].
    pub const END: i64 = -1;
    /// Sets bytes to zero from the first argument on, as many as the second says.
    pub const CLEAR: i64 = -2;
    /// Fails if bytes from the first argument on, as many as the second says, are not those at the third.
    pub const COMPARE: i64 = -3;
    /// The first argument counts from the base.
    pub const FROM_BASE: u64 = 1;
    /// r8 is the descriptor; else it is -1.
    pub const OF_DESCRIPTOR: u64 = 2;
    /// The first argument is the descriptor.
    pub const TAKES_DESCRIPTOR: u64 = 4;
    /// The result is the descriptor.
    pub const GIVES_DESCRIPTOR: u64 = 8;
    /// The result is the base.
    pub const GIVES_BASE: u64 = 16;
}

global_asm!(
    ".pushsection .text.sd_bootstrap,\"ax\",@progbits",
    ".globl sd_bootstrap",
    ".hidden sd_bootstrap",
    ".globl sd_bootstrap_end",
    ".hidden sd_bootstrap_end",
    "sd_bootstrap:",
    // The base and the descriptor.
    "xor r14d, r14d",
    "mov r13, -1",
    "2:",
    "mov rax, qword ptr [r15]",
    "mov rdi, qword ptr [r15 + 8]",
    "mov rsi, qword ptr [r15 + 16]",
    "mov rdx, qword ptr [r15 + 24]",
    "mov r10, qword ptr [r15 + 32]",
    "mov r9, qword ptr [r15 + {offset}]",
    "mov rbx, qword ptr [r15 + {flags}]",
    "add r15, {step}",
    "mov r8, -1",
    "test bl, {from_base}",
    "jz 3f",
    "add rdi, r14",
    "3:",
    "test bl, {of_descriptor}",
    "cmovnz r8, r13",
    "test bl, {takes_descriptor}",
    "cmovnz rdi, r13",
    "test rax, rax",
    "js 4f",
    "syscall",
    "cmp rax, -4095",
    "jae 7f",
    "test bl, {gives_descriptor}",
    "cmovnz r13, rax",
    "test bl, {gives_base}",
    "cmovnz r14, rax",
    "jmp 2b",
    "4:",
    "mov rcx, rsi",
    "cmp rax, {clear}",
    "ja 6f",
    "jb 5f",
    "xor eax, eax",
    "rep stosb",
    "jmp 2b",
    "5:",
    "mov rsi, rdx",
    "repe cmpsb",
    "je 2b",
    "jmp 7f",
    // The library begins.
    "6:",
    "mov rax, rdi",
    "mov rdi, rsi",
    "mov rsi, r14",
    "mov rcx, qword ptr [r12 + {page}]",
    "jmp 9f",
    // The program begins.
    "7:",
    "mov edi, r13d",
    "mov eax, {close}",
    "test edi, edi",
    "js 8f",
    "syscall",
    "8:",
    "mov rdi, r14",
    "mov rsi, qword ptr [r12 + {len}]",
    "mov eax, {munmap}",
    "test rdi, rdi",
    "jz 8f",
    "syscall",
    "8:",
    "mov rax, qword ptr [r12 + {program}]",
    "xor edi, edi",
    "xor esi, esi",
    "xor edx, edx",
    "xor ecx, ecx",
    "9:",
    "mov qword ptr [rsp - 8], rax",
    "xor eax, eax",
    ".irp register, ebx, ebp, r8d, r9d, r10d, r11d, r12d, r13d, r14d, r15d",
    "xor \\register, \\register",
    ".endr",
    "jmp qword ptr [rsp - 8]",
    "sd_bootstrap_end:",
    ".popsection",
    offset = const offset_of!(Step, offset),
    flags = const offset_of!(Step, flags),
    step = const size_of::<Step>(),
    from_base = const Step::FROM_BASE,
    of_descriptor = const Step::OF_DESCRIPTOR,
    takes_descriptor = const Step::TAKES_DESCRIPTOR,
    gives_descriptor = const Step::GIVES_DESCRIPTOR,
    gives_base = const Step::GIVES_BASE,
    clear = const Step::CLEAR,
    page = const offset_of!(Head, page),
    len = const offset_of!(Head, len),
    program = const offset_of!(Head, program),
    close = const libc::SYS_close,
    munmap = const libc::SYS_munmap,
);

unsafe extern "C" {
    safe static sd_bootstrap: u8;
    safe static sd_bootstrap_end: u8;
}

/// The instructions.
pub fn bootstrap() -> &'static [u8] {
    let (start, end) = (&raw const sd_bootstrap, &raw const sd_bootstrap_end);
    // SAFETY: the text from above, which nobody changes.
    unsafe { core::slice::from_raw_parts(start, end as usize - start as usize) }
}
