//! How system calls that a program makes by an instruction of its own come to the library, and how the library comes into a program
//! that no dynamic linker loads it into.

#[cfg(doc)]
use crate::thread;
use crate::thread::Block;

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
/// In `passes` of `site_entry!` and `any_entry!`: it goes to the kernel as it is.
pub const PASSES: u8 = 1;
/// See [`PASSES`]: the thread ends. Of `any_entry!` only.
pub const ENDS: u8 = 2;
/// See [`PASSES`]: so it does where its first argument is a number that is nobody's in the table of descriptors.
pub const PASSES_NOBODYS: u8 = 3;
/// The length of a stack of [`site_entry!`](crate::site_entry), with all that is at its ends.
pub const STACK_LEN: usize = 256 << 10;
/// Where on it the [`Top`] is. A thread that libc does not make has its block above.
pub const TOP_AT: usize =
    STACK_LEN - size_of::<Top>() - if cfg!(sd_freestanding) { size_of::<Block>() } else { 0 };
/// So many numbers of system calls `site_entry` knows; higher ones are the kernel's.
pub const NUMBERS: usize = 512;

/// In assembly: a [`Call`] on the stack, in the order of its fields from below.
#[macro_export]
macro_rules! push_call {
    () => {
        "push rcx
        push r9
        push r8
        push r10
        push rdx
        push rsi
        push rdi
        push rax"
    };
}
/// In assembly: takes a [`Call`] off the stack, its number to r11: rax has the answer.
#[macro_export]
macro_rules! pop_call {
    () => {
        "pop r11
        pop rdi
        pop rsi
        pop rdx
        pop r10
        pop r8
        pop r9
        pop rcx"
    };
}

/// In assembly of [`site_entry!`](crate::site_entry): changes to the stack below the [`Top`] at r11, and leaves a [`Call`] there.
#[macro_export]
macro_rules! to_site_stack {
    () => {
        concat!(
            "mov dword ptr [r11 + {level}], 1
            mov qword ptr [r11 + {stack_pointer}], rsp
            mov rsp, r11
            ",
            $crate::push_call!()
        )
    };
}

/// In assembly: jumps by what `passes` has for the number in rax: to `passes` if the call goes to the kernel as it is, to `looks` if it is to be looked at.
/// Of another kind: goes on, with r11 at `passes`. Changes r11.
#[macro_export]
macro_rules! jump_by_number {
    (passes: $passes:literal, looks: $looks:literal) => {
        concat!(
            "cmp rax, {numbers}
            jae ",
            $passes,
            "
            lea r11, [rip + {passes}]
            cmp byte ptr [r11 + rax], {passes_it}
            jb ",
            $looks,
            "
            je ",
            $passes
        )
    };
}

/// In assembly: jumps if there is no table of descriptors, or it has no word, or zero, for the number in edi; changes r11. The upper half of rdi is the
/// caller's: numbers with something there are left to others.
#[macro_export]
macro_rules! jump_if_nobodys {
    ($to:literal) => {
        concat!(
            "cmp edi, {table_len}
            jae ",
            $to,
            "
            cmp rdi, {table_len}
            jae 22f
            mov r11, qword ptr [rip + {table}]
            test r11, r11
            jz ",
            $to,
            "
            cmp qword ptr [r11 + rdi * 8], 0
            je ",
            $to,
            "
            22:"
        )
    };
}

/// Defines where a program's own `syscall` instructions are led to: `entry`.
///
/// All registers are as for the instruction, and rcx, which it would change, is the address of such an instruction, behind which
/// is the way back. Numbers that `passes` marks go there at once; some of them where the table of words at `table`, of `table_len` or none, has zero for the
/// descriptor. For others it changes to the thread's own stack,
/// which the first of them makes, and returns what `answer` says. While that runs, calls of the thread's (a handler of a
/// signal makes some) go to the kernel. As with the instruction, nothing is written to the caller's stack, and every
/// register is kept but rax, rcx, r11. Vector registers are not kept, as Go has them: of no use after a call, and xmm15 zero.
#[macro_export]
macro_rules! site_entry {
    ($entry:ident, answer: $answer:path, begin: $begin:path, passes: $passes:path, table: $table:path, table_len: $table_len:expr) => {
        #[unsafe(naked)]
        unsafe extern "C" fn $entry() {
            ::core::arch::naked_asm!(
                $crate::jump_by_number!(passes: "3f", looks: "7f"),
                $crate::jump_if_nobodys!("3f"),
                "7:",
                $crate::to_thread!("r11"),
                concat!("mov r11, qword ptr ", $crate::thread_word!("r11", "{stack}")),
                "test r11, r11",
                "jz 4f",
                "cmp dword ptr [r11 + {level}], 0",
                "jne 3f",
                $crate::to_site_stack!(),
                "2:",
                "mov rdi, rsp",
                "call {answer}",
                $crate::pop_call!(),
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
                $crate::to_site_stack!(),
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
                passes_it = const $crate::arch::PASSES,
                table = sym $table,
                table_len = const $table_len,
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
                top = const $crate::arch::TOP_AT,
                no_memory = const -::libc::ENOMEM,
            )
        }
    };
}

/// Defines where the thread ends that its program's runtime has made (exit(2)): `entry`, which never returns.
///
/// A thread that has a stack of the library's goes there first, since its own may be used by others already. `ended` returns where the mapping
/// begins that the stack is in, which is unmapped when nothing is left to be done on it. The program has blocked all signals.
#[cfg(sd_freestanding)]
#[macro_export]
macro_rules! exit_entry {
    ($entry:ident, ended: $ended:path) => {
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $entry() {
            ::core::arch::naked_asm!(
                concat!("mov r11, qword ptr ", $crate::thread_word!("r11", "{own}")),
                "test r11, r11",
                "jz 2f",
                "mov rbx, rdi",
                "lea rsp, [r11 - {top_len}]",
                "call {ended}",
                "mov rdi, rax",
                "mov esi, {stack_len}",
                "mov eax, {munmap}",
                "syscall",
                "mov rdi, rbx",
                "2:",
                "mov eax, {exit}",
                "syscall",
                "ud2",
                own = const $crate::thread::OWN,
                top_len = const ::core::mem::size_of::<$crate::arch::Top>(),
                stack_len = const $crate::arch::STACK_LEN,
                munmap = const ::libc::SYS_munmap,
                exit = const ::libc::SYS_exit,
                ended = sym $ended,
            )
        }
    };
}

/// Defines the library's entry, `sd_start`, where a tracer makes a program begin instead of at its own: moves the addresses in the library to
/// where it is mapped (DT_RELA, of which only R_X86_64_RELATIVE are there), calls `start`, and goes on where that says, with the registers
/// that the kernel gives to a program.
///
/// | register | |
/// |---|---|
/// | rdi | the tracer's process id |
/// | rsi | where the library is mapped |
/// | rcx | the page with the instructions that have mapped it |
/// | rsp | as the kernel gave it to the program |
#[cfg(sd_freestanding)]
#[macro_export]
macro_rules! library_entry {
    ($start:path) => {
        ::core::arch::global_asm!(
            ".pushsection .text.sd_start,\"ax\",@progbits",
            ".globl sd_start",
            ".type sd_start,@function",
            "sd_start:",
            "mov rbx, rsp",
            "mov r12, rdi",
            "mov r13, rcx",
            // Executed itself: nobody has said where it is.
            "test rdi, rdi",
            "jnz 1f",
            "lea rsi, [rip + __ehdr_start]",
            "1:",
            "lea rax, [rip + _DYNAMIC]",
            "xor ecx, ecx",
            "xor edx, edx",
            "2:",
            "mov r8, qword ptr [rax]",
            "test r8, r8",
            "jz 3f",
            "cmp r8, {rela}",
            "cmove rcx, qword ptr [rax + 8]",
            "cmp r8, {rela_size}",
            "cmove rdx, qword ptr [rax + 8]",
            "add rax, 16",
            "jmp 2b",
            "3:",
            "add rcx, rsi",
            "add rdx, rcx",
            "4:",
            "cmp rcx, rdx",
            "jae 5f",
            "mov r8, qword ptr [rcx]",
            "mov r9, qword ptr [rcx + 16]",
            "add r9, rsi",
            "mov qword ptr [rsi + r8], r9",
            "add rcx, 24",
            "jmp 4b",
            "5:",
            "mov rdi, r12",
            "mov rsi, rbx",
            "mov rdx, r13",
            "and rsp, -16",
            "call {start}",
            "mov rsp, rbx",
            ".irp register, ebx, ecx, edx, esi, edi, ebp, r8d, r9d, r10d, r11d, r12d, r13d, r14d, r15d",
            "xor \\register, \\register",
            ".endr",
            "jmp rax",
            ".popsection",
            rela = const 7,
            rela_size = const 8,
            start = sym $start,
        );
    };
}
