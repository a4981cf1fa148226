//! A program closes the library's descriptors by a system call instruction of its own, past libc, in the middle of traffic: old and
//! new connections go on, and new ones are accelerated (ADR 67).

use super::{served, start};
use harness::lab::{Lab, Side};
use harness::{Result, fail, retry, ss};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// The client does it, the server, both; with other threads that wait.
pub(super) fn run(lab: &mut Lab) -> Result<String> {
    let mut count = 0;
    for (by_server, by_client, threads) in
        [(false, true, 0), (true, false, 0), (true, true, 0), (false, true, 3), (true, true, 3)]
    {
        let server: &[&str] = if by_server { &["closing-echo", "40"] } else { &["echo"] };
        let (server, port) = served(start(lab, Side::Sd, server)?)?;
        let every = if by_client { "17" } else { "0" };
        let client = start(lab, Side::Sd, &["closing-chat", &port, "300", every, &threads.to_string()])?;
        let case = format!("by the server: {by_server}, by the client: {by_client}, {threads} threads");
        client.wait(LIMIT)?.ok().map_err(|error| format!("{case}: {error}"))?;
        // Whoever comes later meets the same server.
        start(lab, Side::Sd, &["chat", &port, "100", "1"])?.wait(LIMIT)?.ok()?;
        let late = start(lab, Side::Sd, &["closing-chat", &port, "30000", "0", "0"])?;
        let seen = retry(Duration::from_secs(10), || accelerated(lab, &port));
        late.kill();
        seen.map_err(|error| format!("{case}: {error}"))?;
        let end = server.terminate(Duration::from_secs(5))?;
        if end.stderr.contains("sd-sharing") {
            fail!("{case}: the server says {}", end.stderr);
        }
        count += 1;
    }
    closed_for_good(lab)?;
    Ok(format!("{count} ways, and for good"))
}

/// A process that can be given nothing back has no monitor any more, and looks for none: while it waits it is not woken, and what a
/// listener would need is not made.
fn closed_for_good(lab: &mut Lab) -> Result<()> {
    let (server, port) = served(start(lab, Side::Sd, &["echo"])?)?;
    let said = start(lab, Side::Sd, &["closing-end", &port])?.wait(LIMIT)?.ok()?.text();
    let woken = said.split("woken ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
    let is_quiet = woken.is_some_and(|woken: u32| woken < 100);
    if !is_quiet || !said.contains("ready 0,") || !said.contains(", 0 slabs") {
        fail!("a process that is closed for good: {said}");
    }
    server.terminate(Duration::from_secs(5))?;
    Ok(())
}

/// The connections to a port are seen at both ends, over shared memory.
fn accelerated(lab: &Lab, port: &str) -> Result<()> {
    if lab.is_oracle() {
        return Ok(());
    }
    let (seen, to) = (lab.snapshot()?.connections, format!(":{port}"));
    let ends = |is_it: fn(&ss::Connection) -> &str| {
        seen.iter().filter(|end| is_it(end).ends_with(&to) && end.path == "shm").count()
    };
    let (of_client, of_server) = (ends(|end| &end.peer), ends(|end| &end.local));
    if of_client < 3 || of_server < 3 {
        let all: Vec<_> = seen.iter().map(ss::describe).collect();
        fail!("{of_client} and {of_server} ends over shared memory: {}", all.join(", "));
    }
    Ok(())
}
