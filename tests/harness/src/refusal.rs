//! As where ptrace(2) is refused, by a container's filter or a hardened system: the calling process gets a filter (seccomp(2)) that refuses it, and
//! so have all that it starts.

use crate::Result;
use nix::libc;
use std::io::Error;

/// Refuses ptrace(2), with EPERM, to the calling thread and whom it starts. Async-signal-safe.
///
/// # Errors
/// The kernel's.
pub fn refuse_ptrace() -> std::io::Result<()> {
    let op = |code: u32, jf, k| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let mut program = [
        // The number is the first word of what the filter looks at.
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, libc::SYS_ptrace as u32),
        op(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        op(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: numbers; then a filter that lives until the call returns.
    let results = unsafe {
        [
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter),
        ]
    };
    if results == [0, 0] { Ok(()) } else { Err(Error::last_os_error()) }
}

/// The same to a command.
pub fn without_ptrace(command: &mut std::process::Command) {
    use std::os::unix::process::CommandExt;
    // SAFETY: it is async-signal-safe.
    unsafe { command.pre_exec(refuse_ptrace) };
}

/// The same to this process, which has one thread.
///
/// # Errors
/// The kernel's, or it was in vain.
pub fn live_without_ptrace() -> Result<()> {
    refuse_ptrace()?;
    // SAFETY: no pointers.
    let is_refused = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) } == -1;
    if is_refused { Ok(()) } else { crate::fail!("ptrace(2) is allowed all the same") }
}
