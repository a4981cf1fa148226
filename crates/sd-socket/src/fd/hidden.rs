//! Descriptors of the library's own, at numbers that the program does not use and cannot close.

use crate::fd::table;
use core::sync::atomic::{AtomicI32, Ordering};
use sd_sys::fd::{Number, Owned};

/// The library's own descriptors have numbers from here on, where the limit is not lower: beyond those that select(2)
/// takes, and no higher, since each fork, exec and end of a process goes through the table of descriptors up to the
/// highest number (see ADR 36).
pub(crate) const HIDDEN_FROM: i32 = 1024;

/// A hidden descriptor, which is closed when this is dropped.
#[derive(Debug)]
pub(crate) struct Hidden(i32);

impl Hidden {
    /// Moves a descriptor out of the program's sight: to a high number, beyond the limit that the program has set where
    /// there are such (see `sd_sys::numbers`).
    pub(crate) fn of(fd: Owned) -> Hidden {
        let limit = sd_sys::fd::nofile_limit().min(table::LEN as u64) as i32;
        let base = (limit - limit / 4).clamp(3, HIDDEN_FROM);
        let dup_above = |min| free_above(&fd, min);
        // Far beyond it if there is room: the program may raise it again.
        let above_limit = || dup_above(limit.max(HIDDEN_FROM)).or_else(|| dup_above(limit));
        let beyond = if sd_sys::numbers::are_limited() { above_limit() } else { None };
        let hidden = beyond.or_else(|| dup_above(base)).unwrap_or(fd);
        table::set_hidden(hidden.raw(), true);
        Hidden(hidden.into_raw())
    }

    /// Of a number that is hidden already, and that nobody else closes.
    pub(crate) const fn from_raw(fd: i32) -> Hidden {
        Hidden(fd)
    }

    /// Of a number that was hidden before, and to which something was put back.
    pub(crate) fn again(fd: i32) -> Hidden {
        table::set_hidden(fd, true);
        Hidden(fd)
    }

    /// Its number, while this lives.
    pub(crate) const fn raw(&self) -> i32 {
        self.0
    }

    /// The program has closed it past libc, and the number may be the program's by now: nothing is closed.
    pub(crate) fn lost(self) {
        table::set_hidden(self.into_raw(), false);
    }

    /// Its number, which stays open and hidden: the caller keeps it, or another process has it too.
    pub(crate) const fn into_raw(self) -> i32 {
        let fd = self.0;
        core::mem::forget(self);
        fd
    }
}

/// A duplicate from `min` on, at no number of ours: one that is free nevertheless was closed by the program past libc, and will be
/// put back.
fn free_above(fd: &Owned, min: i32) -> Option<Owned> {
    let high = sd_sys::fd::dup_above(fd.raw(), min).ok()?;
    match table::is_hidden(high.raw()) {
        true => sd_sys::fd::dup_above(fd.raw(), table::hidden_last() + 1).ok(),
        false => Some(high),
    }
}

/// What a hidden number led to was closed by the program past libc: a copy of it is put there. False when the program has something
/// else there.
pub(crate) fn put_back(fd: Owned, at: i32) -> bool {
    if fd.raw() == at {
        fd.into_raw();
        return true;
    }
    match sd_sys::fd::identity(at) {
        Ok(found) => sd_sys::fd::identity(fd.raw()) == Ok(found),
        Err(_) => match sd_sys::fd::dup_above(fd.raw(), at) {
            Ok(put) if put.raw() == at => {
                put.into_raw();
                true
            }
            _ => false,
        },
    }
}

/// Something that nobody uses, at a number that is still to be closed.
pub(crate) fn hold(at: i32) -> bool {
    at < 0 || sd_sys::fd::eventfd(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK).is_ok_and(|fd| put_back(fd, at))
}

impl Drop for Hidden {
    fn drop(&mut self) {
        if self.0 >= 0 {
            table::set_hidden(self.0, false);
            sd_sys::fd::close(self.0);
        }
    }
}

impl Number for Hidden {
    fn raw(&self) -> i32 {
        self.0
    }
}

/// The place of a hidden descriptor whose number is read without a lock.
pub(crate) struct HiddenCell(AtomicI32);

impl HiddenCell {
    /// None is there.
    pub(crate) const fn empty() -> HiddenCell {
        HiddenCell(AtomicI32::new(-1))
    }

    /// The number; -1 when there is none. Whoever uses it knows that it stays, or that a failing call does no harm.
    #[inline(always)]
    pub(crate) fn raw(&self) -> i32 {
        self.0.load(Ordering::Acquire)
    }

    /// Whether there is one.
    #[inline(always)]
    pub(crate) fn is_some(&self) -> bool {
        self.raw() >= 0
    }

    /// Puts one there; what was there is closed.
    pub(crate) fn put(&self, fd: Hidden) {
        let before = self.0.swap(fd.into_raw(), Ordering::AcqRel);
        drop(Hidden(before));
    }

    /// Puts one there, unless there is one already: then it is closed, and this is false.
    pub(crate) fn put_first(&self, fd: Hidden) -> bool {
        let is_first = self.0.compare_exchange(-1, fd.raw(), Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if is_first {
            fd.into_raw();
        }
        is_first
    }

    /// Takes it out.
    pub(crate) fn take(&self) -> Option<Hidden> {
        Some(Hidden(self.0.swap(-1, Ordering::AcqRel))).filter(|fd| fd.0 >= 0)
    }

    /// Forgets it: see [`Hidden::lost`].
    pub(crate) fn lose(&self) {
        self.take().into_iter().for_each(Hidden::lost);
    }

    /// Closes it, if there is one.
    pub(crate) fn close(&self) {
        drop(self.take());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn is_open(fd: i32) -> bool {
        sd_sys::fd::fcntl(fd, libc::F_GETFD, 0).is_ok()
    }

    fn hidden() -> Hidden {
        Hidden::of(sd_sys::fd::eventfd(libc::EFD_CLOEXEC).unwrap())
    }

    #[test]
    fn what_is_dropped_is_closed_and_what_is_hidden_has_one_number() {
        let fd = sd_sys::fd::eventfd(libc::EFD_CLOEXEC).unwrap();
        let before = fd.raw();
        let hidden = Hidden::of(fd);
        assert!(
            is_open(hidden.raw()) && hidden.raw() >= HIDDEN_FROM.min(sd_sys::fd::nofile_limit() as i32 / 2)
        );
        let number = hidden.raw();
        drop(hidden);
        assert!(!is_open(number) && before != number);
    }

    #[test]
    fn a_place_keeps_the_first_or_the_last() {
        let cell = HiddenCell::empty();
        assert!(!cell.is_some() && cell.take().is_none());
        assert!(cell.put_first(hidden()));
        let first = cell.raw();
        assert!(!cell.put_first(hidden()) && cell.raw() == first && is_open(first));
        let second = hidden();
        let number = second.raw();
        cell.put(second);
        assert!(cell.raw() == number && is_open(number) && !is_open(first));
        let taken = cell.take().unwrap();
        cell.close();
        assert!(is_open(taken.raw()) && !cell.is_some());
    }
}
