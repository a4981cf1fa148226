//! Connections that the kernel has made are moved to shared memory while they carry data: no byte is lost, none comes twice.

use super::{Part, demote, served, start};
use harness::lab::{Lab, Side};
use harness::{Result, fail};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// How the ends wait; see `tests/sharing/src/crossing.rs`.
pub(super) const WAYS: [(&str, &str); 6] = [
    ("turns", "200000"),
    ("polled", "200000"),
    ("threads", "3000000"),
    ("poll", "3000000"),
    ("level", "3000000"),
    ("edge", "3000000"),
];

/// Those of connections that are moved, and of those that are moved back.
pub(super) fn parts(seed: u64, wanderings: u64) -> Vec<Part<'static>> {
    let mut parts: Vec<Part<'static>> = Vec::new();
    for way in WAYS {
        parts.push((format!("promoted-{}", way.0), Box::new(move |lab: &mut Lab| run(lab, way, seed))));
    }
    for way in WAYS {
        let check = move |lab: &mut Lab| demote::run(lab, way, seed);
        parts.push((format!("demoted-{}", way.0), Box::new(check)));
    }
    let check = move |lab: &mut Lab| demote::wander(lab, seed, wanderings);
    parts.push(("wandering".to_owned(), Box::new(check)));
    let check = move |lab: &mut Lab| demote::closed(lab, seed);
    parts.push(("demoted-and-closed".to_owned(), Box::new(check)));
    let check = move |lab: &mut Lab| demote::asked(lab, seed);
    parts.push(("demoted-as-asked".to_owned(), Box::new(check)));
    let check = move |lab: &mut Lab| demote::by_policy(lab, seed);
    parts.push(("demoted-by-policy".to_owned(), Box::new(check)));
    parts
}

/// All connections begin as the kernel's. When all bytes were carried some are over shared memory; not all, since one may be over before
/// both ends have come to move it, and where threads block in calls on one all the time nobody may come at all.
fn run(lab: &mut Lab, (way, bytes): (&str, &str), seed: u64) -> Result<String> {
    let_promote(lab)?;
    let mut promoted = 0;
    const ROUNDS: u64 = 3;
    for round in 0..ROUNDS {
        let seed = (seed + round).to_string();
        let (mut server, port) = served(start(lab, Side::Sd, &["crossing", "serve", way, &seed, bytes])?)?;
        let mut client = start(lab, Side::Sd, &["crossing", &port, way, &seed, bytes])?;
        for end in [&mut server, &mut client] {
            end.wait_for_text("carried", PATIENCE)?;
        }
        promoted += u64::from(is_promoted(lab, port.parse()?)?);
        server.kill();
        client.kill();
    }
    if promoted == 0 && way != "threads" && !lab.is_oracle() {
        fail!("none of {ROUNDS} connections was promoted");
    }
    Ok(format!("{ROUNDS} connections, {bytes} bytes each way, {promoted} promoted"))
}

/// All connections begin as the kernel's, and are moved soon.
pub(super) fn let_promote(lab: &mut Lab) -> Result<()> {
    let_move(lab, "--promote=all")
}

/// Those that last are moved, as for users.
pub(super) fn let_earn(lab: &mut Lab) -> Result<()> {
    let_move(lab, "--promote=earned")
}

fn let_move(lab: &mut Lab, which: &str) -> Result<()> {
    if !lab.is_oracle() {
        lab.kill_monitor();
        lab.start_monitor_with(&[which])?;
    }
    Ok(())
}

/// All ends that touch this port were moved, and there are some.
pub(crate) fn is_promoted(lab: &Lab, port: u16) -> Result<bool> {
    if lab.is_oracle() {
        return Ok(false);
    }
    let seen = lab.snapshot()?;
    let ends = seen.of_port(port);
    let is_moved = |path: &str, reason: Option<&str>| path == "shm" && reason == Some("promoted");
    Ok(!ends.is_empty() && ends.iter().all(|end| is_moved(&end.path, end.reason.as_deref())))
}
