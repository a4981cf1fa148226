//! Memory that a device may reach: mapped and registered, and in the other order taken away.
//!
//! ```text
//!  Source   device ── reads ──>  ours to write, as any memory: nobody else writes it
//!  Landing  peers ── write ──>   theirs at any time: copied out, never referred to
//!  Lent     either               the caller's mapping, which others have too: a ring that programs write or read
//! ```
//! Registered pages are pinned and count against RLIMIT_MEMLOCK.

use crate::abi;
use crate::device::Domain;
use crate::error::Error;
use sd_ring::copy::copy_shared;
use std::ffi::c_int;
use std::ptr::NonNull;

/// Pages with the device's right to them.
struct Registered {
    domain: Domain,
    start: NonNull<u8>,
    len: usize,
    mr: NonNull<abi::Mr>,
    /// Unmapped with it.
    is_own: bool,
}

// SAFETY: the mapping is this value's alone, or is not reached by way of this value, and registrations may be used and undone by any thread.
unsafe impl Send for Registered {}
// SAFETY: through a reference nothing is read or written but by the methods of `Source` and `Landing`, which say why they may.
unsafe impl Sync for Registered {}

impl Registered {
    fn new(domain: &Domain, len: usize, access: c_int) -> Result<Registered, Error> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at a place of the kernel's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(Error::last("mmap"));
        }
        // A child of fork would otherwise take the pages away from the device when either writes (ibv_fork_init(3)).
        // SAFETY: the mapping is ours, of that length.
        if unsafe { libc::madvise(start, len, libc::MADV_DONTFORK) } != 0 {
            let error = Error::last("madvise");
            // SAFETY: nobody has seen the mapping.
            unsafe { libc::munmap(start, len) };
            return Err(error);
        }
        let Some(mapping) = NonNull::new(start.cast()) else { return Err(Error::last("mmap")) };
        // SAFETY: the mapping is this value's, or nobody's where it is not made.
        unsafe { Registered::at(domain, mapping, len, access, true) }.inspect_err(|_| {
            // SAFETY: nothing has a right to it.
            unsafe { libc::munmap(start, len) };
        })
    }

    /// # Safety
    /// So many bytes are mapped there.
    unsafe fn at(
        domain: &Domain,
        start: NonNull<u8>,
        len: usize,
        access: c_int,
        is_own: bool,
    ) -> Result<Registered, Error> {
        // SAFETY: the domain lives until the registration is undone, in `drop`, and it pins the pages.
        let mr =
            unsafe { (domain.context().library().reg_mr)(domain.raw(), start.as_ptr().cast(), len, access) };
        let mr = NonNull::new(mr).ok_or_else(|| Error::last("ibv_reg_mr"))?;
        Ok(Registered { domain: domain.clone(), start, len, mr, is_own })
    }

    fn window(&self) -> Window {
        Window { addr: self.start.addr().get() as u64, len: self.len as u64, key: self.keys().1 }
    }

    fn keys(&self) -> (u32, u32) {
        // SAFETY: the library's structure lives until it is undone, and its keys do not change.
        unsafe { ((*self.mr.as_ptr()).lkey, (*self.mr.as_ptr()).rkey) }
    }

    fn piece(&self, offset: usize, len: usize) -> Result<abi::Piece, Error> {
        self.check(offset, len)?;
        let length =
            u32::try_from(len).map_err(|_| Error::OutOfBounds { offset, len, region_len: self.len })?;
        Ok(abi::Piece { addr: (self.start.addr().get() + offset) as u64, length, lkey: self.keys().0 })
    }

    fn check(&self, offset: usize, len: usize) -> Result<(), Error> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(Error::OutOfBounds { offset, len, region_len: self.len }),
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: it is undone once; from its success on the device reaches the memory no more, whatever requests are left.
        let errno = unsafe { (self.domain.context().library().dereg_mr)(self.mr.as_ptr()) };
        if errno == 0 && self.is_own {
            // SAFETY: neither the device nor a reference has it any more. Else it stays: the device may still write there.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
        }
    }
}

/// Memory from which the device sends. No peer has a right to it.
pub struct Source {
    memory: Registered,
}

impl Source {
    pub fn new(domain: &Domain, len: usize) -> Result<Source, Error> {
        // Without any right the device may read.
        Registered::new(domain, len, 0).map(|memory| Source { memory })
    }

    /// What is written where a request is under way is sent as it was, as it is, or mixed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped and zeroed at first, `len` bytes, this value's alone. The device only reads it.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start.as_ptr(), self.memory.len) }
    }

    pub fn len(&self) -> usize {
        self.memory.len
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn piece(&self, offset: usize, len: usize) -> Result<abi::Piece, Error> {
        self.memory.piece(offset, len)
    }
}

/// Memory into which a peer writes.
pub struct Landing {
    memory: Registered,
}

/// Where and by which right a peer writes: told to the other host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub addr: u64,
    pub len: u64,
    pub key: u32,
}

impl Landing {
    pub fn new(domain: &Domain, len: usize) -> Result<Landing, Error> {
        let access = abi::ACCESS_LOCAL_WRITE | abi::ACCESS_REMOTE_WRITE;
        Registered::new(domain, len, access).map(|memory| Landing { memory })
    }

    pub fn window(&self) -> Window {
        self.memory.window()
    }

    pub fn len(&self) -> usize {
        self.memory.len
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies what is there now; a peer that writes meanwhile makes any mixture.
    pub fn copy_to(&self, offset: usize, to: &mut [u8]) -> Result<(), Error> {
        self.memory.check(offset, to.len())?;
        // SAFETY: both are `to.len()` bytes long, checked above, and do not overlap: `to` is not of the mapping, to which there are no
        // references. The device writes as another process would: no reference of ours says that it does not.
        unsafe { copy_shared(to.as_mut_ptr(), self.memory.start.as_ptr().add(offset), to.len()) };
        Ok(())
    }
}

/// Memory of a mapping that others have too, as long as the device may reach it: nothing here reads or writes it.
pub struct Lent {
    memory: Registered,
}

/// What the device may do with [`Lent`] memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lending {
    /// Send from it. No peer has a right to it.
    ToSend,
    /// Let the peer write into it.
    ToBeWritten,
}

impl Lent {
    /// The device has the pages, and not the mapping, which may end first. Pages that are taken out of their file meanwhile are the device's still, and no
    /// longer the file's.
    ///
    /// # Safety
    /// So many bytes are mapped there, shared, and nobody has a reference to them as long as this lives.
    pub unsafe fn new(domain: &Domain, start: NonNull<u8>, len: usize, to: Lending) -> Result<Lent, Error> {
        let access = match to {
            Lending::ToSend => 0,
            Lending::ToBeWritten => abi::ACCESS_LOCAL_WRITE | abi::ACCESS_REMOTE_WRITE,
        };
        // SAFETY: as the caller says.
        unsafe { Registered::at(domain, start, len, access, false) }.map(|memory| Lent { memory })
    }

    /// By which the peer writes, where it may.
    pub fn window(&self) -> Window {
        self.memory.window()
    }

    pub(crate) fn piece(&self, offset: usize, len: usize) -> Result<abi::Piece, Error> {
        self.memory.piece(offset, len)
    }
}
