//! Memory, addresses, descriptors or files are not to be had: connections go over the kernel then, or go on as they are,
//! and no byte is lost. The limits are set from outside, before the program starts or while it runs.

use super::{program, served};
use harness::lab::{Lab, Side};
use harness::process::Proc;
use harness::{Result, fail, procfs, until};
use nix::libc;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const CHAT_LIMIT: Duration = Duration::from_secs(60);

/// What there is too little of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Want {
    /// RLIMIT_AS: the slab, or the segments, cannot be mapped.
    Addresses(u64),
    /// RLIMIT_NOFILE.
    Descriptors(u64),
    /// RLIMIT_FSIZE: no segment can be made.
    FileSize(u64),
    /// memfd_create(2) fails, as for want of memory.
    Memfds,
    /// mmap(2) fails for segments, which nobody can foresee.
    Mappings,
    /// `/dev/shm` is full.
    SharedFolder,
    /// Memory is accounted for strictly (vm.overcommit_memory), so that any page could be refused: nothing is shared.
    Overcommit,
}

pub(super) const WANTS: &[(&str, Want)] = &[
    ("addresses-none", Want::Addresses(300 * MIB)),
    ("addresses-few", Want::Addresses(2000 * MIB)),
    ("addresses-of-one", Want::Addresses(11_000 * MIB)),
    ("descriptors", Want::Descriptors(40)),
    ("file-size", Want::FileSize(MIB)),
    ("memfds", Want::Memfds),
    ("dev-shm", Want::SharedFolder),
    ("overcommit", Want::Overcommit),
];

/// A program that starts with too little, as server and as client, beside others that have enough.
pub(super) fn from_the_start(lab: &mut Lab, want: Want) -> Result<String> {
    for is_server in [true, false] {
        let (for_server, for_client) = if is_server { (Some(want), None) } else { (None, Some(want)) };
        let (server, port) = echo(lab, for_server)?;
        if matches!(for_server, Some(Want::Overcommit))
            && !lab.is_oracle()
            && !lab.snapshot()?.listeners.is_empty()
        {
            fail!("the listener is known to the monitor");
        }
        let clients: Vec<Proc> =
            (0..4).map(|_| start(lab, &["chat", &port, "100"], for_client)).collect::<Result<_>>()?;
        for client in clients {
            client.wait(CHAT_LIMIT)?.ok().map_err(|error| {
                format!(
                    "{}: {error}",
                    if is_server { "a server with too little" } else { "a client with too little" }
                )
            })?;
        }
        server.terminate(Duration::from_secs(5))?;
    }
    Ok("as server and as client".to_owned())
}

/// A limit that falls upon a running process: a server that has connections, or the monitor.
pub(super) fn while_running(lab: &mut Lab, of_monitor: bool) -> Result<String> {
    for resource in [libc::RLIMIT_AS, libc::RLIMIT_NOFILE, libc::RLIMIT_FSIZE] {
        let (server, port) = echo(lab, None)?;
        let before_it = procfs::lowest_free_fd(server.pid());
        let early = start(lab, &["chat", &port, "10000"], None)?;
        let is_accepted = || procfs::lowest_free_fd(server.pid()) != before_it;
        until("the early client is accepted", CHAT_LIMIT, is_accepted)?;
        let victim = if of_monitor { lab.monitor_pid() } else { Some(server.pid()) };
        let before = victim.map(|pid| lower(pid, resource)).transpose()?;
        for round in 0..3 {
            let late = start(lab, &["chat", &port, "60"], None)?;
            late.wait(CHAT_LIMIT)?
                .ok()
                .map_err(|error| format!("limit {resource} fell, then client {round}: {error}"))?;
        }
        early
            .wait(CHAT_LIMIT)?
            .ok()
            .map_err(|error| format!("limit {resource}: the early client: {error}"))?;
        if let (Some(pid), Some(before)) = (victim, before) {
            set(pid, resource, before)?;
        }
        start(lab, &["chat", &port, "60"], None)?.wait(CHAT_LIMIT)?.ok()?;
        server.terminate(Duration::from_secs(5))?;
    }
    Ok("addresses, descriptors, file size".to_owned())
}

/// A server that turns out not to be able to take a segment: the connection that was under way is reset, and does not
/// hang; the next ones are the kernel's.
pub(super) fn unforeseen(lab: &mut Lab) -> Result<String> {
    let (server, port) = echo(lab, Some(Want::Mappings))?;
    let first = start(lab, &["chat", &port, "60"], None)?.wait(CHAT_LIMIT)?;
    if !first.status.success() && !first.stderr.contains("reset") {
        fail!("the first connection: {}", first.stderr);
    }
    for _ in 0..3 {
        start(lab, &["chat", &port, "60"], None)?.wait(CHAT_LIMIT)?.ok()?;
    }
    server.terminate(Duration::from_secs(5))?;
    // As a client the same program has lost nothing.
    let (server, port) = echo(lab, None)?;
    start(lab, &["chat", &port, "60"], Some(Want::Mappings))?.wait(CHAT_LIMIT)?.ok()?;
    server.terminate(Duration::from_secs(5))?;
    Ok(format!("the first connection ended with {}", first.status))
}

fn echo(lab: &Lab, want: Option<Want>) -> Result<(Proc, String)> {
    served(start(lab, &["echo"], want)?)
}

fn start(lab: &Lab, args: &[&str], want: Option<Want>) -> Result<Proc> {
    let mut command = lab.command(Side::Sd, &program().to_string_lossy(), args)?;
    if let Some(want) = want {
        limit(lab, &mut command, want)?;
    }
    Proc::start(&mut command, args[0], lab.path())
}

/// The command, and what it executes, will have too little.
fn limit(lab: &Lab, command: &mut Command, want: Want) -> Result<()> {
    let setting = lab.path().join("overcommit_memory");
    std::fs::write(&setting, "2\n")?;
    let setting = CString::new(setting.into_os_string().into_vec())?;
    let act = move || match want {
        Want::Addresses(bytes) => own_limit(libc::RLIMIT_AS, bytes),
        Want::Descriptors(count) => own_limit(libc::RLIMIT_NOFILE, count),
        Want::FileSize(bytes) => own_limit(libc::RLIMIT_FSIZE, bytes),
        Want::Memfds => filter(&mut [
            step(LOAD, 0, 0, NUMBER),
            step(JUMP_IF_EQUAL, 0, 1, libc::SYS_memfd_create as u32),
            step(RETURN, 0, 0, NO_MEMORY),
            step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        ]),
        Want::Mappings => filter(&mut [
            step(LOAD, 0, 0, NUMBER),
            step(JUMP_IF_EQUAL, 0, 3, libc::SYS_mmap as u32),
            step(LOAD, 0, 0, SECOND_ARGUMENT_HIGH),
            step(JUMP_IF_EQUAL, 1, 0, 0),
            step(RETURN, 0, 0, NO_MEMORY),
            step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        ]),
        Want::SharedFolder => fill_shared_folder(),
        Want::Overcommit => account_strictly(&setting),
    };
    // SAFETY: `act` makes system calls only.
    unsafe { command.pre_exec(act) };
    Ok(())
}

fn ok(result: i32) -> std::io::Result<()> {
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

fn own_limit(resource: libc::__rlimit_resource_t, value: u64) -> std::io::Result<()> {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: the kernel reads one rlimit.
    ok(unsafe { libc::setrlimit(resource, &limit) })
}

/// Steps of a filter (seccomp(2)), and what they look at.
const LOAD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
const NUMBER: u32 = 0;
const SECOND_ARGUMENT_HIGH: u32 = 28;
const NO_MEMORY: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOMEM as u32;

fn step(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

fn filter(steps: &mut [libc::sock_filter]) -> std::io::Result<()> {
    let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the kernel reads the filter.
    unsafe {
        ok(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        ok(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter))
    }
}

/// A mount namespace of its own.
fn own_mounts() -> std::io::Result<()> {
    // SAFETY: C strings.
    unsafe {
        ok(libc::unshare(libc::CLONE_NEWNS))?;
        let private = libc::MS_REC | libc::MS_PRIVATE;
        ok(libc::mount(std::ptr::null(), c"/".as_ptr(), std::ptr::null(), private, std::ptr::null()))
    }
}

/// `/dev/shm` has room for one page.
fn fill_shared_folder() -> std::io::Result<()> {
    own_mounts()?;
    let (tmpfs, shm) = (c"tmpfs".as_ptr(), c"/dev/shm".as_ptr());
    // SAFETY: C strings.
    ok(unsafe { libc::mount(tmpfs, shm, tmpfs, 0, c"size=4k,nr_inodes=1".as_ptr().cast()) })
}

/// The setting is the whole machine's, so it is covered by a file that says the same.
fn account_strictly(file: &CStr) -> std::io::Result<()> {
    own_mounts()?;
    let (setting, null) = (c"/proc/sys/vm/overcommit_memory".as_ptr(), std::ptr::null());
    // SAFETY: C strings.
    ok(unsafe { libc::mount(file.as_ptr(), setting, null, libc::MS_BIND, null.cast()) })
}

/// Lowers a limit of a running process to about what it uses now: the limit before.
fn lower(pid: u32, resource: libc::__rlimit_resource_t) -> Result<libc::rlimit> {
    let used = match resource {
        libc::RLIMIT_AS => procfs::mapped_bytes(pid),
        // For a late client, and the early one, which connects anew before it closes.
        libc::RLIMIT_NOFILE => procfs::lowest_free_fd(pid) + 2,
        _ => 4096,
    };
    let before = get(pid, resource)?;
    set(pid, resource, libc::rlimit { rlim_cur: used, rlim_max: before.rlim_max })?;
    Ok(before)
}

fn get(pid: u32, resource: libc::__rlimit_resource_t) -> Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one rlimit.
    match unsafe { libc::prlimit(pid as i32, resource, std::ptr::null(), &mut limit) } {
        0 => Ok(limit),
        _ => fail!("prlimit of {pid}: {}", std::io::Error::last_os_error()),
    }
}

fn set(pid: u32, resource: libc::__rlimit_resource_t, limit: libc::rlimit) -> Result<()> {
    // SAFETY: the kernel reads one rlimit.
    match unsafe { libc::prlimit(pid as i32, resource, &limit, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => fail!("prlimit of {pid}: {}", std::io::Error::last_os_error()),
    }
}
