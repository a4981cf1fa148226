//! Whether connections to other hosts can move to the engines: one line for each engine of the hosts file, and one if that file was not taken.

use super::Check;
use sd_cli::client::Silence;
use sd_cli::peers::{self, HostsFile, Peer};
use serde_json::Value;

const NAME: &str = "other engine";

/// Nothing without a monitor, or where that was started without a hosts file.
pub(super) fn checks(answer: &Result<Value, Silence>) -> Vec<Check> {
    let Ok(document) = answer else { return Vec::new() };
    let Some(engine) = peers::engine(document) else { return Vec::new() };
    let Some(pid) = engine.pid else {
        let advice = "look into the log of the monitor, with SD_LOG=info: the engine says there why it ends";
        return vec![Check::warn(
            "engine",
            "it is not there, so connections to other hosts stay the kernel's",
            advice,
        )];
    };
    let clock_ns = document["clock_ns"].as_u64().unwrap_or_else(sd_sys::time::now_ns);
    let text = match engine.peers.len() {
        1 => format!("process {pid} knows 1 other"),
        count => format!("process {pid} knows {count} others"),
    };
    let own = Check::ok("engine", text);
    std::iter::once(own)
        .chain(file(&engine.hosts))
        .chain(engine.peers.iter().map(|peer| check(peer, clock_ns)))
        .collect()
}

fn file(hosts: &HostsFile) -> Vec<Check> {
    const FILE: &str = "hosts file";
    let mut found = Vec::new();
    if let Some(line) = hosts.mistake {
        let place = if line == 0 { String::new() } else { format!(" in line {line}") };
        let text = format!("it has a mistake{place}, and the one before is in force");
        let advice = "the monitor's log says what it is; mend it, then send the monitor SIGHUP (systemctl reload socksdirect)";
        found.push(Check::warn(FILE, text, advice));
    }
    if hosts.unresolved > 0 {
        let text = match hosts.unresolved {
            1 => "one of its names has no address".to_owned(),
            count => format!("{count} of its names have no address"),
        };
        found.push(Check::warn(
            FILE,
            text,
            "see getent ahosts NAME; the monitor's log says which, with SD_LOG=warn",
        ));
    }
    found
}

fn check(peer: &Peer, clock_ns: u64) -> Check {
    let (address, age) = (&peer.address, peer.age(clock_ns));
    if !peer.is_up() {
        let text = format!("{address} is not reached, for {age}: {}", peer.why);
        return Check::warn(NAME, text, advice(&peer.state));
    }
    let how = if peer.encrypted { "encrypted" } else { "plain" };
    let rtt = peer.rtt().map_or("round trip not known".to_owned(), |rtt| format!("round trip {rtt}"));
    let again = Some(peer.again()).filter(|count| *count > 0).map(|count| format!("{count} sent again"));
    let carrier = Some(peer.carrier.clone()).filter(|carrier| !carrier.is_empty());
    let carrier = carrier.map(|carrier| format!("by {carrier}"));
    let more: String =
        [carrier, again, peer.whose()].into_iter().flatten().map(|part| format!(", {part}")).collect();
    Check::ok(NAME, format!("{address} is reached, for {age}: {how}, {rtt}{more}"))
}

/// Until then connections are the kernel's.
fn advice(state: &str) -> &'static str {
    match state {
        "refused" => "start sd monitor --hosts FILE there; its line listen names that address",
        "no_route" => "see ip route get, and that its host is there",
        "silent" => "see that its host is there, and that firewalls let TCP to that port pass",
        "awaited" | "ended" => {
            "see that sd monitor --hosts FILE runs there, that its file names this engine, and what sd doctor says there"
        }
        "other_key" => "compare: key= of each hosts file is what sd key show FILE prints at the other host",
        "not_alike" => "write the same in both hosts files: plain, shared, or key= with each other's key",
        "unwelcome" => {
            "see what sd doctor says there: its hosts file may have another key or address of this host, or plain"
        }
        "noise" => "see what listens there, and that both hosts have the same version",
        "no_key" => "name it in the hosts file: key FILE, or shared-key FILE",
        _ => "the monitor's log has more, with SD_LOG=info",
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;
    use serde_json::json;

    fn said(peers: Value) -> Vec<Check> {
        checks(&Ok(json!({"clock_ns": 9_000_000_000u64, "engine": {"pid": 7, "peers": peers}})))
    }

    #[test]
    fn each_engine_has_a_line() {
        let all = said(json!([
            {"address": "10.0.0.2:7077", "state": "up", "why": "reached", "encrypted": true,
             "since_ns": 2_000_000_000u64, "rtt_ns": 90_000, "carrier": "datagram", "said_again": 2, "retransmitted": 3,
             "tenants": ["blue", "red"]},
            {"address": "10.0.0.3:7077", "state": "refused", "why": "nobody listens there", "since_ns": 8_500_000_000u64}
        ]));
        let [own, up, down] = &all[..] else { panic!("{all:?}") };
        assert_eq!((own.verdict, own.detail.as_str()), (Verdict::Ok, "process 7 knows 2 others"));
        let text = "10.0.0.2:7077 is reached, for 7s: encrypted, round trip 90us, by datagram, 5 sent again, tenants blue, red";
        assert_eq!((up.verdict, up.detail.as_str()), (Verdict::Ok, text));
        let text = "10.0.0.3:7077 is not reached, for 500ms: nobody listens there";
        assert_eq!((down.verdict, down.detail.as_str()), (Verdict::Warn, text));
        assert!(down.advice.as_deref().is_some_and(|advice| advice.contains("--hosts")));
    }

    #[test]
    fn a_file_that_is_not_taken_and_names_without_an_address_are_told() {
        let engine = json!({"pid": 7, "peers": [], "hosts": {"mistake": 3, "unresolved": 2}});
        let all = checks(&Ok(json!({"engine": engine})));
        let [_, mistake, names] = &all[..] else { panic!("{all:?}") };
        assert_eq!(mistake.detail, "it has a mistake in line 3, and the one before is in force");
        assert_eq!((names.verdict, names.detail.as_str()), (Verdict::Warn, "2 of its names have no address"));
    }

    #[test]
    fn without_an_engine_there_is_nothing_or_one_line() {
        assert!(checks(&Err(Silence::Absent)).is_empty());
        assert!(checks(&Ok(json!({"engine": null}))).is_empty());
        let [gone] = &checks(&Ok(json!({"engine": {"pid": null, "peers": []}})))[..] else { panic!() };
        assert_eq!(gone.verdict, Verdict::Warn);
    }
}
