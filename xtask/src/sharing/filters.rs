//! Programs that something confined before they began: a seccomp filter that refuses, or kills for, what the library calls, or
//! a cgroup without room for another process. They get what Linux gives them, over the kernel's path if need be.

use super::{served, start};
use harness::lab::{Lab, Side};
use harness::{Result, fail};
use nix::libc;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

const CHAT_LIMIT: Duration = Duration::from_secs(60);

/// What a filter is about.
const SUBJECTS: [(&str, &[i64]); 17] = [
    ("memfds", &[libc::SYS_memfd_create]),
    ("asynchronous I/O", &[libc::SYS_io_setup, libc::SYS_io_submit]),
    ("futex_waitv", &[449]),
    ("membarrier", &[libc::SYS_membarrier]),
    ("pidfds", &[libc::SYS_pidfd_open]),
    ("eventfds", &[libc::SYS_eventfd, libc::SYS_eventfd2]),
    ("messages", &[libc::SYS_sendmsg, libc::SYS_recvmsg]),
    ("pairs", &[libc::SYS_socketpair]),
    ("new waits", &[libc::SYS_epoll_pwait2, libc::SYS_ppoll]),
    ("identities", &[libc::SYS_getpid, libc::SYS_getuid, libc::SYS_geteuid, libc::SYS_getresuid]),
    ("seals", &[libc::SYS_ftruncate]),
    ("old opens", &[libc::SYS_open]),
    ("yields", &[libc::SYS_sched_yield, libc::SYS_nanosleep]),
    ("locks", &[libc::SYS_flock]),
    ("signals", &[libc::SYS_kill, libc::SYS_tgkill, libc::SYS_rt_tgsigqueueinfo]),
    ("holes", &[libc::SYS_madvise, libc::SYS_mremap]),
    ("statfs", &[libc::SYS_statfs, libc::SYS_fgetxattr, libc::SYS_close_range]),
];

/// Each filter of server and client, refusing and killing.
pub(super) fn run(lab: &mut Lab) -> Result<String> {
    let lists = SUBJECTS.iter().map(|(name, calls)| {
        let numbers: Vec<String> = calls.iter().map(i64::to_string).collect();
        (*name, numbers.join(","))
    });
    let named = ["small", "system-service", "shared", "unix"].map(|name| (name, name.to_owned()));
    let mut count = 0;
    for (name, what) in lists.chain(named) {
        for action in ["eperm", "kill"] {
            pair(lab, &["confined", &format!("{action}-{what}")])
                .map_err(|error| format!("{action}, {name}: {error}"))?;
            count += 2;
        }
    }
    Ok(format!("{count} pairs"))
}

/// A cgroup in which there may be the two processes, and no other.
pub(super) fn no_processes(lab: &mut Lab) -> Result<String> {
    let Some(group) = Group::new(2) else {
        return Ok("skipped: no cgroup for numbers of processes".to_owned());
    };
    pair(lab, &["confined", &format!("group-{}", group.0.join("cgroup.procs").display())])?;
    Ok("as server and as client".to_owned())
}

struct Group(PathBuf);

impl Group {
    fn new(most: u32) -> Option<Group> {
        ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].into_iter().find_map(|mount| {
            let place = PathBuf::from(mount).join(format!("sd-sharing-{}-pids", std::process::id()));
            fs::create_dir(&place).ok()?;
            let group = Group(place);
            fs::write(group.0.join("pids.max"), most.to_string()).ok()?;
            Some(group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// A confined server with a client that is not, and the other way round.
fn pair(lab: &mut Lab, confined: &[&str]) -> Result<()> {
    for is_server in [true, false] {
        let (of_server, of_client) = if is_server { (confined, &[][..]) } else { (&[][..], confined) };
        let (server, port) = served(start(lab, Side::Sd, &[of_server, &["echo"]].concat())?)?;
        let client = start(lab, Side::Sd, &[of_client, &["chat", &port, "24", "1"]].concat())?;
        let done = client.wait(CHAT_LIMIT)?.ok();
        let who = if is_server { "server" } else { "client" };
        done.map_err(|error| format!("the {who} is confined: {error}"))?;
        let end = server.terminate(Duration::from_secs(5))?;
        if end.stderr.contains("sd-sharing") {
            fail!("the {who} is confined, and the server says {}", end.stderr);
        }
    }
    Ok(())
}
