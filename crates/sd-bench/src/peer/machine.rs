//! What single operations of the machine and its kernel cost: the rows of the paper's Table 2 that are not sockets.

use super::clock::{Clock, ticks};
use super::{Options, Report};
use sd_cli::failure::{Context, Failure, Result, last_os_error, os_error};
use sd_ring::copy::copy_shared;
use sd_shm::channel::SEGMENT_LEN;
use sd_sys::fd::Owned;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const PAGE: usize = 4096;
const PAGES: usize = 32;

/// All operations, each for a part of the time: nanoseconds each.
pub(crate) fn run(options: &Options) -> Result<Report> {
    super::pin(options.cpu)?;
    let each = options.duration() / 11;
    let mut items = BTreeMap::new();
    let mut add = |name: &str, ns: f64| items.insert(name.to_owned(), ns);
    add("system call", timed(each, system_call));
    let lock = AtomicBool::new(false);
    add("spinlock, no contention", timed(each, || locked(&lock)));
    add("spinlock, contended", contended(each, options)?);
    let queues: Vec<AtomicU64> = (0..PAGES * 16).map(|_| AtomicU64::new(0)).collect();
    add("poll 32 empty queues", timed(each, || poll(&queues)));
    add("allocate and free a buffer", timed(each, allocate));
    let (from, mut to) = (vec![1u8; PAGES * PAGE], vec![0u8; PAGES * PAGE]);
    add("copy one page", timed(each, || copy(&from, &mut to, PAGE)));
    add("copy 32 pages", timed(each, || copy(&from, &mut to, PAGES * PAGE)));
    let area = Area::new()?;
    add("map one page", timed(each, || area.remap(1)));
    add("map 32 pages", timed(each, || area.remap(PAGES)));
    add("open a socket", timed(each, open_socket));
    let post = Post::new()?;
    add("hand fresh memory to two processes", timed(each, || post.introduce()));
    add("context switch by yielding", switch(each)?);
    Ok(Report { items, ..Report::default() })
}

/// Nanoseconds per call, over about so much time.
fn timed(time: Duration, mut operation: impl FnMut()) -> f64 {
    for _ in 0..64 {
        operation();
    }
    let clock = Clock::start(time);
    let mut done = 0u64;
    while !clock.is_over(ticks()) {
        for _ in 0..64 {
            operation();
        }
        done += 64;
    }
    clock.elapsed_ns() / done as f64
}

fn system_call() {
    // SAFETY: no arguments.
    black_box(unsafe { libc::syscall(libc::SYS_getppid) });
}

fn locked(lock: &AtomicBool) {
    while lock.swap(true, Ordering::Acquire) {
        std::hint::spin_loop();
    }
    lock.store(false, Ordering::Release);
}

/// Two threads on two processors want one lock.
fn contended(time: Duration, options: &Options) -> Result<f64> {
    let lock = AtomicBool::new(false);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let pinned = super::pin(options.cpu_other);
            while !over.load(Ordering::Relaxed) {
                locked(&lock);
            }
            pinned
        });
        let ns = timed(time, || locked(&lock));
        over.store(true, Ordering::Relaxed);
        other.join().unwrap_or_else(|_| Err(Failure::new("a thread panicked"))).map(|()| ns)
    })
}

fn poll(queues: &[AtomicU64]) {
    let found = queues.iter().step_by(16).filter(|queue| queue.load(Ordering::Acquire) != 0).count();
    black_box(found);
}

fn allocate() {
    drop(black_box(Vec::<u8>::with_capacity(1536)));
}

fn copy(from: &[u8], to: &mut [u8], len: usize) {
    // SAFETY: both are at least so long, and apart.
    unsafe { copy_shared(to.as_mut_ptr(), from.as_ptr(), len) };
    black_box(to);
}

fn open_socket() {
    drop(sd_sys::fd::socket(libc::AF_INET, libc::SOCK_STREAM, 0));
}

/// Pages of a memfd that are mapped over themselves.
struct Area {
    fd: Owned,
    base: *mut u8,
}

impl Area {
    fn new() -> Result<Area> {
        let fd = sd_sys::mem::memfd_sealed(c"sd-bench", PAGES * PAGE).map_err(os_error).context("memfd")?;
        let base = sd_sys::mem::map_shared(fd.raw(), PAGES * PAGE, true).map_err(os_error).context("mmap")?;
        Ok(Area { fd, base })
    }

    fn remap(&self, pages: usize) {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_POPULATE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: replaces pages of our own mapping by the same ones.
        black_box(unsafe { libc::mmap(self.base.cast(), pages * PAGE, access, flags, self.fd.raw(), 0) });
    }
}

/// What an introduction of two processes cannot do without: memory that cannot change its size, a message with its
/// descriptor for each, both mappings. Nobody has to be woken for it here.
struct Post([[Owned; 2]; 2]);

impl Post {
    fn new() -> Result<Post> {
        let pair = || sd_sys::msg::pair_with_credentials().map_err(os_error).context("socketpair");
        Ok(Post([pair()?, pair()?]))
    }

    fn introduce(&self) {
        let Ok(memory) = sd_sys::mem::memfd_sealed(c"sd-bench", SEGMENT_LEN) else { return };
        for [here, there] in &self.0 {
            let sent = sd_sys::msg::send_with_fds(here.raw(), &[0], &[memory.raw()], 0);
            let came = sd_sys::msg::recv_with_fds(there.raw(), &mut [0; 8], 0);
            if let (Ok(_), Ok(came)) = (sent, came) {
                came.fds.hand_over(map_and_forget);
            }
        }
    }
}

/// As who was introduced maps the segment.
fn map_and_forget(fd: Owned) {
    if let Ok(base) = sd_sys::mem::map_apart(fd.raw(), SEGMENT_LEN) {
        // SAFETY: just mapped, and used by nobody.
        unsafe { sd_sys::mem::unmap(base, SEGMENT_LEN) };
    }
}

/// Two processes on one processor pass a word to and fro and yield in between: one way.
fn switch(time: Duration) -> Result<f64> {
    let fd = sd_sys::mem::memfd_sealed(c"sd-bench", PAGE).map_err(os_error).context("memfd")?;
    let page = sd_sys::mem::map_shared(fd.raw(), PAGE, true).map_err(os_error).context("mmap")?;
    // SAFETY: a page-aligned mapping that is never unmapped.
    let word = unsafe { AtomicU64::from_ptr(page.cast()) };
    let wait_for = |parity: u64| {
        while word.load(Ordering::Acquire) & 1 != parity {
            sd_sys::time::yield_now();
        }
    };
    // SAFETY: the other threads of this process have ended.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(last_os_error()).context("fork");
    }
    if child == 0 {
        // SAFETY: integer arguments only.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        loop {
            wait_for(1);
            word.fetch_add(1, Ordering::AcqRel);
        }
    }
    let ns = timed(time, || {
        word.fetch_add(1, Ordering::AcqRel);
        wait_for(0);
    });
    // SAFETY: ends and takes the child made above.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    Ok(ns / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Not how long anything takes: a machine may be busy.
    #[test]
    fn operations_can_be_repeated() {
        let queues: Vec<AtomicU64> = (0..PAGES * 16).map(|_| AtomicU64::new(0)).collect();
        let area = Area::new().unwrap();
        let post = Post::new().unwrap();
        let operations: [&mut dyn FnMut(); 6] = [
            &mut || poll(&queues),
            &mut system_call,
            &mut allocate,
            &mut || area.remap(PAGES),
            &mut open_socket,
            &mut || post.introduce(),
        ];
        for operation in operations {
            assert!(timed(Duration::from_millis(1), operation) > 0.0);
        }
        assert!(switch(Duration::from_millis(1)).unwrap() > 0.0);
    }
}
