//! stress-ng's stressors of sockets, events, descriptors and processes, each checking itself (`--verify`).

use super::compare::{HANG, Outcomes};
use super::stage::Stage;
use super::{Choice, Item};
use harness::Result;
use std::time::Duration;

const STRESSORS: &[&str] = &[
    "sock",
    "sockabuse",
    "sockdiag",
    "sockfd",
    "sockmany",
    "sockpair",
    "epoll",
    "poll",
    "sendfile",
    "splice",
    "tee",
    "vm-splice",
    "udp",
    "udp-flood",
    "dccp",
    "sctp",
    "rawsock",
    "rawudp",
    "icmp-flood",
    "ping-sock",
    "netdev",
    "netlink-proc",
    "af-alg",
    "sigio",
    "sigpipe",
    "sigfd",
    "sigpending",
    "dup",
    "close",
    "eventfd",
    "timerfd",
    "inotify",
    "pipe",
    "pipeherd",
    "ring-pipe",
    "fifo",
    "fork",
    "vfork",
    "vforkmany",
    "exec",
    "spawn",
    "clone",
    "daemon",
    "zombie",
    "kill",
    "pidfd",
    "memfd",
    "fd-race",
    "fcntl",
    "ioport",
    "open",
    "mmapfork",
    "io-uring",
    "bad-ioctl",
    "handle",
    "dev-shm",
    "sem",
    "futex",
    "mq",
    "msg",
    "pthread",
    "signal",
    "sysinfo",
];

/// Stressors that are enough for a quick look.
const FAST: &[&str] =
    &["sock", "sockmany", "sockfd", "sockpair", "epoll", "poll", "sendfile", "splice", "udp", "dup"];

const TIMEOUT: Duration = Duration::from_secs(60);

/// stress-ng: the stressor is not there, or cannot run on this system.
const EXIT_NOT_IMPLEMENTED: i32 = 4;

pub(crate) fn items() -> impl Iterator<Item = Item> {
    let needs = &["stress-ng"];
    let item = |name, is_fast| Item { suite: "stress-ng", name, needs, is_fast, source: None, run };
    [item("fast", true), item("all", false)].into_iter()
}

fn run(stage: &Stage, item: &Item, choice: &Choice) -> Result<Outcomes> {
    let all = if item.is_fast { FAST } else { STRESSORS };
    let mut outcomes = Outcomes::new();
    for name in all.iter().filter(|name| choice.has(name)) {
        let option = format!("--{name}");
        // Two of each, so that they meet; they end by the clock, since counts of operations differ in cost.
        let args = [&option, "2", "--timeout", "2", "--verify", "--quiet", "--temp-path", "."];
        let ended = stage.watch(&mut stage.command("stress-ng", &args)?, name, None, TIMEOUT)?;
        let word = match ended.code {
            _ if ended.is_hung => HANG,
            Some(0) => "pass",
            Some(EXIT_NOT_IMPLEMENTED) => "skip",
            _ if ended.text.contains("unrecognized option") => "absent",
            _ => "fail",
        };
        outcomes.insert((*name).to_owned(), word.to_owned());
    }
    Ok(outcomes)
}
