//! Who looks on: `sd top` shows what real programs do at that moment, with figures of which each end's is the other's.

use super::{served, start};
use harness::lab::{Lab, Side};
use harness::{Result, fail, product};
use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::Duration;

/// An echo server and its client are busy; both are seen, over shared memory, and what one sends the other receives.
pub(super) fn top(lab: &mut Lab) -> Result<String> {
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
