//! posix_spawn(3): glibc starts the program by a clone that no hook of ours sees. When the program is to have
//! a socket of ours, or has no libc and so needs the library to be brought into it, it is started here instead, by fork and exec, after glibc's `spawni.c`.

use super::exec;
use super::file_actions::{self, Step};
use crate::edge::last_errno;
use crate::table::{hook, real};
use core::ffi::{c_char, c_int, c_short};
use core::mem::MaybeUninit;
use core::ptr::{null, null_mut};
use libc::{mode_t, posix_spawn_file_actions_t, posix_spawnattr_t, sched_param, sigset_t};
use sd_socket::{Outcome, calls};
use sd_sys::Errno;

type Argv = *const *const c_char;

/// What runs in the child.
#[derive(Clone, Copy)]
pub(crate) struct Program {
    pub(crate) path: *const c_char,
    pub(crate) argv: Argv,
    pub(crate) environment: Argv,
    /// Looked for in PATH.
    pub(crate) is_searched: bool,
}

impl Program {
    fn looked_for(&self) -> exec::Program {
        if self.is_searched { exec::Program::Searched { file: self.path } } else { exec::at(self.path) }
    }
}

/// What happens before that, beside the file actions.
pub(crate) struct Attributes {
    flags: c_int,
    group: libc::pid_t,
    pub(crate) defaults: sigset_t,
    pub(crate) mask: sigset_t,
    policy: c_int,
    priority: sched_param,
}

const SET_SID: c_int = 0x80;
/// Flags that are understood here; glibc 2.39 has one more (a control group).
const KNOWN: c_int = libc::POSIX_SPAWN_RESETIDS
    | libc::POSIX_SPAWN_SETPGROUP
    | libc::POSIX_SPAWN_SETSIGDEF
    | libc::POSIX_SPAWN_SETSIGMASK
    | libc::POSIX_SPAWN_SETSCHEDPARAM
    | libc::POSIX_SPAWN_SETSCHEDULER
    | libc::POSIX_SPAWN_USEVFORK as c_int
    | SET_SID;

impl Attributes {
    /// None at all.
    pub(crate) fn none() -> Attributes {
        Attributes { flags: 0, ..Attributes::signals(empty_set(), empty_set()) }
    }

    /// None but these defaults for signals, and this mask.
    pub(crate) fn signals(defaults: sigset_t, mask: sigset_t) -> Attributes {
        let flags = libc::POSIX_SPAWN_SETSIGDEF | libc::POSIX_SPAWN_SETSIGMASK;
        Attributes { flags, group: 0, defaults, mask, policy: 0, priority: sched_param { sched_priority: 0 } }
    }

    /// # Safety
    /// `given` is null or an initialised object.
    unsafe fn of(given: *const posix_spawnattr_t) -> Attributes {
        let mut flags: c_short = 0;
        let mut found = Attributes::none();
        if given.is_null() {
            return found;
        }
        // SAFETY: by contract; the results are ours.
        unsafe {
            libc::posix_spawnattr_getflags(given, &mut flags);
            libc::posix_spawnattr_getpgroup(given, &mut found.group);
            libc::posix_spawnattr_getsigdefault(given, &mut found.defaults);
            libc::posix_spawnattr_getsigmask(given, &mut found.mask);
            libc::posix_spawnattr_getschedpolicy(given, &mut found.policy);
            libc::posix_spawnattr_getschedparam(given, &mut found.priority);
        }
        found.flags = c_int::from(flags) & 0xffff;
        found
    }

    fn has(&self, flag: c_int) -> bool {
        self.flags & flag != 0
    }
}

fn empty_set() -> sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// posix_spawn(3) and posix_spawnp(3).
///
/// # Safety
/// libc's contract.
pub(crate) unsafe fn posix_spawn(
    pid: *mut libc::pid_t,
    program: Program,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
) -> Outcome<c_int> {
    // SAFETY: libc's contract.
    let Some(steps) = (unsafe { file_actions::read(actions) }) else { return Outcome::Kernel };
    // SAFETY: libc's contract.
    let is_ours = calls::spawn_passes_sockets(&file_actions::duplicated(&steps))
        || unsafe { calls::spawn_accompanies(program.looked_for(), program.environment) };
    if !is_ours {
        // SAFETY: libc's contract.
        return unsafe { by_libc(pid, program, &steps, actions, attributes) };
    }
    // SAFETY: libc's contract.
    let attributes = unsafe { Attributes::of(attributes) };
    if attributes.flags & !KNOWN != 0 {
        return Outcome::Kernel;
    }
    // SAFETY: libc's contract.
    match unsafe { start(program, &steps, &attributes) } {
        Ok(child) => {
            if !pid.is_null() {
                // SAFETY: libc's contract.
                unsafe { *pid = child };
            }
            Outcome::Done(0)
        }
        Err(errno) => Outcome::Done(errno.0),
    }
}

/// A program that has nothing of ours; without the library, if it can do without.
///
/// # Safety
/// libc's contract.
unsafe fn by_libc(
    pid: *mut libc::pid_t,
    program: Program,
    steps: &[Step],
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
) -> Outcome<c_int> {
    // A relative path is looked for elsewhere then.
    if steps.iter().any(|step| matches!(step, Step::ChangeDirectory { .. } | Step::ChangeToFd { .. })) {
        return Outcome::Kernel;
    }
    let Program { path, argv, environment, is_searched } = program;
    let start: unsafe fn(_, _, _, _, _, _) -> _ =
        if is_searched { real::posix_spawnp } else { real::posix_spawn };
    let mut room = exec::Variables::new();
    // SAFETY: libc's contract.
    unsafe {
        let environment = calls::spawn_environment(program.looked_for(), environment, &mut room);
        Outcome::Done(start(pid, path, actions, attributes, argv, environment))
    }
}

/// Starts the program; its process id.
///
/// # Safety
/// As for posix_spawn(3).
pub(crate) unsafe fn start(
    program: Program,
    steps: &[Step],
    attributes: &Attributes,
) -> Result<libc::pid_t, Errno> {
    let starting = calls::spawn_begin()?;
    let (mut all, mut before) = (empty_set(), empty_set());
    // SAFETY: the sets are ours; the child goes on as after fork(3), and ends in any case.
    let pid = unsafe {
        // No handler of the program may run in the child.
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before);
        let pid = hook::fork();
        if pid == 0 {
            starting.failed(run(program, steps, attributes, &before));
            libc::_exit(127);
        }
        pid
    };
    let fork_errno = last_errno();
    let started = starting.wait(pid > 0);
    // SAFETY: a set that was read above; a child that has failed is ours to reap.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, null_mut());
        if pid > 0 && started.is_err() {
            while libc::waitpid(pid, null_mut(), 0) == -1 && last_errno() == Errno::EINTR {}
        }
    }
    if pid < 0 { Err(fork_errno) } else { started.map(|()| pid) }
}

/// In the child: everything up to the exec. The errno of what failed.
///
/// # Safety
/// As for posix_spawn(3).
unsafe fn run(program: Program, steps: &[Step], attributes: &Attributes, before: &sigset_t) -> Errno {
    // SAFETY: libc's contract.
    unsafe {
        reset_signals(attributes);
        if !set_identity(attributes) {
            return last_errno();
        }
        for step in steps {
            if let Err(errno) = take(step, attributes) {
                return errno;
            }
        }
        let mask = if attributes.has(libc::POSIX_SPAWN_SETSIGMASK) { &attributes.mask } else { before };
        libc::pthread_sigmask(libc::SIG_SETMASK, mask, null_mut());
        let Program { path, argv, environment, is_searched } = program;
        if is_searched {
            hook::execvpe(path, argv, environment);
        } else {
            hook::execve(path, argv, environment);
        }
    }
    last_errno()
}

/// # Safety
/// Only in the child.
unsafe fn reset_signals(attributes: &Attributes) {
    let is_default = |signal| {
        // SAFETY: an initialised set.
        attributes.has(libc::POSIX_SPAWN_SETSIGDEF)
            && unsafe { libc::sigismember(&attributes.defaults, signal) } == 1
    };
    for signal in 1..=64 {
        // SAFETY: an all-zero action is valid, and means SIG_DFL.
        unsafe {
            let mut old: libc::sigaction = core::mem::zeroed();
            let fresh: libc::sigaction = core::mem::zeroed();
            if libc::sigaction(signal, null(), &mut old) == 0
                && (old.sa_sigaction != libc::SIG_IGN || is_default(signal))
            {
                libc::sigaction(signal, &fresh, null_mut());
            }
        }
    }
}

/// Scheduling, session, group and user; false with errno set.
///
/// # Safety
/// Only in the child.
unsafe fn set_identity(attributes: &Attributes) -> bool {
    // SAFETY: no pointers but to our own values. The raw calls are of this thread alone, which is the only one.
    unsafe {
        let scheduled = if attributes.has(libc::POSIX_SPAWN_SETSCHEDULER) {
            libc::sched_setscheduler(0, attributes.policy, &attributes.priority) != -1
        } else if attributes.has(libc::POSIX_SPAWN_SETSCHEDPARAM) {
            libc::sched_setparam(0, &attributes.priority) != -1
        } else {
            true
        };
        scheduled
            && (!attributes.has(SET_SID) || libc::setsid() != -1)
            && (!attributes.has(libc::POSIX_SPAWN_SETPGROUP) || libc::setpgid(0, attributes.group) != -1)
            && (!attributes.has(libc::POSIX_SPAWN_RESETIDS)
                || (libc::seteuid(libc::getuid()) != -1 && libc::setegid(libc::getgid()) != -1))
    }
}

/// Takes one step; errno when it fails.
///
/// # Safety
/// Only in the child; paths are C strings.
unsafe fn take(step: &Step, attributes: &Attributes) -> Result<(), Errno> {
    // SAFETY: by contract.
    let done = unsafe {
        match *step {
            Step::Close { fd } => {
                // Only a number that cannot be is an error.
                hook::close(fd);
                let is_number = fd >= 0 && (fd as u64) < sd_sys::fd::nofile_limit();
                return if is_number { Ok(()) } else { Err(Errno::EBADF) };
            }
            Step::Duplicate { from, to } => duplicate(from, to),
            Step::Open { fd, path, flags, mode } => open(fd, path, flags, mode),
            Step::ChangeDirectory { path } => libc::chdir(path),
            Step::ChangeToFd { fd } => libc::fchdir(fd),
            Step::CloseFrom { fd } => {
                hook::closefrom(fd);
                0
            }
            Step::Foreground { fd } => {
                let given = attributes.has(libc::POSIX_SPAWN_SETPGROUP) && attributes.group != 0;
                libc::tcsetpgrp(fd, if given { attributes.group } else { libc::getpgrp() })
            }
        }
    };
    if done == -1 { Err(last_errno()) } else { Ok(()) }
}

/// A number onto itself means that it stays open.
fn duplicate(from: c_int, to: c_int) -> c_int {
    // SAFETY: no pointers.
    unsafe {
        if from != to {
            return hook::dup2(from, to);
        }
        match real::fcntl(from, libc::F_GETFD, 0) {
            -1 => -1,
            flags => real::fcntl(from, libc::F_SETFD, (flags & !libc::FD_CLOEXEC) as _),
        }
    }
}

/// # Safety
/// `path` is a C string.
unsafe fn open(fd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: by contract.
    unsafe {
        hook::close(fd);
        match hook::open(path, flags, mode) {
            -1 => -1,
            opened if opened == fd => 0,
            opened => {
                let moved = hook::dup2(opened, fd);
                hook::close(opened);
                moved
            }
        }
    }
}
