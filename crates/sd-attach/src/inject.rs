//! What the tracer does to the new program.
//!
//! ```text
//!  stop in execve(2)      all signals are blocked
//!  end of execve(2)       it has its registers; nothing of it has run
//!  openat, mmap: all of it without access, mmap: each segment, close
//!  rip = entry; signals as before; let go
//! ```
//! Whatever fails, the program begins as it would have.

use crate::elf::ENTRY_LEN;
use crate::library::{Library, PAGE, Segment};
use crate::program::without_libc;
use crate::ptrace::Tracee;
use libc::user_regs_struct;
use sd_sys::{Errno, Result, check, fd};

/// `cs` of 64-bit code.
const CODE_SEGMENT: u64 = 0x33;
/// What the program's first page of stack, and what a function may use below it, is far from.
const BELOW_STACK: u64 = 4 * PAGE;
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// More than the vDSO has.
const VDSO_PAGES: u64 = 4;

/// At [`Stop::Exec`](crate::ptrace::Stop): the program begins with the library, or as if nothing had been. `path` is
/// the library's.
pub(crate) fn begin_with(tracee: Tracee, library: &Library, path: &[u8]) {
    if let Ok(mask) = tracee.mask()
        && tracee.set_mask(u64::MAX).is_ok()
    {
        // It has been left as it was.
        let _ = tracee.go_to_boundary().and_then(|()| start(tracee, library, path));
        let _ = tracee.set_mask(mask);
    }
    tracee.let_go();
}

/// At the end of execve(2).
fn start(tracee: Tracee, library: &Library, path: &[u8]) -> Result<()> {
    let first = tracee.registers()?;
    let program = Program { tracee, first, syscall_at: find_syscall(tracee, &first)? };
    let mapped = program.map(library, path);
    let registers = mapped.map(|base| user_regs_struct {
        rip: base + library.entry,
        rdi: fd::getpid() as u64,
        rsi: base,
        rdx: library.len,
        ..first
    });
    tracee.set_registers(registers.as_ref().unwrap_or(&first))
}

/// Where a `syscall` instruction is in the program: the vDSO has some, for what it cannot do itself (vdso(7)). An
/// error also where the program is one to be left alone.
fn find_syscall(tracee: Tracee, first: &user_regs_struct) -> Result<u64> {
    let (mut vdso, mut header_len, mut linker) = (0, 0, 0);
    let mut is_ours = first.cs == CODE_SEGMENT;
    auxiliary(tracee, first.rsp, |key, value| match key {
        libc::AT_SYSINFO_EHDR => vdso = value,
        libc::AT_PHENT => header_len = value,
        libc::AT_BASE => linker = value,
        // Whether the program has got rights.
        libc::AT_SECURE => is_ours &= value == 0,
        _ => {}
    })?;
    is_ours &= linker == 0 || needs_no_library(tracee);
    if !is_ours || header_len != ENTRY_LEN as u64 || vdso == 0 {
        return Err(Errno::ENOSYS);
    }
    let mut page = [0; PAGE as usize];
    for at in (0..VDSO_PAGES).map(|n| vdso + n * PAGE) {
        let len = tracee.read(at, &mut page)?;
        let found = page.get(..len).and_then(|page| page.windows(2).position(|pair| pair == SYSCALL));
        if let Some(place) = found {
            return Ok(at + place as u64);
        }
    }
    Err(Errno::ENOSYS)
}

/// Whether a program that has a dynamic linker is without libc all the same.
fn needs_no_library(tracee: Tracee) -> bool {
    let mut path = [0; _];
    let file = fd::open_to_read(sd_sys::rights::name(&mut path, tracee.0, b"/exe"));
    file.is_ok_and(|file| without_libc(file.raw()).is_some())
}

/// The auxiliary vector, on a new program's stack: argc, arguments, 0, environment, 0, pairs up to one with key 0
/// (getauxval(3)).
fn auxiliary(tracee: Tracee, stack: u64, mut each: impl FnMut(u64, u64)) -> Result<()> {
    let mut words = Words { tracee, next: stack, buffer: [0; _], len: 0, taken: 0 };
    let argc = words.take()?;
    for _ in 0..argc {
        words.take()?;
    }
    words.take()?;
    while words.take()? != 0 {}
    loop {
        match [words.take()?, words.take()?] {
            [0, _] => return Ok(()),
            [key, value] => each(key, value),
        }
    }
}

/// Words of a program's memory, one after the other.
struct Words {
    tracee: Tracee,
    /// Where the next bytes are.
    next: u64,
    buffer: [u8; 1024],
    len: usize,
    taken: usize,
}

impl Words {
    fn take(&mut self) -> Result<u64> {
        if self.taken + size_of::<u64>() > self.len {
            self.len = self.tracee.read(self.next, &mut self.buffer)?;
            (self.next, self.taken) = (self.next + self.len as u64, 0);
        }
        let rest = self.buffer.get(self.taken..self.len).and_then(|rest| rest.first_chunk());
        self.taken += size_of::<u64>();
        rest.map(|word| u64::from_ne_bytes(*word)).ok_or(Errno::EFAULT)
    }
}

/// A new program, stopped before its first instruction.
struct Program {
    tracee: Tracee,
    /// Its registers there.
    first: user_regs_struct,
    syscall_at: u64,
}

impl Program {
    /// A system call by the program.
    fn call(&self, number: i64, arguments: [u64; 6]) -> Result<u64> {
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        let (rip, rax) = (self.syscall_at, number as u64);
        // No number of a call that might have to be begun again.
        let orig_rax = u64::MAX;
        let registers = user_regs_struct { rip, rax, orig_rax, rdi, rsi, rdx, r10, r8, r9, ..self.first };
        self.tracee.set_registers(&registers)?;
        self.tracee.go_to_boundary()?;
        self.tracee.go_to_boundary()?;
        let result = self.tracee.registers()?.rax;
        check(result as isize).map(|value| value as u64)
    }

    /// Maps the library: where. After an error nothing of it is there.
    fn map(&self, library: &Library, path: &[u8]) -> Result<u64> {
        let path_at = self.first.rsp.wrapping_sub(BELOW_STACK + path.len() as u64);
        self.tracee.write(path_at, path)?;
        let here = libc::AT_FDCWD as u64;
        let how = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
        let fd = self.call(libc::SYS_openat, [here, path_at, how, 0, 0, 0])?;
        let mapped = self.reserve(library.len).and_then(|base| {
            let done = library.segments().try_for_each(|segment| self.map_segment(base, segment, fd));
            done.and_then(|()| self.compare_headers(base, library)).map(|()| base).inspect_err(|_| {
                let _ = self.call(libc::SYS_munmap, [base, library.len, 0, 0, 0, 0]);
            })
        });
        let _ = self.call(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
        mapped
    }

    fn reserve(&self, len: u64) -> Result<u64> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        self.call(libc::SYS_mmap, [0, len, libc::PROT_NONE as u64, flags as u64, u64::MAX, 0])
    }

    /// As execve(2) maps a segment of a program: its pages of the file, zeros to the end of the last one, zeros after
    /// that.
    fn map_segment(&self, base: u64, segment: &Segment, fd: u64) -> Result<()> {
        let (prot, flags) = (segment.protection(), (libc::MAP_PRIVATE | libc::MAP_FIXED) as u64);
        let start = base + segment.address / PAGE * PAGE;
        let file_end = base + segment.address + segment.file_len;
        let end = (base + segment.address + segment.memory_len).next_multiple_of(PAGE);
        let mut zeros_from = start;
        if segment.file_len > 0 {
            let offset = segment.offset / PAGE * PAGE;
            zeros_from = file_end.next_multiple_of(PAGE);
            self.call(libc::SYS_mmap, [start, zeros_from - start, prot, flags, fd, offset])?;
        }
        if segment.file_len > 0 && segment.memory_len > segment.file_len {
            let zeros = [0; PAGE as usize];
            let tail = zeros.get(..(zeros_from - file_end) as usize).unwrap_or(&[]);
            self.tracee.write(file_end, tail)?;
        }
        if end > zeros_from {
            let flags = flags | libc::MAP_ANONYMOUS as u64;
            self.call(libc::SYS_mmap, [zeros_from, end - zeros_from, prot, flags, u64::MAX, 0])?;
        }
        Ok(())
    }

    /// What has been mapped is the file that was read.
    fn compare_headers(&self, base: u64, library: &Library) -> Result<()> {
        let mut buffer = [0; PAGE as usize];
        let headers = buffer.get_mut(..library.headers().len()).ok_or(Errno::EINVAL)?;
        let len = self.tracee.read(base, headers)?;
        if headers.get(..len) == Some(library.headers()) { Ok(()) } else { Err(Errno(libc::ENOEXEC)) }
    }
}
