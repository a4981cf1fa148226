//! The lists of a status document.

use crate::client;
use crate::failure::{Failure, Result};
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

/// One end of a connection, as the monitor describes it.
#[derive(Deserialize, Debug, Default)]
#[serde(default)]
pub struct Connection {
    pub pid: u64,
    pub comm: String,
    pub fd: Option<i64>,
    pub local: String,
    pub peer: String,
    pub state: String,
    pub path: String,
    /// What moves its bytes, if its path is `engine`.
    pub carrier: Option<String>,
    /// The other host's engine, and whose the connection is there.
    pub engine: Option<String>,
    pub tenant: Option<String>,
    pub reason: Option<String>,
    /// Since when it takes its path: CLOCK_MONOTONIC. Only of those that the kernel has made.
    pub road_since_ns: Option<u64>,
    /// How often that has changed, and why the last time.
    pub road_changes: u32,
    pub road_moved: Option<String>,
    /// What it waits for until it is moved to shared memory.
    pub awaits: Option<String>,
    /// Calls that moved bytes while it was the kernel's.
    pub messages: Option<u32>,
    pub rx_queue: u64,
    pub tx_queue: u64,
    /// Payload that it has received and sent over shared memory since it was made.
    pub rx_bytes: u64,
    pub tx_bytes: u64,
}

impl Connection {
    /// Its path, and what carries it there.
    pub fn road(&self) -> String {
        match self.carrier.as_deref().filter(|carrier| !carrier.is_empty()) {
            Some(carrier) => format!("{}/{carrier}", self.path),
            None => self.path.clone(),
        }
    }

    /// Why it is there, and what would bring it elsewhere.
    pub fn why(&self) -> String {
        let said = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let (reason, moved) = (said(&self.reason), said(&self.road_moved));
        let came_back = moved.filter(|moved| self.path == "kernel" && Some(moved) != reason.as_ref());
        let came_back = came_back.map(|moved| format!("was moved back: {moved}"));
        let calls = self.messages.map(|count| format!(" ({count} calls)")).unwrap_or_default();
        let awaits = said(&self.awaits).map(|awaits| format!("not moved: {awaits}{calls}"));
        let far = said(&self.engine).map(|engine| format!("to {engine}"));
        let whose = said(&self.tenant).map(|tenant| format!("tenant {tenant}"));
        let parts: Vec<String> = [reason, came_back, awaits, far, whose].into_iter().flatten().collect();
        if parts.is_empty() { "-".to_owned() } else { parts.join("; ") }
    }

    /// How long it has taken its path, in a document of that time.
    pub fn age(&self, clock_ns: u64) -> String {
        self.road_since_ns.map_or("-".to_owned(), |since| duration(clock_ns.saturating_sub(since)))
    }
}

/// A number and a unit.
pub fn duration(ns: u64) -> String {
    let (ms, seconds) = (ns / 1_000_000, ns / 1_000_000_000);
    match seconds {
        0 => format!("{ms}ms"),
        1..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// The connections of a status document.
pub fn connections(status: &Value) -> Result<Vec<Connection>> {
    list(status, "connections")
}

/// A list of it by its name.
pub fn list<T: for<'a> Deserialize<'a>>(status: &Value, name: &str) -> Result<Vec<T>> {
    let array = status[name].as_array().map(Vec::as_slice).unwrap_or_default();
    array
        .iter()
        .map(|item| {
            T::deserialize(item).map_err(|error| Failure::new(format!("the monitor's {name}: {error}")))
        })
        .collect()
}

/// An error that says why, unless all connections of this process go over shared memory.
pub fn require_shm(socket: &Path, pid: u32) -> Result<()> {
    require_path("shm", socket, pid)
}

/// An error that says why, unless all connections of this process take this path.
pub fn require_path(path: &str, socket: &Path, pid: u32) -> Result<()> {
    let status = client::status(socket).map_err(|silence| Failure::new(silence.to_string()))?;
    let mine: Vec<_> = connections(&status)?.into_iter().filter(|c| c.pid == u64::from(pid)).collect();
    match mine.iter().find(|c| c.path != path) {
        Some(c) => {
            let reason = c.reason.as_deref().unwrap_or("no reason given");
            Err(Failure::new(format!("the connection went over the {}: {reason}", c.path)))
        }
        None if mine.is_empty() => Err(Failure::new("the monitor does not know the connection")),
        None => Ok(()),
    }
}
