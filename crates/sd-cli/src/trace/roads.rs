//! Which road each connection of a process takes, and when that changed, as the monitor tells it.

use sd_cli::client;
use sd_cli::status;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The monitor is not asked more often.
const PAUSE: Duration = Duration::from_millis(100);

/// A connection's descriptor and addresses.
type Name = (Option<i64>, String, String);
/// What is known of its road.
#[derive(Clone, Debug, PartialEq, Default)]
struct Road {
    path: String,
    reason: Option<String>,
    /// How often it has changed, and when it did last, as the owner says.
    changes: u32,
    since_ns: Option<u64>,
}
type Known = BTreeMap<Name, Road>;

pub(super) struct Roads {
    socket: PathBuf,
    pid: u32,
    known: Known,
    asked: Option<Instant>,
    /// By the monitor's clock.
    looked_at_ns: u64,
}

/// A connection was seen for the first time, or on another road than before.
#[derive(Serialize, Debug, PartialEq)]
pub(super) struct Change {
    /// CLOCK_MONOTONIC: when it changed, where the owner notes that; otherwise when the monitor looked.
    pub(super) at_ns: u64,
    fd: Option<i64>,
    local: String,
    peer: String,
    /// None at first.
    from: Option<String>,
    road: String,
    reason: Option<String>,
    /// How often it has changed since it was looked at last, or since it was made.
    changes: u32,
}

impl Change {
    pub(super) fn line(&self) -> String {
        let fd = self.fd.map_or("?".to_owned(), |fd| fd.to_string());
        let from = self.from.as_deref().map(|from| format!(" instead of {from}")).unwrap_or_default();
        let reason = self.reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        let often =
            if self.changes > 1 { format!(", after {} changes", self.changes) } else { String::new() };
        let line =
            format!("-- fd {fd}, {} > {}: road {}{from}{reason}{often}", self.local, self.peer, self.road);
        sd_cli::failure::printable(&line)
    }
}

impl Roads {
    pub(super) fn new(socket: PathBuf, pid: u32) -> Roads {
        Roads { socket, pid, known: Known::new(), asked: None, looked_at_ns: 0 }
    }

    /// What is different from the last time. Without a monitor nothing is known.
    pub(super) fn changes(&mut self) -> Vec<Change> {
        if self.asked.is_some_and(|asked| asked.elapsed() < PAUSE) {
            return Vec::new();
        }
        self.asked = Some(Instant::now());
        let Ok(document) = client::status(&self.socket) else { return Vec::new() };
        let at_ns = document["clock_ns"].as_u64().unwrap_or_else(sd_sys::time::now_ns);
        let all = status::connections(&document).unwrap_or_default();
        let own = all.into_iter().filter(|c| c.pid == u64::from(self.pid));
        let now = own.map(|c| {
            let reason = c.reason.filter(|reason| !reason.is_empty());
            let (changes, since_ns) = (c.road_changes, c.road_since_ns);
            ((c.fd, c.local, c.peer), Road { path: c.path, reason, changes, since_ns })
        });
        self.compare(at_ns, now.collect())
    }

    fn compare(&mut self, at_ns: u64, now: Known) -> Vec<Change> {
        let differ = now.iter().filter(|(name, road)| self.known.get(*name) != Some(*road));
        let change = |(name, now): (&Name, &Road)| {
            let (fd, local, peer) = name.clone();
            let before = self.known.get(name);
            let from = before.map(|before| before.path.clone());
            // Another connection of that name may have changed less often.
            let changes = now.changes.saturating_sub(before.map_or(0, |before| before.changes));
            let Road { path: road, reason, since_ns, .. } = now.clone();
            // What has happened before the last look was told then.
            let told = self.looked_at_ns;
            let at_ns =
                since_ns.filter(|since| changes > 0 && (told..at_ns).contains(since)).unwrap_or(at_ns);
            Change { at_ns, fd, local, peer, from, road, reason, changes }
        };
        let changes = differ.map(change).collect();
        (self.known, self.looked_at_ns) = (now, at_ns);
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_new_is_told() {
        let mut roads = Roads::new(PathBuf::new(), 7);
        let at = |road: &str| {
            let name = (Some(5), "a:1".to_owned(), "b:2".to_owned());
            let changes = u32::from(road == "shm") + 2 * u32::from(road == "engine");
            let since_ns = (road == "shm").then_some(25);
            Known::from([(name, Road { path: road.to_owned(), reason: None, changes, since_ns })])
        };
        assert_eq!(roads.compare(10, at("kernel"))[0].line(), "-- fd 5, a:1 > b:2: road kernel");
        assert!(roads.compare(20, at("kernel")).is_empty());
        let moved = &roads.compare(30, at("shm"))[0];
        assert_eq!(
            (moved.line().as_str(), moved.at_ns),
            ("-- fd 5, a:1 > b:2: road shm instead of kernel", 25)
        );
        assert!(roads.compare(40, at("shm")).is_empty());
        let back = &roads.compare(50, at("kernel"))[0];
        assert_eq!((back.from.as_deref(), back.at_ns), (Some("shm"), 50), "nobody says when");
        let twice = roads.compare(60, at("engine"))[0].line();
        assert_eq!(twice, "-- fd 5, a:1 > b:2: road engine instead of kernel, after 2 changes");
        assert!(roads.compare(70, Known::new()).is_empty());
    }
}
