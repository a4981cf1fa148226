//! The tracer: how the caller makes it and ends it, and its life until the exec.
//!
//! It is a process that shares the caller's memory, so that a large caller pays nothing for it, and nothing else: its
//! descriptors are a copy, which it closes. **It runs with the caller's thread-local words**, so it makes system
//! calls and computes, and does nothing else; all signals are blocked, so that no handler runs in it either. A child
//! in the middle makes it, and ends at once: so the caller, and the program after it, has no child that it does not know of, unless
//! orphans come to it.
//!
//! ```text
//!  BEGUN --caller, PR_SET_PTRACER--> DECLARED --tracer, PTRACE_SEIZE--> SEIZED
//!  any --kernel, at the tracer's end (CLONE_CHILD_CLEARTID)--> ENDED
//! ```
//! After that they have nothing to say to each other but what ptrace(2) says. A tracer that is no longer wanted is
//! killed.

use crate::inject;
use crate::library::Library;
use crate::ptrace::{Stop, Tracee};
use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use sd_sys::futex::{self, Scope};
use sd_sys::{Errno, Result, arch, check, confine, fd, syscall};

const ENDED: u32 = 0;
const BEGUN: u32 = 1;
const DECLARED: u32 = 2;
const SEIZED: u32 = 3;

/// The mapping: a page that nobody may touch, the stack of the child in the middle, the tracer's, and `Shared`.
const ROOM_LEN: usize = 64 << 10;
const GUARD_LEN: usize = 4096;
const MIDDLE_END: usize = 16 << 10;
/// PATH_MAX, which has the zero byte in it.
const PATH_LEN: usize = 4096;

/// What caller and tracer share, above the tracer's stack. All zeros is a value.
#[repr(C, align(64))]
struct Shared {
    /// See above.
    state: AtomicU32,
    /// Why the tracer has ended: written by it before that.
    errno: AtomicI32,
    /// The tracer's id, or -errno: written by the child in the middle.
    pid: AtomicI32,
    /// The thread that will exec. From here on nothing changes while there is a tracer.
    caller: i32,
    path_len: usize,
    /// The library's, with its zero byte. The caller's own copy may be gone after the exec: a vfork(2)'s parent runs
    /// on then.
    path: [u8; PATH_LEN],
}

/// A caller that has not declared its tracer after so long has been killed, or stopped.
const PATIENCE_NS: u64 = 5_000_000_000;

const SHARED_AT: usize = ROOM_LEN - size_of::<Shared>();

/// A tracer that waits for the calling thread's exec.
///
/// After an exec it ends by itself. It is dismissed when the exec has failed; one that is dropped otherwise stays for
/// the next exec.
#[derive(Debug)]
#[must_use = "it is dismissed when the exec has failed"]
pub struct Tracer {
    pid: i32,
    /// The mapping.
    room: *mut u8,
    /// There is a yama, and it has been told.
    is_declared: bool,
}

/// Starts a tracer that brings the library, a file that the crate's documentation describes, into the program that the
/// calling thread executes next. It has seized the thread when this returns.
///
/// Async-signal-safe.
///
/// # Errors
/// What refuses: EPERM (a debugger is there, yama, rights), ENOSYS (a filter), ENOENT and the like (the library's
/// path), ENOEXEC (it is no library), ENOTSUP (children would be in another PID namespace), EAGAIN (too many
/// processes), ENOMEM. ESRCH: something has killed the tracer. Nothing is left then.
pub fn accompany(library: &CStr) -> Result<Tracer> {
    may_be_done()?;
    let mut tracer = Tracer { pid: 0, room: map_room()?, is_declared: false };
    match tracer.begin(library) {
        Ok(()) => Ok(tracer),
        Err(errno) => {
            tracer.dismiss();
            Err(errno)
        }
    }
}

/// The system calls are allowed, to the caller and to the new program, and a child is a child like any other.
fn may_be_done() -> Result<()> {
    const CALLS: [i64; 12] = [
        libc::SYS_clone,
        libc::SYS_wait4,
        libc::SYS_kill,
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_futex,
        libc::SYS_exit_group,
        libc::SYS_openat,
        libc::SYS_mmap,
        libc::SYS_munmap,
        libc::SYS_close,
    ];
    if !CALLS.into_iter().all(confine::allows) {
        return Err(Errno::ENOSYS);
    }
    // After unshare(CLONE_NEWPID) the first child is the new namespace's init, with which it ends: not the tracer.
    // There is no link before that child.
    let own = namespace(c"/proc/thread-self/ns/pid")?;
    match namespace(c"/proc/thread-self/ns/pid_for_children") {
        Ok(of_children) if of_children == own => Ok(()),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

/// namespaces(7): which one.
fn namespace(path: &CStr) -> Result<[u8; 32]> {
    let mut name = [0; 32];
    // SAFETY: the kernel reads the path and writes to the array.
    check(unsafe {
        syscall!(libc::SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), name.as_mut_ptr(), name.len())
    })
    .map(|_| name)
}

/// Not by `sd_sys::mem`, which counts what is the library's in this process: the tracer may have to unmap this in
/// another one.
fn map_room() -> Result<*mut u8> {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let flags = flags | libc::MAP_NORESERVE | libc::MAP_STACK;
    // SAFETY: a new mapping.
    let room = check(unsafe { syscall!(libc::SYS_mmap, 0, ROOM_LEN, prot, flags, -1i64, 0) })?;
    // SAFETY: its first page, which nobody uses.
    check(unsafe { syscall!(libc::SYS_mprotect, room, GUARD_LEN, libc::PROT_NONE) })
        .map(|_| room as *mut u8)
        .inspect_err(|_| unmap_room(room as *mut u8))
}

fn unmap_room(room: *mut u8) {
    // SAFETY: the mapping from above, which nobody uses any more.
    let _ = unsafe { syscall!(libc::SYS_munmap, room, ROOM_LEN) };
}

impl Tracer {
    fn shared_at(&self) -> *mut Shared {
        self.room.wrapping_add(SHARED_AT).cast()
    }

    fn shared(&self) -> &Shared {
        // SAFETY: within the mapping, aligned, and all zeros at first; while there is a tracer only the atomics
        // change.
        unsafe { &*self.shared_at() }
    }

    fn begin(&mut self, library: &CStr) -> Result<()> {
        let path = library.to_bytes_with_nul();
        // SAFETY: as in `shared`, and nobody else knows of it yet.
        let shared = unsafe { &mut *self.shared_at() };
        let place = shared.path.get_mut(..path.len()).ok_or(Errno::ENAMETOOLONG)?;
        place.copy_from_slice(path);
        shared.path_len = path.len();
        shared.caller = fd::gettid();
        shared.errno = AtomicI32::new(libc::ESRCH);
        self.pid = self.clone()?;
        // Before the first attempt, as yama writes a line to the kernel's log about each that it refuses. EINVAL:
        // there is no yama.
        // SAFETY: no pointers.
        let declared = check(unsafe { syscall!(libc::SYS_prctl, libc::PR_SET_PTRACER, self.pid, 0, 0, 0) });
        self.is_declared = declared.is_ok();
        let shared = self.shared();
        shared.change(BEGUN, DECLARED);
        loop {
            match shared.state.load(Ordering::Acquire) {
                SEIZED => return Ok(()),
                ENDED => return Err(Errno(shared.errno.load(Ordering::Relaxed))),
                state => _ = futex::wait(&shared.state, state, None, Scope::Shared),
            }
        }
    }

    /// Makes the tracer: its id.
    fn clone(&self) -> Result<i32> {
        let (all, mut before) = (u64::MAX, 0u64);
        let stack_end = self.room.wrapping_add(MIDDLE_END);
        // It has ended when the call returns. No signal tells.
        let flags = (libc::CLONE_VM | libc::CLONE_VFORK) as usize;
        let argument = self.shared_at().cast();
        // SAFETY: the kernel reads and writes a mask. The stack is within the mapping, which stays until the child
        // has ended, and `middle` keeps to the rules at the head of this file.
        let middle = unsafe {
            syscall!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const all, &raw mut before, 8);
            let pid = arch::clone_apart(flags, stack_end, core::ptr::null(), middle, argument);
            syscall!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const before, 0, 8);
            pid
        };
        reap(check(middle)? as i32, 0);
        check(self.shared().pid.load(Ordering::Relaxed) as isize).map(|pid| pid as i32)
    }

    /// The exec has failed: the tracer lets go and ends. It was as if it had not been.
    ///
    /// Async-signal-safe.
    pub fn dismiss(self) {
        if self.pid > 0 {
            let shared = self.shared();
            loop {
                let state = shared.state.load(Ordering::Acquire);
                if state == ENDED {
                    break;
                }
                // The kernel lets go of the caller, which runs on.
                // SAFETY: no pointers; it has not ended, so the id is the tracer's.
                let _ = unsafe { syscall!(libc::SYS_kill, self.pid, libc::SIGKILL) };
                let _ = futex::wait(&shared.state, state, None, Scope::Shared);
            }
            // Where orphans come to the caller.
            reap(self.pid, libc::WNOHANG);
        }
        if self.is_declared {
            // SAFETY: no pointers.
            let _ = unsafe { syscall!(libc::SYS_prctl, libc::PR_SET_PTRACER, 0, 0, 0, 0) };
        }
        unmap_room(self.room);
    }
}

impl Shared {
    /// Says something to the other side. The end of the tracer is not overwritten.
    fn change(&self, from: u32, to: u32) {
        if self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            futex::wake(&self.state, 1, Scope::Shared);
        }
    }
}

/// wait4(2) for a child of any kind.
fn reap(pid: i32, how: i32) {
    loop {
        // SAFETY: no pointers.
        let ended = unsafe { syscall!(libc::SYS_wait4, pid, 0, how | libc::__WALL, 0) };
        if check(ended) != Err(Errno::EINTR) {
            return;
        }
    }
}

/// The child in the middle: makes the tracer.
///
/// # Safety
/// As for [`main`].
unsafe extern "C" fn middle(at: *mut c_void) -> ! {
    // SAFETY: as the caller says; only the atomics change.
    let shared = unsafe { &*at.cast::<Shared>() };
    // The kernel's word is the state: it is ENDED at the tracer's end.
    let flags = (libc::CLONE_VM | libc::CLONE_CHILD_CLEARTID) as usize;
    shared.state.store(BEGUN, Ordering::Release);
    // SAFETY: the stack is below `Shared`, and stays until the tracer has ended; `main` keeps to the rules.
    let pid = unsafe { arch::clone_apart(flags, at.cast(), &shared.state, main, at) };
    shared.pid.store(pid as i32, Ordering::Relaxed);
    exit()
}

fn exit() -> ! {
    loop {
        // SAFETY: ends this process.
        unsafe { syscall!(libc::SYS_exit_group, 0) };
    }
}

/// The tracer.
///
/// # Safety
/// `shared` leads to what [`accompany`] has made; it stays until this process ends. The stack is that mapping's.
unsafe extern "C" fn main(shared: *mut c_void) -> ! {
    // SAFETY: as the caller says; only the atomics change.
    let shared = unsafe { &*shared.cast::<Shared>() };
    // SAFETY: no pointers. This process's descriptors are a copy of the caller's; kept open, they would keep its
    // sockets open.
    let _ = unsafe { syscall!(libc::SYS_close_range, 0, u32::MAX, 0) };
    let path = shared.path.get(..shared.path_len).unwrap_or(&[]);
    let caller = Tracee(shared.caller);
    match Library::read(path).and_then(|library| seize(caller, shared).map(|()| library)) {
        Ok(library) => follow(&library, path),
        Err(errno) => shared.errno.store(errno.0, Ordering::Relaxed),
    }
    leave(shared)
}

fn seize(caller: Tracee, shared: &Shared) -> Result<()> {
    while shared.state.load(Ordering::Acquire) == BEGUN {
        if futex::wait(&shared.state, BEGUN, Some(PATIENCE_NS), Scope::Shared) == Err(Errno::ETIMEDOUT) {
            return Err(Errno::ESRCH);
        }
    }
    caller.seize().inspect(|()| shared.change(DECLARED, SEIZED))
}

/// Until the exec the caller is as if nobody traced it.
fn follow(library: &Library, path: &[u8]) {
    while let Some((tracee, stop)) = Tracee::next_stop() {
        // Errors: it has been killed, which the next stop tells.
        let _ = match stop {
            Stop::Exec => return inject::begin_with(tracee, library, path),
            Stop::Signal(signal) => tracee.go_on(signal),
            Stop::Group => tracee.stay(),
            Stop::Other => tracee.go_on(0),
        };
    }
}

/// The end of the tracer.
fn leave(shared: &Shared) -> ! {
    if shared.state.load(Ordering::Acquire) == SEIZED {
        // The memory may be a vfork(2)'s parent's, which runs on and knows nothing of the mapping. So the kernel's
        // word is none any more, since another mapping may be there in a moment.
        // SAFETY: no pointers; then the mapping that this runs on, which the caller has no use for: it has executed a
        // program, or ended.
        unsafe {
            syscall!(libc::SYS_set_tid_address, 0);
            let room = core::ptr::from_ref(shared).cast_mut().cast::<u8>().wrapping_sub(SHARED_AT);
            arch::unmap_and_exit(room, ROOM_LEN)
        }
    }
    exit()
}
