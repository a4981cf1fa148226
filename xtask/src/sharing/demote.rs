//! Connections go from the kernel to shared memory and back, again and again, while they carry data: no byte is lost, none comes twice.

use super::promote::let_promote;
use super::{served, start};
use harness::lab::{Lab, Side};
use harness::{Result, fail, product};
use std::process::Command;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
/// More than can be carried meanwhile.
const ENDLESS: &str = "1000000000000";

/// The same ways as where connections are promoted only.
pub(super) fn run(lab: &mut Lab, (way, bytes): (&str, &str), seed: u64) -> Result<String> {
    let_wander(lab, seed)?;
    const ROUNDS: u64 = 3;
    for round in 0..ROUNDS {
        let seed = (seed + round).to_string();
        let (mut server, port) = served(start(lab, Side::Sd, &["crossing", "serve", way, &seed, bytes])?)?;
        let mut client = start(lab, Side::Sd, &["crossing", &port, way, &seed, bytes])?;
        for end in [&mut server, &mut client] {
            end.wait_for_text("carried", PATIENCE)?;
        }
        server.kill();
        client.kill();
    }
    let promoted = promotions(lab)?;
    if promoted == 0 && way != "threads" && !lab.is_oracle() {
        fail!("none of {ROUNDS} connections was promoted");
    }
    Ok(format!("{ROUNDS} connections, {bytes} bytes each way, {promoted} promotions"))
}

/// Two ends that take turns, on a connection that goes to the ring and back so often.
pub(super) fn wander(lab: &mut Lab, seed: u64, times: u64) -> Result<String> {
    let_wander(lab, seed)?;
    let seed = seed.to_string();
    let (mut server, port) = served(start(lab, Side::Sd, &["crossing", "serve", "turns", &seed, ENDLESS])?)?;
    let mut client = start(lab, Side::Sd, &["crossing", &port, "turns", &seed, ENDLESS])?;
    let (began, mut last, mut seen) = (Instant::now(), Instant::now(), 0);
    while seen < times && !lab.is_oracle() {
        for end in [&mut server, &mut client] {
            if !end.is_running() {
                fail!("after {seen} promotions an end is over: {}", end.last_words());
            }
        }
        std::thread::sleep(Duration::from_millis(50));
        let now = promotions(lab)?;
        if now > seen {
            (seen, last) = (now, Instant::now());
        } else if last.elapsed() > PATIENCE {
            fail!("after {seen} promotions there are no more");
        }
    }
    server.kill();
    client.kill();
    Ok(format!("{seen} times there and back in {:.1} s", began.elapsed().as_secs_f64()))
}

/// Connections that wander until they are closed, with a lot under way.
pub(super) fn closed(lab: &mut Lab, seed: u64) -> Result<String> {
    let_wander(lab, seed)?;
    const COUNT: &str = "150";
    let seed = seed.to_string();
    let (mut server, port) = served(start(lab, Side::Sd, &["bursts", "serve", &seed, COUNT])?)?;
    let mut client = start(lab, Side::Sd, &["bursts", &port, &seed, COUNT])?;
    client.wait_for_text("carried", PATIENCE)?;
    server.wait_for_text("carried", PATIENCE)?;
    server.kill();
    client.kill();
    let promoted = promotions(lab)?;
    if promoted == 0 && !lab.is_oracle() {
        fail!("none of {COUNT} connections was promoted");
    }
    Ok(format!("{COUNT} connections, {promoted} promotions"))
}

/// `sd demote`: by process, by name, all.
pub(super) fn asked(lab: &mut Lab, seed: u64) -> Result<String> {
    let_promote(lab)?;
    if lab.is_oracle() {
        return Ok("nothing to ask".to_owned());
    }
    let seed = seed.to_string();
    let (mut server, port) = served(start(lab, Side::Sd, &["crossing", "serve", "turns", &seed, ENDLESS])?)?;
    let mut client = start(lab, Side::Sd, &["crossing", &port, "turns", &seed, ENDLESS])?;
    let number: u16 = port.parse()?;
    let is_promoted = |lab: &Lab| super::promote::is_promoted(lab, number);
    let (pid, name) = (client.pid().to_string(), format!(":{port}"));
    for what in [&[pid.as_str()][..], &[&name], &[&format!("127.0.0.1:{port}")], &[]] {
        until("it is promoted", || is_promoted(lab))?;
        let before = promotions(lab)?;
        let told = demote(lab, what)?;
        if told.trim() == "0 told" {
            fail!("sd demote {what:?} finds no connection");
        }
        until("it goes back, and is promoted again", || Ok(promotions(lab)? > before))?;
    }
    for what in ["1", ":1", "127.0.0.9:7"] {
        let told = demote(lab, &[what])?;
        if told.trim() != "0 told" {
            fail!("sd demote {what}: {told}");
        }
    }
    for end in [&mut server, &mut client] {
        if !end.is_running() {
            fail!("an end is over: {}", end.last_words());
        }
    }
    server.kill();
    client.kill();
    Ok("by process, by name, all".to_owned())
}

/// The policy is another one: what it keeps with the kernel goes back there, and nothing else; and may come again.
pub(super) fn by_policy(lab: &mut Lab, seed: u64) -> Result<String> {
    lab.set_policy("allow\n")?;
    let_promote(lab)?;
    if lab.is_oracle() {
        return Ok("no policy".to_owned());
    }
    let (mut ends, mut ports) = (Vec::new(), Vec::new());
    for seed in [seed, seed + 1] {
        let seed = seed.to_string();
        let (server, port) = served(start(lab, Side::Sd, &["crossing", "serve", "turns", &seed, ENDLESS])?)?;
        ends.extend([server, start(lab, Side::Sd, &["crossing", &port, "turns", &seed, ENDLESS])?]);
        ports.push(port.parse::<u16>()?);
    }
    let is_promoted = |lab: &Lab, port: u16| super::promote::is_promoted(lab, port);
    let both = |lab: &Lab| Ok(is_promoted(lab, ports[0])? && is_promoted(lab, ports[1])?);
    until("both are promoted", || both(lab))?;
    let reload = |lab: &mut Lab, rules: &str| -> Result<()> {
        lab.set_policy(rules)?;
        let pid = lab.monitor_pid().ok_or("there is no monitor")?;
        harness::scratch::send(pid, nix::sys::signal::Signal::SIGHUP);
        Ok(())
    };
    reload(lab, &format!("stay port={}\n", ports[0]))?;
    let says = |lab: &Lab, port: u16, path: &str, why: &str| -> Result<bool> {
        let seen = lab.snapshot()?;
        let ends = seen.of_port(port);
        // One end may hear of it by the other, and follows.
        let is_why = ends.iter().any(|end| end.moved.as_deref() == Some(why));
        Ok(ends.len() == 2 && is_why && ends.iter().all(|end| end.path == path))
    };
    until("it goes back, for the policy", || says(lab, ports[0], "kernel", "policy"))?;
    if !says(lab, ports[1], "shm", "promoted")? {
        fail!("the other one has not stayed where it was");
    }
    reload(lab, "allow\n")?;
    until("it is promoted again", || both(lab))?;
    for end in &mut ends {
        if !end.is_running() {
            fail!("an end is over: {}", end.last_words());
        }
    }
    ends.into_iter().for_each(|end| end.kill());
    Ok("back, and promoted again; the other one stays".to_owned())
}

/// What is promoted is demoted soon.
fn let_wander(lab: &mut Lab, seed: u64) -> Result<()> {
    if !lab.is_oracle() {
        lab.kill_monitor();
        lab.start_monitor_with(&["--promote=all", &format!("--demote={}", seed | 1)])?;
    }
    Ok(())
}

fn promotions(lab: &Lab) -> Result<u64> {
    if lab.is_oracle() { Ok(0) } else { Ok(lab.snapshot()?.promotions) }
}

fn demote(lab: &Lab, what: &[&str]) -> Result<String> {
    let output = Command::new(product::sd())
        .args(["demote", "--timeout", "0"])
        .args(what)
        .arg("--socket")
        .arg(lab.socket())
        .output()?;
    if !output.status.success() {
        fail!("sd demote {what:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    while !is_so()? {
        if began.elapsed() > PATIENCE {
            fail!("in vain: {what}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
