//! The monitor's absence: killed, restarted, started twice, never there. And what `sd run` itself must do.

use super::peers::Peer;
use super::redis::Redis;
use super::{Scenario, files, python, web};
use harness::lab::{Lab, Side};
use harness::process::{Proc, free_port};
use harness::{Result, fail, product, retry, ss};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("monitor-killed-and-restarted", &["python3"], restart).ours().at_first_byte(),
    Scenario::new("monitor-killed-under-load", &["redis-server", "redis-cli", "redis-benchmark"], under_load)
        .limit_s(120)
        .ours()
        .at_first_byte(),
    Scenario::new("client-killed-while-no-monitor", &["python3"], client_killed_meanwhile)
        .ours()
        .at_first_byte(),
    Scenario::new("monitor-started-twice", &[], twice).ours(),
    Scenario::new("run-starts-monitor", &["python3"], automatic).ours(),
    Scenario::new("promoted-both-ends", &["python3"], both_ends).ours(),
    Scenario::new("run-without-usable-directory", &["python3", "curl"], unusable_directory).ours(),
    Scenario::new("run-status-and-errors", &[], run_status).ours(),
    Scenario::new("run-in-shifted-namespace", &["python3"], shifted).ours().at_first_byte(),
];

const LIMIT: Duration = Duration::from_secs(20);

/// Starts a peer that makes one exchange with an echo server each time it is let go.
fn start_peer(lab: &Lab, port: u16) -> Result<Peer> {
    let mut steps = vec!["send:100", "recv:100"];
    steps.extend(["ask", "send:70000", "recv:70000", "ask", "send:7", "recv:7", "ask", "send:9", "recv:9"]);
    let mut peer = Peer::start(lab, Side::Sd, "connect", port, &steps)?;
    peer.said("received 100 right")?;
    Ok(peer)
}

/// Existing connections go on, new ones take the kernel meanwhile, then shared memory again.
fn restart(lab: &mut Lab) -> Result<()> {
    let (server, port) = python::start_echo_server(lab, Side::Sd, "asyncio")?;
    let mut old = start_peer(lab, port)?;
    let before = lab.snapshot()?;
    lab.require_shm(&before.of_port(port).into_iter().cloned().collect::<Vec<_>>())?;
    lab.kill_monitor();
    old.go()?;
    old.said("received 70000 right").map_err(|e| format!("existing connection, monitor dead: {e}"))?;
    let mut meanwhile = start_peer(lab, port).map_err(|e| format!("new connection, monitor dead: {e}"))?;
    lab.start_monitor().map_err(|e| format!("restart beside a stale socket: {e}"))?;
    old.go()?;
    old.said("received 7 right").map_err(|e| format!("existing connection, monitor back: {e}"))?;
    meanwhile.go()?;
    meanwhile.said("received 70000 right").map_err(|e| format!("connection of the dead time: {e}"))?;
    wait_for_shm(lab, port)?;
    let shown = |path: &str| -> Result<usize> {
        Ok(lab.snapshot()?.of_port(port).iter().filter(|c| c.path == path).count())
    };
    // Both ends of the old connection, and the server's of the one over the kernel; its client had no
    // monitor to tell when it connected.
    retry(Duration::from_secs(10), || {
        if shown("shm")? < 2 || shown("kernel")? < 1 {
            fail!("after the restart sd ss shows {:?}", lab.snapshot()?.connections);
        }
        Ok(())
    })?;
    old.go()?;
    old.said("received 9 right")?;
    old.transcript()?;
    drop(meanwhile);
    server.terminate(Duration::from_secs(5))?;
    Ok(())
}

/// Waits until a new connection gets shared memory again.
fn wait_for_shm(lab: &Lab, port: u16) -> Result<()> {
    retry(Duration::from_secs(10), || {
        let mut peer = start_peer(lab, port)?;
        let pid = u64::from(peer.process()?.pid());
        let snapshot = lab.snapshot()?;
        if !snapshot.of_port(port).iter().any(|c| c.pid == pid && c.path == "shm") {
            fail!("10 s after the monitor's return a new connection shows {:?}", snapshot.of_port(port));
        }
        Ok(())
    })
}

fn under_load(lab: &mut Lab) -> Result<()> {
    let redis = Redis::start(lab, Side::Sd)?;
    let args = ["-t", "get,set", "-c", "50", "-n", "600000"];
    let benchmark = redis.start_benchmark(lab, Side::Sd, &args)?;
    std::thread::sleep(Duration::from_millis(300));
    lab.kill_monitor();
    let port = redis.port().to_string();
    let said = lab.run(Side::Sd, "redis-cli", &["-p", &port, "PING"], LIMIT)?.text();
    if said != "PONG\n" {
        fail!("a new client without a monitor got {said:?}");
    }
    // The second half goes over the kernel.
    benchmark.wait(3 * LIMIT)?.ok().map_err(|e| format!("traffic at the monitor's death: {e}"))?;
    // Its 50 connections of the second test are made while there is no monitor.
    lab.start_monitor()?;
    redis.expect(lab, Side::Sd, &["PING"], "PONG")?;
    redis.stop()
}

/// Nobody is there to see the client die; the server still learns it, at the latest from the next monitor.
fn client_killed_meanwhile(lab: &mut Lab) -> Result<()> {
    let port = free_port()?;
    let mut server = Peer::start(lab, Side::Sd, "listen", port, &["recv:10", "end"])?;
    server.process()?.wait_listening(port)?;
    let mut client = Peer::start(lab, Side::Sd, "connect", port, &["send:10", "ask"])?;
    server.said("received 10 right")?;
    client.said("sent")?;
    lab.kill_monitor();
    std::thread::sleep(Duration::from_millis(200));
    client.kill();
    std::thread::sleep(Duration::from_millis(200));
    lab.start_monitor()?;
    server.said("end: 0 bytes, then end")?;
    server.transcript()?;
    Ok(())
}

fn twice(lab: &mut Lab) -> Result<()> {
    let mut command = Command::new(product::sd());
    command.arg("monitor").arg("--socket").arg(lab.socket()).stdin(Stdio::null());
    let output = Proc::start(&mut command, "monitor", lab.path())?.wait(Duration::from_secs(5))?;
    if output.status.success() || output.stderr.lines().count() != 1 {
        fail!("a second monitor ended with {}: {:?}", output.status, output.stderr);
    }
    lab.snapshot()?;
    Ok(())
}

/// The first `sd run` of a user starts a monitor; the second one uses it, and both talk over shared memory.
fn automatic(lab: &mut Lab) -> Result<()> {
    let socket = lab.path().join("automatic").join("monitor.sock");
    let port = free_port()?;
    let peer = |role: &str, steps: &[&str]| -> Result<Proc> {
        let port = port.to_string();
        let script = python::script(lab, "peer.py")?;
        let mut args = vec!["-u", &script, role, &port];
        args.extend(steps);
        let mut command = lab.command(Side::Sd, "python3", &args)?;
        Proc::start(command.env("SD_MONITOR", &socket).stdin(Stdio::piped()), role, lab.path())
    };
    let mut server = peer("listen", &["recv:10", "ask"])?;
    server.wait_listening(port)?;
    let mut client = peer("connect", &["send:10", "ask"])?;
    server.wait_for_text("received 10 right", LIMIT)?;
    client.wait_for_text("sent", LIMIT)?;
    let seen = ss::snapshot(&product::sd(), &socket)?.connections;
    // The monitor is not the lab's, so it promotes.
    ss::require_earned(&seen)?;
    drop((client, server));
    let lab_monitor = lab.monitor_pid();
    let started = harness::procfs::descendants(std::process::id());
    let started: Vec<u32> = started.iter().map(|p| p.pid).filter(|pid| Some(*pid) != lab_monitor).collect();
    match started[..] {
        [pid] => harness::scratch::send(pid, nix::sys::signal::Signal::SIGTERM),
        _ => fail!("wanted one monitor that was started by itself, found {started:?}"),
    }
    Ok(())
}

/// Both ends of a connection that is moved are one process'.
fn both_ends(lab: &mut Lab) -> Result<()> {
    lab.kill_monitor();
    lab.start_monitor_with(&["--promote=all"])?;
    let script = python::script(lab, "both_ends.py")?;
    let mut command = lab.command(Side::Sd, "python3", &["-u", &script])?;
    let mut program = Proc::start(command.stdin(Stdio::piped()), "program", lab.path())?;
    program.wait_for_text("\n", LIMIT)?;
    let port = program.stdout_so_far().trim().parse()?;
    retry(LIMIT, || {
        let seen = lab.snapshot()?;
        let paths: Vec<&str> = seen.of_port(port).iter().map(|end| end.path.as_str()).collect();
        if paths == ["shm", "shm"] { Ok(()) } else { fail!("sd ss shows {paths:?}") }
    })?;
    drop(program.stdin()?);
    let said = program.wait(LIMIT)?.ok()?.text();
    if !said.ends_with("echoed\n") {
        fail!("the program said {said:?}");
    }
    Ok(())
}

/// No monitor is possible: everything works over the kernel, with one line from `sd run` and none from the library.
fn unusable_directory(lab: &mut Lab) -> Result<()> {
    let root = lab.path().join("files");
    std::fs::create_dir(&root)?;
    let data = files::bytes(300_000);
    std::fs::write(root.join("file"), &data)?;
    let file = lab.path().join("not-a-directory");
    std::fs::write(&file, "")?;
    let socket = file.join("monitor.sock");
    let port = free_port()?;
    let (text, folder) = (port.to_string(), root.display().to_string());
    let args = ["-m", "http.server", &text, "--bind", "127.0.0.1", "--directory", &folder];
    let mut command = lab.command(Side::Sd, "python3", &args)?;
    let mut server = Proc::start(command.env("SD_MONITOR", &socket), "server", lab.path())?;
    server.wait_listening(port)?;
    let url = format!("http://127.0.0.1:{port}/file");
    let mut command = lab.command(Side::Sd, "curl", &["-sS", "--fail", &url])?;
    let client = Proc::start(command.env("SD_MONITOR", &socket), "client", lab.path())?;
    let output = client.wait(LIMIT)?.ok()?;
    files::require_same("curl", &output.stdout, &data)?;
    // The server's own log goes to standard error as well.
    let log = server.stderr_so_far();
    let warnings: Vec<&str> = log.lines().filter(|line| !line.contains("GET /file")).collect();
    if output.stderr.lines().count() != 1 || warnings.len() != 1 {
        fail!("wanted one warning each: client {:?}, server {warnings:?}", output.stderr);
    }
    web::download(lab, Side::Kernel, &url, &data)?;
    server.terminate(Duration::from_secs(5))?;
    Ok(())
}

/// The program's own status comes through; a missing program is one line and 127.
fn run_status(lab: &mut Lab) -> Result<()> {
    let status = |args: &[&str]| -> Result<(Option<i32>, String)> {
        let mut command = Command::new(product::sd());
        command.args(args).env("SD_MONITOR", lab.socket()).stdin(Stdio::null());
        let output = Proc::start(&mut command, "sd", lab.path())?.wait(Duration::from_secs(5))?;
        Ok((output.status.code(), output.stderr))
    };
    for (args, code, lines) in [
        (&["run", "--", "sh", "-c", "exit 7"][..], 7, 0),
        (&["run", "--", "sh", "-c", "exit 0"][..], 0, 0),
        (&["run", "--", "no-such-program-anywhere"][..], 127, 1),
    ] {
        let (got, stderr) = status(args)?;
        if got != Some(code) || stderr.lines().count() != lines {
            fail!("sd {args:?}: wanted {code} and {lines} lines, got {got:?} and {stderr:?}");
        }
    }
    for args in [&["run", "--no-such-flag"][..], &["no-such-command"][..], &["ss", "--no-such-flag"][..]] {
        let (got, stderr) = status(args)?;
        if got.is_none_or(|code| code == 0) || stderr.is_empty() {
            fail!("sd {args:?}: wanted an error, got {got:?} and {stderr:?}");
        }
    }
    Ok(())
}

/// Where users have other numbers: accelerated if nobody inside can have put the monitor's socket there, else told.
fn shifted(lab: &mut Lab) -> Result<()> {
    let script = python::script(lab, "shifted.py")?;
    let [sd, library, socket] =
        [product::sd(), product::libsd(), lab.socket()].map(|p| p.display().to_string());
    // What runs inside is another user of the host.
    std::fs::set_permissions(lab.path(), std::fs::Permissions::from_mode(0o755))?;
    let output = lab.run(Side::Kernel, "python3", &["-u", &script, &sd, &library, &socket], 2 * LIMIT)?;
    match output.text().as_str() {
        "right\n" | "skipped\n" => Ok(()),
        other => fail!("{other:?}: {:?}", output.stderr),
    }
}
