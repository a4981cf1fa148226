//! The descriptors of accelerated connections are taken by pidfd_getfd(2), or opened below /proc: what a stranger finds is a
//! placeholder, and whatever he does to it, the connections go on.

use super::{served, start};
use harness::lab::{Lab, Side};
use harness::{Result, fail, ss};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn run(lab: &mut Lab) -> Result<String> {
    if lab.is_oracle() {
        return Ok("there the thief has the connection".to_owned());
    }
    let (server, port) = served(start(lab, Side::Sd, &["echo"])?)?;
    let known = sockets(server.pid());
    let mut stolen = 0;
    for thief in [Side::Kernel, Side::Sd] {
        let mut client = start(lab, Side::Sd, &["chat", &port, "60000"])?;
        std::thread::sleep(Duration::from_millis(100));
        let of_server =
            sockets(server.pid()).difference(&known).map(|fd| (server.pid(), *fd)).collect::<Vec<_>>();
        let of_client = sockets(client.pid()).into_iter().map(|fd| (client.pid(), fd));
        for (pid, fd) in of_server.into_iter().chain(of_client) {
            if std::fs::File::open(link(pid, fd)).is_ok() {
                fail!("a socket was opened by its path");
            }
            // The client goes on to other connections: the number may be free for a moment.
            for _ in 0..40 {
                let args = ["thief", &pid.to_string(), &fd.to_string(), &port];
                if start(lab, thief, &args)?.wait(LIMIT)?.status.success() {
                    stolen += 1;
                    break;
                }
            }
        }
        let was_busy = client.is_running();
        client.wait(LIMIT)?.ok()?;
        if !was_busy {
            fail!("the client came to its end before its descriptors were stolen");
        }
        let watch = lab.watch_every(port.parse()?, Duration::from_millis(5));
        // With pauses: two that are always busy leave little of two processors to `sd ss`.
        let client = start(lab, Side::Sd, &["chat", &port, "400", "5"])?;
        let pid = u64::from(client.pid());
        client.wait(LIMIT)?.ok()?;
        // The server has the thief's own connections too.
        let mut seen = watch.map_or(Ok(Vec::new()), ss::Watch::finish)?;
        seen.retain(|connection| connection.pid == pid);
        ss::require_shm(&seen)?;
    }
    if stolen < 4 {
        fail!("only {stolen} descriptors could be stolen");
    }
    server.terminate(Duration::from_secs(5))?;
    Ok(format!("{stolen} thefts"))
}

fn link(pid: u32, fd: u32) -> PathBuf {
    Path::new("/proc").join(pid.to_string()).join("fd").join(fd.to_string())
}

/// Numbers of sockets that a program knows of: the library's own are far above.
fn sockets(pid: u32) -> BTreeSet<u32> {
    let is_socket = |fd: &u32| {
        std::fs::read_link(link(pid, *fd)).is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
    };
    (3..60).filter(is_socket).collect()
}
