//! memfd_create(2), mmap(2) and friends.

use crate::fd::Owned;
use crate::{Result, check, syscall};
use core::sync::atomic::{AtomicUsize, Ordering};

/// Creates a sealable, close-on-exec memfd of `len` bytes that can neither shrink nor grow.
pub fn memfd_sealed(name: &core::ffi::CStr, len: usize) -> Result<Owned> {
    memfd(name, len, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)
}

/// The same, and nobody can seal it any further: whoever has it can map it, to write, at any time.
pub fn memfd_sealed_for_good(name: &core::ffi::CStr, len: usize) -> Result<Owned> {
    memfd(name, len, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL)
}

fn memfd(name: &core::ffi::CStr, len: usize, seals: i32) -> Result<Owned> {
    // ftruncate beyond RLIMIT_FSIZE would raise SIGXFSZ in a program that never asked for a file.
    if crate::fd::file_size_limit() < len as u64 {
        return Err(crate::Errno::EFBIG);
    }
    // SAFETY: `name` is a valid C string.
    let fd = check(unsafe {
        syscall!(libc::SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
    })
    .map(|fd| Owned::new(fd as i32))?;
    ftruncate(fd.raw(), len)?;
    add_seals(fd.raw(), seals)?;
    Ok(fd)
}

/// Whether the kernel may refuse a page of a segment at the moment when it is touched for the first time, which is
/// SIGBUS: it does so only where it accounts for memory strictly (proc_sys_vm(5), `overcommit_memory`).
pub fn pages_may_be_refused() -> bool {
    const PATH: &core::ffi::CStr = c"/proc/sys/vm/overcommit_memory";
    let mut mode = [0u8];
    crate::fd::read_file(PATH.to_bytes_with_nul(), &mut mode) == Ok(1) && mode == *b"2"
}

/// The machine's memory, in KiB.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// All of it.
    pub total: u64,
    /// What programs could get without swapping.
    pub available: u64,
}

/// Reads /proc/meminfo.
pub fn memory() -> Option<Memory> {
    let mut text = [0u8; 256];
    let got = crate::fd::read_file(b"/proc/meminfo\0", &mut text).ok()?;
    let text = core::str::from_utf8(text.get(..got)?).ok()?;
    let field =
        |name| text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok();
    Some(Memory { total: field("MemTotal:")?, available: field("MemAvailable:")? })
}

/// ftruncate(2).
pub fn ftruncate(fd: i32, len: usize) -> Result<()> {
    // SAFETY: no pointers.
    check(unsafe { syscall!(libc::SYS_ftruncate, fd, len) }).map(drop)
}

/// fcntl(F_ADD_SEALS).
pub fn add_seals(fd: i32, seals: i32) -> Result<()> {
    crate::fd::fcntl(fd, libc::F_ADD_SEALS, seals as usize).map(drop)
}

/// fcntl(F_GET_SEALS).
pub fn get_seals(fd: i32) -> Result<i32> {
    crate::fd::fcntl(fd, libc::F_GET_SEALS, 0).map(|s| s as i32)
}

/// mmap(2), at an address of the kernel's choice, or at one where nothing is.
fn map(address: usize, len: usize, prot: i32, flags: i32, fd: i32) -> Result<*mut u8> {
    crate::space::mapping(len);
    // SAFETY: a fresh mapping that replaces nothing.
    let attempt = || check(unsafe { syscall!(libc::SYS_mmap, address, len, prot, flags, fd, 0) });
    let mapped = match attempt() {
        Err(crate::Errno::ENOMEM) if crate::space::raise() => attempt(),
        done => done,
    };
    let at = mapped.map(|at| at as *mut u8).inspect_err(|_| crate::space::unmapped(len))?;
    if fd >= 0 {
        // A core dump reads the holes of a segment too, which makes gigabytes of zeros of them, for all who have it mapped.
        // SAFETY: the mapping was just made; its contents stay.
        let _ = check(unsafe { syscall!(libc::SYS_madvise, at, len, libc::MADV_DONTDUMP) });
    }
    Ok(at)
}

/// Maps `len` bytes of `fd` shared; nothing is populated and no swap is reserved.
pub fn map_shared(fd: i32, len: usize, writable: bool) -> Result<*mut u8> {
    let prot = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
    map(0, len, prot, libc::MAP_SHARED | libc::MAP_NORESERVE, fd)
}

/// Where segments go that other images of this process, or other processes, may have to map at the same address:
/// below the kernel's own choice of addresses, and above that of programs.
const APART: core::ops::Range<usize> = 0x7000_0000_0000..0x7d00_0000_0000;
const APART_STEP: usize = 2 << 20;

/// A number that nobody can guess.
pub fn random() -> Result<u64> {
    let mut random = 0u64;
    // SAFETY: the kernel writes eight bytes.
    check(unsafe { syscall!(libc::SYS_getrandom, &raw mut random, 8, 0) }).map(|_| random)
}

/// As `map_shared`, writable, at a random address where nothing else is mapped by default: a multiple of 2 MiB.
pub fn map_apart(fd: i32, len: usize) -> Result<*mut u8> {
    for _ in 0..8 {
        let steps = (APART.end - APART.start) / APART_STEP - len / APART_STEP - 1;
        match map_at(fd, len, APART.start + random()? as usize % steps * APART_STEP) {
            Err(crate::Errno::EEXIST) => {}
            other => return other,
        }
    }
    let place = map_shared(fd, len + APART_STEP, true)?;
    // SAFETY: just mapped, and unused.
    unsafe { unmap(place, len + APART_STEP) };
    map_at(fd, len, (place as usize).next_multiple_of(APART_STEP))
}

/// As `map_shared`, writable, at this address and no other: EEXIST when something is there.
pub fn map_at(fd: i32, len: usize, address: usize) -> Result<*mut u8> {
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let at = map(address, len, prot, flags, fd)?;
    if at as usize == address {
        return Ok(at);
    }
    // Kernels before 4.17 take the flag for a hint.
    // SAFETY: just mapped, and unused.
    unsafe { unmap(at, len) };
    Err(crate::Errno::EEXIST)
}

/// Maps `len` bytes of zeroed private memory, which is data of the program (see [`reserve_private`]).
pub fn map_private(len: usize) -> Result<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    map(0, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1)
}

/// Maps `len` bytes of zeroed private memory for a table most of which is never touched.
///
/// Linux counts it as a stack and not as data, so that it is not the program's to pay for (RLIMIT_DATA, setrlimit(2)); it is
/// private and copied by fork as data is. A stack would grow downwards, up to RLIMIT_STACK, where a program's stray
/// pointer hits what is below it: a page that nobody may touch ends it there.
pub fn reserve_private(len: usize) -> Result<*mut u8> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let guard = page_size();
    let place = map(0, len + guard, libc::PROT_NONE, flags, -1)?;
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, flags | libc::MAP_GROWSDOWN | libc::MAP_FIXED);
    let start = place as usize + guard;
    // SAFETY: replaces a part of the mapping that was just made, and that nobody uses.
    match check(unsafe { syscall!(libc::SYS_mmap, start, len, prot, flags, -1i32, 0) }) {
        Ok(at) => Ok(at as *mut u8),
        Err(error) => {
            // SAFETY: as above.
            unsafe { unmap(place, len + guard) };
            Err(error)
        }
    }
}

/// Maps `len` bytes of zeroed memory that children share, touched lazily.
pub fn map_shared_anonymous(len: usize) -> Result<*mut u8> {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    map(0, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1)
}

/// Unmaps a mapping made by this module.
///
/// # Safety
/// Nothing may use the memory afterwards.
pub unsafe fn unmap(ptr: *mut u8, len: usize) {
    // SAFETY: the caller gives up the range.
    if check(unsafe { syscall!(libc::SYS_munmap, ptr, len) }).is_ok() {
        crate::space::unmapped(len);
    }
}

/// One more mapping of what is mapped shared at `at`.
///
/// # Safety
/// `len` bytes of one shared mapping lie there.
pub unsafe fn map_again(at: *mut u8, len: usize) -> Result<*mut u8> {
    crate::space::mapping(len);
    // SAFETY: the old length of zero leaves the mapping as it is (mremap(2)); the new one is where nothing is.
    let again = check(unsafe { syscall!(libc::SYS_mremap, at, 0, len, libc::MREMAP_MAYMOVE, 0) });
    again.map(|at| at as *mut u8).inspect_err(|_| crate::space::unmapped(len))
}

/// Zeroed private memory takes the place of a mapping, between two accesses of whoever uses it.
///
/// # Safety
/// A mapping of this module's lies there, of that length, and who uses it can do with zeros.
pub unsafe fn replace_by_zeros(at: *mut u8, len: usize) -> Result<()> {
    // As a reservation: see `reserve_private`.
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_GROWSDOWN;
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, flags | libc::MAP_FIXED);
    // SAFETY: the caller gives up what is there.
    check(unsafe { syscall!(libc::SYS_mmap, at, len, prot, flags, -1i32, 0) }).map(drop)
}

/// A reservation takes the place of a mapping of its length, between two accesses of whoever uses that.
///
/// # Safety
/// A mapping of this module's lies at `at`, of that length, and who uses it can do with what the other holds; nobody uses
/// `reserved`, which was made by `reserve_private`.
pub unsafe fn replace_by(at: *mut u8, len: usize, reserved: *mut u8) -> Result<()> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the caller gives up what is there.
    check(unsafe { syscall!(libc::SYS_mremap, reserved, len, len, flags, at) })?;
    crate::space::unmapped(len);
    // SAFETY: the reservation's guard, which is of no use any more.
    unsafe { unmap(reserved.wrapping_sub(page_size()), page_size()) };
    Ok(())
}

/// Unmaps a reservation.
///
/// # Safety
/// Nothing may use the memory afterwards.
pub unsafe fn unreserve(reserved: *mut u8, len: usize) {
    // SAFETY: the caller gives up the range; the guard lies below it.
    unsafe { unmap(reserved.wrapping_sub(page_size()), len + page_size()) };
}

/// Gives the pages of a shared mapping back to the system; they read as zero afterwards. False when it would not take
/// them.
///
/// # Safety
/// The page-aligned range must lie in a writable shared mapping and hold nothing that is needed.
pub unsafe fn punch(ptr: *mut u8, len: usize) -> bool {
    // The kernel would take the whole of a larger page.
    let is_whole = (ptr as usize | len).is_multiple_of(page_size());
    // SAFETY: the caller gives up the contents.
    is_whole && check(unsafe { syscall!(libc::SYS_madvise, ptr, len, libc::MADV_REMOVE) }).is_ok()
}

/// Size of the processor's pages as this kernel has set them up. It is asked once; what only has to be a power of two that no
/// page is smaller than, such as the layout of a segment, is 4096 by itself.
pub fn page_size() -> usize {
    static KNOWN: AtomicUsize = AtomicUsize::new(0);
    match KNOWN.load(Ordering::Relaxed) {
        0 => {
            // SAFETY: no pointers; libc's function is not hooked, and reads what the kernel gave to the program.
            let size = unsafe { libc::getauxval(libc::AT_PAGESZ) } as usize;
            let size = if size.is_power_of_two() { size } else { SMALLEST_PAGE };
            KNOWN.store(size, Ordering::Relaxed);
            size
        }
        size => size,
    }
}

/// Says that a value is needed soon, so that the processor fetches it meanwhile. Any address will do.
#[inline(always)]
pub fn prefetch<T>(at: *const T) {
    for line in (0..size_of::<T>()).step_by(64) {
        crate::arch::fetch_for_reading(at.wrapping_byte_add(line).cast());
    }
}

/// No processor that we know has smaller pages.
pub const SMALLEST_PAGE: usize = 4096;

/// Makes the pages of a writable mapping exist, as a store to each would, without a change of what they hold. False when they
/// are not to be had; kernels before 5.14 leave it to the stores.
pub fn populate(ptr: *mut u8, len: usize) -> bool {
    let page = page_size();
    let start = ptr as usize / page * page;
    let len = (ptr as usize + len - start).next_multiple_of(page);
    // SAFETY: no contents change.
    let done = check(unsafe { syscall!(libc::SYS_madvise, start, len, libc::MADV_POPULATE_WRITE) });
    matches!(done, Ok(_) | Err(crate::Errno::EINVAL | crate::Errno::EINTR))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data_kib() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmData:")).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    #[test]
    fn a_mapping_is_replaced_while_another_one_stays() {
        const LEN: usize = 64 << 10;
        let fd = memfd_sealed(c"test", LEN).unwrap();
        let at = map_shared(fd.raw(), LEN, true).unwrap();
        // SAFETY: within mappings of that length, which nobody else uses.
        unsafe {
            at.write(1);
            let again = map_again(at, LEN).unwrap();
            assert_eq!(again.read(), 1);
            replace_by_zeros(at, LEN).unwrap();
            assert_eq!((at.read(), again.read()), (0, 1));
            at.write(2);
            let stand_in = reserve_private(LEN).unwrap();
            stand_in.write(3);
            replace_by(at, LEN, stand_in).unwrap();
            at.add(LEN - 1).write(4);
            assert_eq!((at.read(), again.read(), again.add(LEN - 1).read()), (3, 1, 0));
            unmap(at, LEN);
            unmap(again, LEN);
        }
    }

    #[test]
    fn a_reservation_is_no_data_and_private() {
        const LEN: usize = 256 << 20;
        let before = data_kib();
        let at = reserve_private(LEN).unwrap();
        assert!(data_kib() < before + (LEN as u64 >> 11), "less than half of it is data");
        // SAFETY: within the mapping; a child that only stores and ends, and a plain wait.
        unsafe {
            at.write(1);
            at.add(LEN - 1).write(2);
            let child = libc::fork();
            if child == 0 {
                at.write(3);
                libc::_exit(0);
            }
            libc::waitpid(child, core::ptr::null_mut(), 0);
            assert_eq!((at.read(), at.add(LEN - 1).read()), (1, 2));
        }
    }

    #[test]
    fn a_core_dump_does_not_hold_segments() {
        let fd = memfd_sealed(c"sd-core-test", 1 << 20).unwrap();
        let at = map_apart(fd.raw(), 1 << 20).unwrap();
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let from = smaps.find("sd-core-test").unwrap();
        let flags = smaps[from..].lines().find(|line| line.starts_with("VmFlags:")).unwrap();
        assert!(flags.split_whitespace().any(|flag| flag == "dd"), "{flags}");
        // SAFETY: nothing uses the mapping.
        unsafe { unmap(at, 1 << 20) };
    }
}
