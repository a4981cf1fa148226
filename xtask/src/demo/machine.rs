//! What machine the figures are from.

use serde_json::{Value, json};
use std::fs::read_to_string;

pub(crate) struct Machine {
    processor: String,
    cores: usize,
    memory_gib: u64,
    kernel: String,
    system: String,
    congestion_control: String,
}

pub(crate) fn describe() -> Machine {
    let read = |path: &str| read_to_string(path).unwrap_or_default();
    let field = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line[key.len()..].trim_matches([' ', '\t', ':', '=', '"']).to_owned())
    };
    let or_unknown = |value: Option<String>| value.unwrap_or_else(|| "unknown".to_owned());
    let memory = or_unknown(field(&read("/proc/meminfo"), "MemTotal"));
    let memory_kib: u64 = memory.trim_end_matches(" kB").parse().unwrap_or(0);
    Machine {
        processor: or_unknown(field(&read("/proc/cpuinfo"), "model name")),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        memory_gib: (memory_kib + (1 << 19)) >> 20,
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        system: or_unknown(field(&read("/etc/os-release"), "PRETTY_NAME")),
        congestion_control: read("/proc/sys/net/ipv4/tcp_congestion_control").trim().to_owned(),
    }
}

impl Machine {
    pub(crate) fn text(&self) -> String {
        let Machine { processor, cores, memory_gib, kernel, system, congestion_control } = self;
        format!(
            "{processor}, {cores} cores, {memory_gib} GiB; {system}, Linux {kernel}; nothing pinned\n\
             kernel TCP congestion control in force: {congestion_control}"
        )
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "processor": self.processor, "cores": self.cores, "memory_gib": self.memory_gib,
            "kernel": self.kernel, "system": self.system, "congestion_control": self.congestion_control,
        })
    }
}
