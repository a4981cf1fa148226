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
/// The road, and why.
type Road = (String, Option<String>);
type Known = BTreeMap<Name, Road>;

pub(super) struct Roads {
    socket: PathBuf,
    pid: u32,
    known: Known,
    asked: Option<Instant>,
}

/// A connection was seen for the first time, or on another road than before.
#[derive(Serialize, Debug, PartialEq)]
pub(super) struct Change {
    /// CLOCK_MONOTONIC, when the monitor looked.
    pub(super) at_ns: u64,
    fd: Option<i64>,
    local: String,
    peer: String,
    /// None at first.
    from: Option<String>,
    road: String,
    reason: Option<String>,
}

impl Change {
    pub(super) fn line(&self) -> String {
        let fd = self.fd.map_or("?".to_owned(), |fd| fd.to_string());
        let from = self.from.as_deref().map(|from| format!(" instead of {from}")).unwrap_or_default();
        let reason = self.reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        let line = format!("-- fd {fd}, {} > {}: road {}{from}{reason}", self.local, self.peer, self.road);
        sd_cli::failure::printable(&line)
    }
}

impl Roads {
    pub(super) fn new(socket: PathBuf, pid: u32) -> Roads {
        Roads { socket, pid, known: Known::new(), asked: None }
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
            ((c.fd, c.local, c.peer), (c.path, reason))
        });
        self.compare(at_ns, now.collect())
    }

    fn compare(&mut self, at_ns: u64, now: Known) -> Vec<Change> {
        let differ = now.iter().filter(|(name, road)| self.known.get(*name) != Some(*road));
        let change = |(name, (road, reason)): (&Name, &Road)| {
            let (fd, local, peer) = name.clone();
            let from = self.known.get(name).map(|(road, _)| road.clone());
            Change { at_ns, fd, local, peer, from, road: road.clone(), reason: reason.clone() }
        };
        let changes = differ.map(change).collect();
        self.known = now;
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
            Known::from([(name, (road.to_owned(), None))])
        };
        assert_eq!(roads.compare(1, at("kernel"))[0].line(), "-- fd 5, a:1 > b:2: road kernel");
        assert!(roads.compare(2, at("kernel")).is_empty());
        assert_eq!(roads.compare(3, at("shm"))[0].line(), "-- fd 5, a:1 > b:2: road shm instead of kernel");
        assert!(roads.compare(4, Known::new()).is_empty());
    }
}
