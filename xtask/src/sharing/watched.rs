//! Who looks on: `sd top` shows what real programs do at that moment, with figures of which each end's is the other's; `sd trace` what
//! one of them calls.

use super::{served, start};
use harness::lab::{Lab, Side};
use harness::{Result, fail, product};
use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::Duration;

type Watch = fn(&mut Lab) -> Result<String>;
pub(super) const PARTS: [(&str, Watch); 3] =
    [("watched-trace", trace), ("watched-top", top), ("watched-roads", super::roads::run)];

/// An echo server and its client are busy; both are seen, over shared memory, and what one sends the other receives.
fn top(lab: &mut Lab) -> Result<String> {
    if lab.is_oracle() {
        return Ok("there is no monitor to ask".to_owned());
    }
    let (server, port) = served(start(lab, Side::Sd, &["echo"])?)?;
    let client = start(lab, Side::Sd, &["chat", &port, "1000000", "10"])?;
    let of_client = u64::from(client.pid());
    let mut looks = 0;
    for document in documents(lab)? {
        let ends = document["connections"].as_array().cloned().unwrap_or_default();
        if ends.iter().any(|end| end["path"] != "shm") {
            fail!("not over shared memory: {document}");
        }
        let Some(end) = ends.iter().find(|end| end["pid"] == of_client) else { continue };
        let Some(other) = ends.iter().find(|other| other["local"] == end["peer"]) else { continue };
        // Now and then the client begins another connection, whose rates are not known yet.
        let rates = [&end["tx_bytes_per_second"], &end["rx_bytes_per_second"]].map(Value::as_f64);
        let [Some(sent), Some(received)] = rates else { continue };
        // Its process has this one alone, or one more that it has just closed, and of which there is no rate.
        let total = document["processes"].as_array().into_iter().flatten().find(|p| p["pid"] == of_client);
        if end["cpu"].is_null() || total.is_none_or(|total| total["tx_bytes_per_second"] != sent) {
            fail!("the client's process is not what its connection is: {document}");
        }
        if sent <= 0.0 || received <= 0.0 {
            continue;
        }
        // Both ends are read one after the other, while bytes move.
        if other["rx_bytes_per_second"].as_f64().is_none_or(|received| received <= 0.0) {
            fail!("what the client sends nobody receives: {document}");
        }
        looks += 1;
    }
    if looks == 0 {
        fail!("the client's connection was never seen to be busy");
    }
    client.terminate(Duration::from_secs(5))?;
    server.terminate(Duration::from_secs(5))?;
    Ok(format!("{looks} looks"))
}

fn documents(lab: &Lab) -> Result<Vec<Value>> {
    let mut command = Command::new(product::sd());
    command.args(["top", "--json", "--interval", "0.2", "--count", "10"]);
    let output = command.env("SD_MONITOR", lab.socket()).stdin(Stdio::null()).output()?;
    if !output.status.success() {
        fail!("sd top ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().map(serde_json::from_str).collect::<std::result::Result<_, _>>()?)
}

/// KiB of the library's text in a process that are no longer the file's (proc_pid_smaps(5)).
fn changed_text(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).ok()?;
    let mut lines = text.lines().skip_while(|line| !(line.contains(" r-xp ") && line.ends_with("/libsd.so")));
    lines.find_map(|line| line.strip_prefix("Anonymous:"))?.trim().strip_suffix(" kB")?.parse().ok()
}

/// What a client calls is told while it is traced, and it goes on unharmed, before and after.
fn trace(lab: &mut Lab) -> Result<String> {
    if lab.is_oracle() {
        return Ok("there is no library to trace".to_owned());
    }
    let (server, port) = served(start(lab, Side::Sd, &["echo"])?)?;
    let client = start(lab, Side::Sd, &["chat", &port, "300", "10"])?;
    let maps = format!("/proc/{}/maps", client.pid());
    let has_library = || std::fs::read_to_string(&maps).is_ok_and(|text| text.contains("/libsd.so"));
    harness::until("the client has the library", Duration::from_secs(10), has_library)?;
    let mut command = Command::new(product::sd());
    command.args(["trace", "--json", "--seconds", "1.5", &client.pid().to_string()]);
    command
        .env("SD_MONITOR", lab.socket())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut tracer = command.spawn()?;
    // A breakpoint is a page of the library's text that the process has for itself.
    let mut is_over = || tracer.try_wait().is_ok_and(|status| status.is_some());
    let has_probes = || changed_text(client.pid()) != Some(0) || is_over();
    let found = harness::until("the client has probes", Duration::from_secs(10), has_probes);
    let of_server = changed_text(server.pid());
    let output = tracer.wait_with_output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("no probe can be set") {
        return Ok(format!("skipped: {}", errors.trim()));
    }
    if !output.status.success() {
        fail!("sd trace ended with {}: {}", output.status, errors.trim());
    }
    found?;
    if of_server != Some(0) {
        fail!("the server, which nobody traces, has {of_server:?} KiB of changed text");
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let events: Vec<Value> = text.lines().map(serde_json::from_str).collect::<std::result::Result<_, _>>()?;
    // The client sends all of a message in one call, and messages of these sizes only.
    let sizes = ["1", "8", "100", "1000", "5000", "70000"];
    let sends: Vec<&Value> = events.iter().filter(|event| event["call"] == "send").collect();
    let is_whole = |event: &&&Value| {
        let len = event["arguments"][2].as_str().unwrap_or_default();
        let is_done = event["result"].as_i64() == len.parse().ok() && event["took_ns"].as_u64() > Some(0);
        sizes.contains(&len) && is_done
    };
    if sends.is_empty() || sends.iter().filter(is_whole).count() != sends.len() {
        fail!("the client's sends are not what it sends: {text}");
    }
    if !events.iter().any(|event| event["call"] == "recv" && event["result"].as_i64() > Some(0)) {
        fail!("the client's receiving was not seen: {text}");
    }
    if !events.iter().any(|event| event["road"] == "shm" && event["from"].is_null()) {
        fail!("the road of its connection was not told: {text}");
    }
    // It checks every byte, and ends by itself.
    client.wait(Duration::from_secs(60))?.ok()?;
    server.terminate(Duration::from_secs(5))?;
    Ok(format!("{} sends among {} events", sends.len(), events.len()))
}
