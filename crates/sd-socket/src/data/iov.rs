//! Walking over a caller's buffers.

use libc::{c_void, iovec};
use sd_sys::Errno;

/// vm.mmap_min_addr, as every distribution has it.
const ADDRESS_MIN: usize = 1 << 16;
/// Linux's limit on the number of buffers.
pub(super) const IOV_MAX: usize = 1024;
/// Linux's limit on bytes per call.
pub(super) const BYTES_MAX: usize = 0x7fff_f000;

/// The end of a program's half of the address space.
const ADDRESS_END: usize = 0x7fff_ffff_f000;

/// An address that can never be a program's memory: below vm.mmap_min_addr, or not in its half. Other bad
/// addresses fault in the program, where the kernel would have said EFAULT.
#[inline(always)]
pub(crate) fn bad_pointer(buf: *const c_void, len: usize) -> bool {
    len != 0 && ((buf as usize) < ADDRESS_MIN || is_beyond(buf, len))
}

/// Not in the program's half: the kernel refuses such a buffer before it looks at the socket.
#[inline(always)]
pub(super) fn is_beyond(buf: *const c_void, len: usize) -> bool {
    len != 0 && (buf as usize).checked_add(len).is_none_or(|end| end > ADDRESS_END)
}

/// One or many buffers, taken piece by piece.
pub(crate) struct Pieces {
    rest: *const iovec,
    count: usize,
    base: *mut u8,
    len: usize,
    /// Bytes left in all.
    pub(super) total: usize,
    /// Some buffer is no memory of the program's.
    pub(super) nowhere: bool,
}

impl Pieces {
    /// A single buffer.
    #[inline(always)]
    pub(crate) fn one(base: *mut u8, len: usize) -> Pieces {
        let len = len.min(BYTES_MAX);
        Pieces { rest: core::ptr::null(), count: 0, base, len, total: len, nowhere: false }
    }

    /// A caller's array of buffers; errno when it makes no sense.
    ///
    /// # Safety
    /// `iov` must point to `count` iovecs.
    pub(super) unsafe fn many(iov: *const iovec, count: usize) -> Result<Pieces, Errno> {
        if count > IOV_MAX {
            return Err(Errno::EMSGSIZE);
        }
        if !sd_sys::user::seems_readable(iov, count * size_of::<iovec>()) {
            return Err(Errno::EFAULT);
        }
        let (mut total, mut nowhere) = (0usize, false);
        for i in 0..count {
            // SAFETY: i < count.
            let len = unsafe { (*iov.add(i)).iov_len };
            // SAFETY: as above.
            let base = unsafe { (*iov.add(i)).iov_base };
            if len > isize::MAX as usize {
                return Err(Errno::EINVAL);
            }
            let taken = len.min(BYTES_MAX - total);
            // As the kernel: several are looked at before they are cut.
            if is_beyond(base, if count == 1 { taken } else { len }) {
                return Err(Errno::EFAULT);
            }
            let len = taken;
            nowhere |= bad_pointer(base, len);
            total += len;
        }
        Ok(Pieces { rest: iov, count, base: core::ptr::null_mut(), len: 0, total, nowhere })
    }

    /// The next contiguous piece of at most `max` bytes; its length is zero at the end.
    #[inline(always)]
    pub(super) fn piece(&mut self, max: usize) -> (*mut u8, usize) {
        while self.len == 0 && self.count > 0 {
            // SAFETY: `count` iovecs are left at `rest`, by the contract of `many`.
            unsafe {
                self.base = (*self.rest).iov_base as *mut u8;
                self.len = (*self.rest).iov_len;
                self.rest = self.rest.add(1);
            }
            self.count -= 1;
        }
        (self.base, self.len.min(max).min(self.total))
    }

    /// These buffers with `taken` bytes put back; only a single buffer can be (a peek into many
    /// starts over with what it has).
    pub(super) fn rewound(mut self, taken: usize) -> Pieces {
        if self.count == 0 && self.rest.is_null() {
            self.base = self.base.wrapping_sub(taken);
            self.len += taken;
            self.total += taken;
        }
        self
    }

    /// What is left, if it is one buffer.
    #[inline(always)]
    pub(super) fn single(&self) -> Option<(*mut u8, usize)> {
        (self.count == 0 && self.len != 0).then_some((self.base, self.len.min(self.total)))
    }

    /// Moves past `n` bytes of the current piece.
    #[inline(always)]
    pub(super) fn advance(&mut self, n: usize) {
        self.base = self.base.wrapping_add(n);
        self.len -= n;
        self.total -= n;
    }
}
