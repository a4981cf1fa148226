//! What posix_spawn(3) and its relatives need when a socket of ours is passed on (see `sd-preload`'s
//! `body/spawn.rs`): glibc would start the program by a clone in which no hook of ours runs.

use crate::fd::hidden::{Hidden, HiddenCell};
use crate::fd::table::{self, Entry};
use crate::socket::endpoint::EndpointExt;

use sd_shm::slab::State;
use sd_sys::fd::Owned;
use sd_sys::lock::Lock;
use sd_sys::{Errno, thread};

/// Whether a program that is started now would find a socket of ours, on a number that stays open or on
/// a duplicate of one in `duplicated`; or limits that are to be given back to the kernel before.
pub(crate) fn passes_sockets(duplicated: &[i32]) -> bool {
    if sd_sys::numbers::are_limited() {
        return true;
    }
    if !table::is_active() {
        return false;
    }
    crate::setup::first::before_spawn(duplicated);
    let mut found = false;
    table::for_each(0, u32::MAX, |fd, entry| {
        let finds = || duplicated.contains(&fd) || table::survives_exec(fd);
        match entry {
            Entry::Socket(endpoint) if matches!(endpoint.state_now(), State::Connected | State::Listen) => {
                found |= finds();
            }
            // Its calls are not counted.
            Entry::Kernel(_) | Entry::Early if finds() => {
                crate::setup::watched::never(fd);
                found |= table::socket(fd).is_some();
            }
            Entry::Epoll(epoll) if finds() => _ = crate::epoll::others_look(epoll.epoll()),
            _ => {}
        }
    });
    found
}

/// One start at a time, so that there is one pipe that other children must not keep open.
static ONE: Lock<()> = Lock::new(());
/// The end of the pipe that the child says its errno with.
static WRITE_END: HiddenCell = HiddenCell::empty();

/// A start under way: a pipe from the child, whose end without a word means that the program runs.
pub struct Starting {
    read_end: Hidden,
}

impl Starting {
    /// Before the fork; one of the methods below follows, in parent and child.
    pub fn begin() -> Result<Starting, Errno> {
        ONE.lock_and_keep();
        let mut pipe = [0i32; 2];
        // SAFETY: the kernel writes two numbers.
        let made =
            sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_pipe2, pipe.as_mut_ptr(), libc::O_CLOEXEC) });
        if let Err(e) = made {
            // SAFETY: kept above.
            unsafe { ONE.unlock() };
            return Err(e);
        }
        let [read_end, write_end] = pipe.map(|fd| Hidden::of(Owned::new(fd)));
        WRITE_END.put(write_end);
        thread::set_starting(true);
        Ok(Starting { read_end })
    }

    /// In the child: the program could not be started.
    pub fn failed(&self, errno: Errno) {
        Self::tell(&errno.0.to_ne_bytes());
    }

    /// In the child: says this to the parent.
    pub fn tell(words: &[u8]) {
        let _ = sd_sys::fd::write(WRITE_END.raw(), words);
    }

    /// In the parent: waits until the program runs, or the child has failed, with this errno.
    pub fn wait(self, is_forked: bool) -> Result<(), Errno> {
        self.forked();
        let mut errno = [0u8; 4];
        let len = if is_forked { self.hear(&mut errno) } else { 0 };
        if len == errno.len() { Err(Errno(i32::from_ne_bytes(errno))) } else { Ok(()) }
    }

    /// In the parent: there is a child now, or will be none.
    pub fn forked(&self) {
        thread::set_starting(false);
        WRITE_END.close();
        // SAFETY: kept by `begin` on this thread.
        unsafe { ONE.unlock() };
    }

    /// In the parent, after that: waits for what the child says; zero: it will say nothing any more.
    pub fn hear(&self, words: &mut [u8]) -> usize {
        loop {
            match sd_sys::fd::read(self.read_end.raw(), words) {
                Err(Errno::EINTR) => {}
                said => return said.unwrap_or(0),
            }
        }
    }
}

/// In the child of a fork: another thread's start is none of its business.
pub(crate) fn forked() {
    // SAFETY: the child has one thread, which does not start anything yet.
    unsafe { ONE.force_unlock() };
    if !thread::is_starting() {
        WRITE_END.close();
    }
}

/// In the child of a fork that will not run the program.
pub(super) fn is_other_program() {
    thread::set_starting(false);
    forked();
}
