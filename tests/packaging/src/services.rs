//! The package, installed and run under systemd, as an administrator would.

use crate::machine::Machine;
use harness::process::Proc;
use harness::{Result, fail, retry};
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(15);
/// A user who is nobody else.
const AS_USER: &str = "setpriv --reuid 61001 --regid 61001 --clear-groups";

/// A step in the life of one machine; what it says when it went well.
type Step = (&'static str, fn(&mut Host) -> Result<String>);

const STEPS: [Step; 13] = [
    ("install", install),
    ("units are sound", units),
    ("first client starts it", first_client),
    ("a hardened service", hardened_service),
    ("users share it", users),
    ("sd-run@", instance),
    ("reload", reload),
    ("options", options),
    ("engine", engine),
    ("restart", restart),
    ("kill", kill),
    ("upgrade", upgrade),
    ("remove and purge", remove),
];

struct Host {
    machine: Machine,
    /// A client of another user's that goes on and on.
    client: Option<Proc>,
}

/// All steps in order; the first that fails is the last.
pub(crate) fn try_all(package: &Path) -> Result<crate::Tried> {
    let mut host = Host { machine: Machine::boot(package)?, client: None };
    let mut tried = Vec::new();
    for (name, step) in STEPS {
        let done = step(&mut host);
        let is_ok = done.is_ok();
        tried.push((format!("services/{name}"), done));
        if !is_ok {
            break;
        }
    }
    Ok(tried)
}

impl Host {
    fn done(&self, line: &str) -> Result<String> {
        self.machine.done(line)
    }

    fn is_active(&self, unit: &str) -> Result<bool> {
        Ok(self.machine.run(&format!("systemctl is-active {unit}"))?.text().trim() == "active")
    }

    fn main_pid(&self) -> Result<String> {
        let said = self.done("systemctl show --property MainPID --value socksdirect.service")?;
        Ok(said.trim().to_owned())
    }

    /// Lines of `sd ss` about a port, as soon as all of them show shared memory.
    fn shared(&self, port: u16, count: usize) -> Result<()> {
        retry(LIMIT, || {
            let said = self.done("sd ss")?;
            let lines: Vec<&str> = said.lines().filter(|line| line.contains(&format!(":{port} "))).collect();
            match lines.iter().find(|line| !line.contains(" shm ")) {
                None if lines.len() >= count => Ok(()),
                Some(other) => fail!("not over shared memory: {other}"),
                None => fail!("{} sockets of port {port}: {said}", lines.len()),
            }
        })
    }

    /// A client that exists goes on; what it has done is counted.
    fn still_served(&mut self) -> Result<()> {
        let Some(client) = self.client.as_mut() else { fail!("there is no client") };
        let before = client.output_len();
        retry(LIMIT, || match client.is_running() && client.output_len() > before {
            true => Ok(()),
            false => fail!("a client stands still: {}", client.last_words()),
        })
    }
}

fn install(host: &mut Host) -> Result<String> {
    host.done("dpkg --install /package.deb")?;
    if !host.is_active("socksdirect.socket")? || host.is_active("socksdirect.service")? {
        fail!("the socket should be there, and the monitor not yet");
    }
    Ok("the socket listens, nothing runs".to_owned())
}

fn units(host: &mut Host) -> Result<String> {
    let names = "socksdirect.socket socksdirect.service sd-run@redis.service";
    let said = host.machine.run(&format!("systemd-analyze verify --man=no {names} 2>&1"))?;
    let own = |line: &&str| line.contains("socksdirect") || line.contains("sd-run");
    if let Some(line) = said.text().lines().find(own) {
        fail!("{line}");
    }
    let said =
        host.done("systemd-analyze security --no-pager --threshold=40 socksdirect.service | tail -n 1")?;
    Ok(said.trim_start_matches(|c: char| !c.is_ascii_alphabetic()).trim().to_owned())
}

fn first_client(host: &mut Host) -> Result<String> {
    host.done("sd run -- redis-cli ping")?;
    if !host.is_active("socksdirect.service")? {
        fail!("the monitor has not been started: {}", host.done("systemctl status socksdirect.service")?);
    }
    Ok(format!("process {}", host.main_pid()?))
}

/// Debian's unit of redis: users, filters and mounts of its own.
fn hardened_service(host: &mut Host) -> Result<String> {
    host.done("mkdir -p /etc/systemd/system/redis-server.service.d")?;
    host.done(
        "cp /usr/share/doc/socksdirect/examples/sd-preload.conf /etc/systemd/system/redis-server.service.d/",
    )?;
    host.done("systemctl daemon-reload && systemctl restart redis-server")?;
    host.shared(6379, 1)?;
    Ok("its listeners are accelerated".to_owned())
}

fn users(host: &mut Host) -> Result<String> {
    let client = host.machine.start(&format!("exec {AS_USER} sd run -- redis-benchmark -t get -l"))?;
    host.client = Some(client);
    host.shared(6379, 50)?;
    Ok("a client of another user's talks with it over shared memory".to_owned())
}

fn instance(host: &mut Host) -> Result<String> {
    host.done("mkdir -p /etc/socksdirect/run")?;
    host.done("echo 'COMMAND=/usr/bin/redis-server --port 7000' > /etc/socksdirect/run/redis")?;
    host.done("systemctl start sd-run@redis")?;
    host.shared(7000, 1)?;
    let user = host.done("stat --format %u /proc/$(systemctl show -P MainPID sd-run@redis)")?;
    match user.trim() {
        "0" => fail!("it is root's"),
        user => Ok(format!("user {user}")),
    }
}

fn reload(host: &mut Host) -> Result<String> {
    host.done("echo 'kernel port=7001' >> /etc/socksdirect/policy && systemctl reload socksdirect.service")?;
    retry(LIMIT, || {
        let said = host.done("journalctl --unit socksdirect.service --lines 5")?;
        match said.contains("policy read again") {
            true => Ok("the policy is read again".to_owned()),
            false => fail!("the monitor does not say that it has read the policy: {said}"),
        }
    })
}

/// Metrics, at an address and at a socket in the directory that the unit makes.
fn options(host: &mut Host) -> Result<String> {
    let places = ["127.0.0.1:9464", "unix:/run/socksdirect-monitor/metrics.sock"];
    for place in places {
        host.done(&format!("echo 'OPTIONS=--metrics {place}' > /etc/default/socksdirect"))?;
        host.done("systemctl restart socksdirect.service")?;
        if place.starts_with("unix:") {
            host.done("test -S /run/socksdirect-monitor/metrics.sock")?;
            continue;
        }
        let ask =
            "exec 3<>/dev/tcp/127.0.0.1/9464 && printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3";
        let page = host.done(&format!("bash -c \"{ask}\""))?;
        if !page.contains("200 OK") || !page.contains("# EOF") {
            fail!("no page of metrics: {page}");
        }
    }
    host.still_served()?;
    Ok(places.join(", "))
}

/// The engine for connections to other hosts, within the rights of the monitor's unit; another one where it ends.
fn engine(host: &mut Host) -> Result<String> {
    let key = host.done("sd key new /etc/socksdirect/engine.key")?;
    let lines = [
        "listen 127.0.0.1:7077".to_owned(),
        "key engine.key".to_owned(),
        format!("host 10.9.0.0/16 127.0.0.2:7077 key={}", key.trim()),
    ];
    host.done(&format!("printf '%s\\n' '{}' > /etc/socksdirect/hosts", lines.join("' '")))?;
    host.done("echo 'OPTIONS=--hosts /etc/socksdirect/hosts' > /etc/default/socksdirect")?;
    host.done("systemctl restart socksdirect.service")?;
    let seen = |host: &Host| retry(LIMIT, || engine_pid(host));
    let first = seen(host)?;
    host.done(&format!("kill -KILL {first}"))?;
    let next = retry(LIMIT, || match engine_pid(host)? {
        pid if pid != first => Ok(pid),
        pid => fail!("process {pid} is there still"),
    })?;
    host.still_served()?;
    Ok(format!("process {first}, then {next}"))
}

/// Of the engine, once it listens.
fn engine_pid(host: &Host) -> Result<String> {
    let said = host.done("sd doctor || true")?;
    if !said.contains("127.0.0.2:7077") {
        let log = host.done("journalctl --unit socksdirect.service --lines 12")?;
        fail!("sd doctor says nothing of the other engine; the journal: {log}");
    }
    let seen: serde_json::Value = serde_json::from_str(&host.done("sd ss --json")?)?;
    let Some(pid) = seen["monitor"]["engine"]["pid"].as_u64() else { fail!("there is no engine: {said}") };
    host.done("bash -c 'exec 3<>/dev/tcp/127.0.0.1/7077'")?;
    Ok(pid.to_string())
}

fn restart(host: &mut Host) -> Result<String> {
    let (before, socket) = (host.main_pid()?, host.done("stat --format %i /run/socksdirect/monitor.sock")?);
    host.done("systemctl restart socksdirect.service")?;
    let after = host.main_pid()?;
    if before == after || host.done("stat --format %i /run/socksdirect/monitor.sock")? != socket {
        fail!("process {before}, then {after}, and the same socket should be there");
    }
    host.still_served()?;
    host.done(&format!("{AS_USER} sd run -- redis-cli ping"))?;
    host.shared(6379, 50)?;
    Ok("connections go on, the socket stays".to_owned())
}

fn kill(host: &mut Host) -> Result<String> {
    let before = host.main_pid()?;
    host.done("systemctl kill --signal KILL socksdirect.service")?;
    retry(LIMIT, || match host.main_pid()? {
        pid if pid != before && pid != "0" => Ok(()),
        pid => fail!("process {before}, then {pid}"),
    })?;
    host.still_served()?;
    host.shared(6379, 50)?;
    Ok("started again, connections go on".to_owned())
}

fn upgrade(host: &mut Host) -> Result<String> {
    let before = host.main_pid()?;
    host.done("dpkg --install /package.deb")?;
    if host.main_pid()? == before {
        fail!("the monitor is still the old one");
    }
    host.still_served()?;
    Ok("another monitor, connections go on".to_owned())
}

fn remove(host: &mut Host) -> Result<String> {
    host.done("dpkg --remove socksdirect")?;
    if host.is_active("socksdirect.socket")? || host.is_active("socksdirect.service")? {
        fail!("units are still active");
    }
    host.still_served()?;
    host.done("systemctl stop sd-run@redis && rm -r /etc/socksdirect/run && dpkg --purge socksdirect")?;
    host.done("! ls -d /etc/socksdirect /etc/default/socksdirect /run/socksdirect-monitor 2>/dev/null")?;
    host.done("! ls -d /run/socksdirect/monitor.sock /usr/lib/socksdirect 2>/dev/null")?;
    Ok("nothing is left, connections go on".to_owned())
}
