//! What the tracer does to the new program.
//!
//! ```text
//!  stop in execve(2): nothing of it has run
//!  instructions to the vDSO's last page, what they are to do to the stack (`sd_sys::arch::bootstrap`)
//!  rip = these; let go
//!  the program: openat, mmap: all of it without access, mmap: each segment, close; the library's entry
//! ```
//! So the program maps the library itself, and the two need not take turns: that took three times as long. Whatever fails, the program begins
//! as it would have. The vDSO's page is the program's own copy then, and the library gives it back.

use crate::elf::{self, ENTRY_LEN};
use crate::layout::{Mapping, PAGE, SEGMENTS_MAX};
use crate::library::Library;
use crate::program::without_libc;
use crate::ptrace::Tracee;
use libc::user_regs_struct;
use sd_sys::arch::{Head, Step, bootstrap};
use sd_sys::{Errno, Result, fd};

/// `cs` of 64-bit code.
const CODE_SEGMENT: u64 = 0x33;
/// What the program's first page of stack, and what a function may use below it, is far from.
const BELOW_STACK: u64 = 4 * PAGE;
/// Between the vDSO's own bytes and the instructions.
const TAIL_LEAST: usize = 16;

/// At [`Stop::Exec`](crate::ptrace::Stop): the program begins with the library, or as if nothing had been. `path` is
/// the library's.
pub(crate) fn begin_with(tracee: Tracee, library: &Library, path: &[u8]) {
    // Errors: it has been left as it was.
    let _ = start(tracee, library, path);
    tracee.let_go();
}

fn start(tracee: Tracee, library: &Library, path: &[u8]) -> Result<()> {
    let first = tracee.registers()?;
    let vdso = find_vdso(tracee, &first)?;
    let code = bootstrap();
    let code_at = room_behind(tracee, vdso, code.len())?;
    let mut orders = Orders {
        head: Head { program: first.rip, len: library.len(), page: code_at / PAGE * PAGE },
        steps: [Step::default(); STEPS_MAX],
        count: 0,
    };
    // One below the other, mostly in one page.
    let below = |at: u64, len: usize| (at - len as u64) / 16 * 16;
    let headers_at = below(first.rsp.wrapping_sub(BELOW_STACK) / PAGE * PAGE, library.headers().len());
    let path_at = below(headers_at, path.len());
    let orders_at = below(path_at, size_of::<Orders>());
    orders.give(library, path_at, headers_at)?;
    tracee.write(headers_at, library.headers())?;
    tracee.write(path_at, path)?;
    tracee.write(orders_at, orders.bytes())?;
    tracee.write_text(code_at, code)?;
    tracee.set_registers(&user_regs_struct {
        rip: code_at,
        r12: orders_at,
        r15: orders_at + core::mem::offset_of!(Orders, steps) as u64,
        ..first
    })
}

/// What the program is told.
#[repr(C)]
struct Orders {
    head: Head,
    steps: [Step; STEPS_MAX],
    count: usize,
}

/// Three for a segment, five for all.
const STEPS_MAX: usize = 3 * SEGMENTS_MAX + 5;

impl Orders {
    fn add(&mut self, number: i64, arguments: [u64; 4], flags: u64) -> Result<&mut Step> {
        let step = self.steps.get_mut(self.count).ok_or(Errno(libc::ENOEXEC))?;
        *step = Step { number, arguments, offset: 0, flags };
        self.count += 1;
        Ok(step)
    }

    fn give(&mut self, library: &Library, path_at: u64, headers_at: u64) -> Result<()> {
        let (here, how) = (libc::AT_FDCWD as u64, (libc::O_RDONLY | libc::O_CLOEXEC) as u64);
        self.add(libc::SYS_openat, [here, path_at, how, 0], Step::GIVES_DESCRIPTOR)?;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u64;
        self.add(libc::SYS_mmap, [0, library.len(), libc::PROT_NONE as u64, flags], Step::GIVES_BASE)?;
        library.mappings().try_for_each(|mapping| self.map(&mapping))?;
        // What has been mapped is the file that was read.
        let headers_len = library.headers().len() as u64;
        self.add(Step::COMPARE, [0, headers_len, headers_at, 0], Step::FROM_BASE)?;
        self.add(libc::SYS_close, [0; 4], Step::TAKES_DESCRIPTOR)?;
        self.add(Step::END, [library.entry(), fd::getpid() as u64, library.len(), 0], Step::FROM_BASE)
            .map(drop)
    }

    /// Pages of the file, zeros to the end of the last one, zeros after that.
    fn map(&mut self, mapping: &Mapping) -> Result<()> {
        let (prot, flags) = (mapping.protection as u64, (libc::MAP_PRIVATE | libc::MAP_FIXED) as u64);
        let zeros_from = mapping.from + mapping.file_len;
        if mapping.file_len > 0 {
            let place = [mapping.from, mapping.file_len, prot, flags];
            self.add(libc::SYS_mmap, place, Step::FROM_BASE | Step::OF_DESCRIPTOR)?.offset = mapping.offset;
        }
        if mapping.clear.1 > 0 {
            self.add(Step::CLEAR, [mapping.clear.0, mapping.clear.1, 0, 0], Step::FROM_BASE)?;
        }
        if mapping.len > mapping.file_len {
            let flags = flags | libc::MAP_ANONYMOUS as u64;
            let place = [zeros_from, mapping.len - mapping.file_len, prot, flags];
            self.add(libc::SYS_mmap, place, Step::FROM_BASE)?;
        }
        Ok(())
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: numbers of eight bytes each, without anything between them.
        unsafe { core::slice::from_raw_parts(core::ptr::from_ref(self).cast(), size_of::<Orders>()) }
    }
}

/// Where the vDSO is in the program (vdso(7)). An error also where the program is one to be left alone.
fn find_vdso(tracee: Tracee, first: &user_regs_struct) -> Result<u64> {
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
    if is_ours && header_len == ENTRY_LEN as u64 && vdso != 0 { Ok(vdso) } else { Err(Errno::ENOSYS) }
}

/// Room behind the vDSO's own bytes, to the end of its last page, which the kernel has filled with zeros.
fn room_behind(tracee: Tracee, vdso: u64, len: usize) -> Result<u64> {
    let mut page = [0; PAGE as usize];
    let found = tracee.read(vdso, &mut page)?;
    let (table, _) = page.get(..found).and_then(elf::table).ok_or(Errno::ENOSYS)?;
    let end = elf::entries(table)
        .filter(|entry| entry.kind == libc::PT_LOAD)
        .map(|load| load.address + load.file_len);
    let last = vdso + end.max().filter(|end| *end > 0).ok_or(Errno::ENOSYS)?.next_multiple_of(PAGE) - PAGE;
    let found = tracee.read(last, &mut page)?;
    let own = page.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let at = (PAGE as usize).saturating_sub(len.next_multiple_of(TAIL_LEAST));
    if found == page.len() && own + TAIL_LEAST <= at { Ok(last + at as u64) } else { Err(Errno::ENOSYS) }
}

/// Whether a program that has a dynamic linker is without libc all the same.
fn needs_no_library(tracee: Tracee) -> bool {
    let file = fd::open_to_read(&sd_sys::procfs::of_process(tracee.0, b"/exe"));
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
