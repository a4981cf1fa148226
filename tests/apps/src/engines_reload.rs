//! Two hosts with an engine each, whose hosts files change while connections are carried.

use super::Scenario;
use super::engines::{PORT, end, finish, forget_programs, hosts, start, wait_for_engine};
use harness::host::{ENGINE_PORT, Host};
use harness::lab::Lab;
use harness::{Result, fail, network, product, retry};
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::between_hosts("between-hosts-reload", &["python3", network::PROGRAM], reload).ours(),
    Scenario::between_hosts("between-hosts-names", &["python3", "unshare", "mount", network::PROGRAM], names)
        .ours()
        .limit_s(180),
];

const COUNT: usize = 4;
const SOON: Duration = Duration::from_secs(20);

fn text_of(host: &Host) -> Result<String> {
    Ok(std::fs::read_to_string(host.hosts_file())?)
}

/// The file as an editor leaves it: another one of that name.
fn write(host: &Host, text: &str) -> Result<()> {
    let new = host.hosts_file().with_extension("new");
    std::fs::write(&new, text)?;
    Ok(std::fs::rename(new, host.hosts_file())?)
}

fn without_hosts(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with("host ")).map(|line| format!("{line}\n")).collect()
}

/// Waits until all connections of the port are the kernel's, on both hosts, and why.
fn wait_for_kernel(hosts: &[Host; 2], why: &[&str]) -> Result<()> {
    for host in hosts {
        retry(SOON, || {
            let seen = host.lab.snapshot()?;
            let all = seen.of_port(PORT);
            let is_back = |c: &&harness::ss::Connection| {
                c.path == "kernel" && c.moved.as_deref().is_some_and(|moved| why.contains(&moved))
            };
            match all.iter().filter(|c| c.state == "ESTABLISHED").all(is_back) && all.len() >= COUNT {
                true => Ok(()),
                false => fail!("not all are the kernel's for {why:?}: {all:?}"),
            }
        })?;
    }
    Ok(())
}

/// Waits until a monitor shows so many other engines, and this mistake of the hosts file.
fn wait_for_file(host: &Host, peers: usize, mistake: Option<u64>) -> Result<()> {
    retry(SOON, || {
        let seen = host.engine_seen()?;
        let count = seen["peers"].as_array().map(Vec::len);
        match count == Some(peers) && seen["hosts"]["mistake"].as_u64() == mistake {
            true => Ok(()),
            false => fail!("sd ss --json says {seen}"),
        }
    })
}

const CHANGED: &[&str] = &["the hosts file has changed", "the other end went to the kernel"];

/// Engines take the file while all goes on: no connection is lost, whatever it says.
fn reload(_: &mut Lab) -> Result<()> {
    let Some(mut hosts) = hosts()? else { return Ok(()) };
    let (server, client) = start(&hosts, COUNT, 300_000)?;
    let engines = [hosts[0].engine()?, hosts[1].engine()?];
    let text = text_of(&hosts[0])?;
    // A mistake: the old one stays.
    write(&hosts[0], &format!("{}nonsense\n", without_hosts(&text)))?;
    hosts[0].reload()?;
    let line = without_hosts(&text).lines().count() as u64 + 1;
    wait_for_file(&hosts[0], 1, Some(line))?;
    if !hosts[0].lab.monitor_said("no such word") || !hosts[0].lab.monitor_said(&format!("line {line}")) {
        fail!("the log does not say what is wrong: {}", hosts[0].lab.last_said());
    }
    wait_for_engine(&hosts, COUNT)?;
    // Taken out, by one of the two: all go back, and nothing is left of the link.
    write(&hosts[0], &without_hosts(&text))?;
    hosts[0].reload()?;
    wait_for_kernel(&hosts, CHANGED)?;
    wait_for_file(&hosts[0], 0, None)?;
    // Added again.
    write(&hosts[0], &text)?;
    hosts[0].reload()?;
    wait_for_engine(&hosts, COUNT)?;
    other_key(&hosts)?;
    if [hosts[0].engine()?, hosts[1].engine()?] != engines {
        fail!("there are other engines now");
    }
    other_tenant(&hosts)?;
    // What the file says while there is no monitor the engine hears of the next one.
    hosts[1].lab.kill_monitor();
    let text = text_of(&hosts[1])?;
    write(&hosts[1], &without_hosts(&text))?;
    hosts[1].start_monitor()?;
    wait_for_kernel(&hosts, CHANGED)?;
    wait_for_file(&hosts[1], 0, None)?;
    end(server, client, ("end", COUNT))?;
    forget_programs(&mut hosts[1])?;
    finish(hosts)
}

/// One of the two has another key now. Until the other one's file says so too, all is the kernel's.
fn other_key(hosts: &[Host; 2]) -> Result<()> {
    let key = hosts[0].make_key("other.key")?;
    write(&hosts[0], &text_of(&hosts[0])?.replace("key engine.key", "key other.key"))?;
    hosts[0].reload()?;
    wait_for_kernel(hosts, CHANGED)?;
    let text = text_of(&hosts[1])?;
    let Some((before, old)) = text.rsplit_once("key=") else { fail!("no key: {text}") };
    let rest = old.split_once('\n').map_or("", |(_, rest)| rest);
    write(&hosts[1], &format!("{before}key={key}\n{rest}"))?;
    hosts[1].reload()?;
    wait_for_engine(hosts, COUNT)
}

/// The networks are another tenant's, of both files at last; and what is shown of that.
fn other_tenant(hosts: &[Host; 2]) -> Result<()> {
    for host in hosts {
        let lines = text_of(host)?;
        let mut text = String::new();
        for line in lines.lines() {
            let tenant = if line.starts_with("host ") { " tenant=blue" } else { "" };
            writeln!(text, "{line}{tenant}")?;
        }
        write(host, &text)?;
        host.reload()?;
    }
    wait_for_engine(hosts, COUNT)?;
    retry(SOON, || {
        let seen = hosts[0].engine_seen()?;
        match seen["peers"][0]["tenants"][0] == "blue" {
            true => Ok(()),
            false => fail!("sd ss --json says {seen}"),
        }
    })
}

/// A monitor that sees another `/etc/hosts`.
fn with_names(host: &Host) -> Result<PathBuf> {
    let (names, program) = (host.lab.path().join("names"), host.lab.path().join("sd-with-names"));
    std::fs::write(&names, "127.0.0.1 localhost\n")?;
    let (file, sd) = (names.display(), product::sd());
    let mount = format!("mount --bind '{file}' /etc/hosts && exec '{}' \"$@\"", sd.display());
    let escaped = mount.replace('\'', "'\\''");
    std::fs::write(&program, format!("#!/bin/sh\nexec unshare -m sh -c '{escaped}' sd \"$@\"\n"))?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?;
    Ok(program)
}

fn name(host: &Host, lines: &str) -> Result<()> {
    Ok(std::fs::write(host.lab.path().join("names"), format!("127.0.0.1 localhost\n{lines}"))?)
}

fn start_with(host: &mut Host, program: &Path) -> Result<()> {
    let file = host.hosts_file().display().to_string();
    host.lab.start_monitor_of_with(program, &["--hosts", &file])?;
    retry(SOON, || host.lab.has_more_descriptors())
}

/// One host names the other by a name; that one has a name for all engines. Both names change.
fn names(_: &mut Lab) -> Result<()> {
    let Some(mut hosts) = hosts()? else { return Ok(()) };
    for host in &mut hosts {
        host.lab.kill_monitor();
    }
    let texts = [text_of(&hosts[0])?, text_of(&hosts[1])?];
    let [here, there] = [hosts[0].address, hosts[1].address];
    let named = |text: &str, network: &str, old: std::net::Ipv4Addr, new: &str, each: &str| {
        let line = |line: &str| match line.strip_prefix(&format!("host {old} {old}:{ENGINE_PORT} ")) {
            Some(rest) => format!("host {network} {new}:{ENGINE_PORT} {rest}{each}\nresolve 1\n"),
            None => format!("{line}\n"),
        };
        text.lines().map(line).collect::<String>()
    };
    write(&hosts[0], &named(&texts[0], &format!("{there}/32"), there, "there.example", ""))?;
    write(&hosts[1], &named(&texts[1], "10.77.0.0/24", here, "all.example", " each"))?;
    let programs = [with_names(&hosts[0])?, with_names(&hosts[1])?];
    // A stranger's address is in no network, and nobody asks there; its own is its own.
    name(&hosts[1], &format!("{here} all.example\n{there} all.example\n10.99.0.1 all.example\n"))?;
    for (host, program) in hosts.iter_mut().zip(&programs) {
        start_with(host, program)?;
    }
    // The first host knows no address yet.
    retry(SOON, || match hosts[0].engine_seen()? {
        seen if seen["hosts"]["unresolved"] == 1 && seen["peers"] == serde_json::json!([]) => Ok(()),
        seen => fail!("sd ss --json says {seen}"),
    })?;
    wait_for_file(&hosts[1], 1, None)?;
    name(&hosts[0], &format!("{there} there.example\n"))?;
    let (server, client) = start(&hosts, COUNT, 300_000)?;
    // The name of all has other engines, and not this one: its connections go back, and nobody is called there.
    name(&hosts[1], "10.77.0.200 all.example\n")?;
    wait_for_kernel(&hosts, CHANGED)?;
    retry(SOON, || match hosts[1].engine_seen()? {
        seen if seen["peers"][0]["address"] == format!("10.77.0.200:{ENGINE_PORT}") => Ok(()),
        seen => fail!("sd ss --json says {seen}"),
    })?;
    // It has no address for now: what it had stays. Then it is there again.
    name(&hosts[1], "")?;
    std::thread::sleep(Duration::from_millis(1500));
    wait_for_file(&hosts[1], 1, None)?;
    name(&hosts[1], &format!("{here} all.example\n"))?;
    wait_for_engine(&hosts, COUNT)?;
    end(server, client, ("end", COUNT))?;
    finish(hosts)
}
