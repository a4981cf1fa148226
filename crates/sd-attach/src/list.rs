//! A list in a mapping of its own: before a program's first instruction there is no allocator.

/// So many of a program, at most, in memory that nobody allocates.
#[derive(Debug)]
pub(crate) struct List<T: Copy> {
    memory: *mut T,
    count: usize,
}

impl<T: Copy> List<T> {
    const MAX: usize = 4096;

    pub(crate) fn new() -> Option<List<T>> {
        let memory = sd_sys::mem::reserve_private(Self::MAX * size_of::<T>()).ok()?;
        Some(List { memory: memory.cast(), count: 0 })
    }

    pub(crate) fn all(&self) -> &[T] {
        // SAFETY: so many have been written, to memory that is ours until `drop`.
        unsafe { core::slice::from_raw_parts(self.memory, self.count) }
    }

    pub(crate) fn all_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and only we refer to it.
        unsafe { core::slice::from_raw_parts_mut(self.memory, self.count) }
    }

    pub(crate) fn add(&mut self, one: T) -> Option<()> {
        (self.count < Self::MAX).then_some(())?;
        // SAFETY: there is room, and nobody has a reference to it.
        unsafe { self.memory.add(self.count).write(one) };
        self.count += 1;
        Some(())
    }
}

impl<T: Copy> Drop for List<T> {
    fn drop(&mut self) {
        // SAFETY: `new` made it, and no reference is left.
        unsafe { sd_sys::mem::unreserve(self.memory.cast(), Self::MAX * size_of::<T>()) };
    }
}
