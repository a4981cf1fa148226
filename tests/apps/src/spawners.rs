//! Servers that execute another program for each connection, or hand their listener to one.

use super::table::{Load, Row};
use super::{Scenario, files, python, rates};
use harness::Result;
use harness::lab::{Lab, Side};
use harness::process::{Proc, free_port};
use std::io::Write;
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("inetd-ncat-exec", &["ncat", "socat"], ncat).limit_s(120).extra(),
    Scenario::new("inetd-xinetd", &["xinetd", "socat"], xinetd).limit_s(120).extra(),
    Scenario::new("inetd-socket-activation-inetd", &["systemd-socket-activate", "socat"], activated_inetd)
        .limit_s(120)
        .extra(),
    Scenario::new("inetd-socket-activation", &["systemd-socket-activate", "socat", "python3"], activated)
        .limit_s(120)
        .extra(),
];

pub(crate) const ROWS: &[Row] = &[Row {
    application: "inetd style: ncat, xinetd, systemd-socket-activate",
    version: &["ncat", "--version"],
    scenarios: "inetd-",
    features: "a program executed for each connection, on its standard input and output; a listener handed over",
    load: Some(Load { unit: "connections/s, each a program of xinetd, one at a time", rate: xinetd_rate }),
}];

const LIMIT: Duration = Duration::from_secs(40);
const SIDES: [(Side, Side); 3] = [(Side::Sd, Side::Sd), (Side::Sd, Side::Kernel), (Side::Kernel, Side::Sd)];
const ECHO_BYTES: usize = 3_000_001;

/// Starts a server that echoes, and compares what clients get back: one that stays until `sd ss` has seen it, three in
/// turn, then four at once.
fn echoes(lab: &Lab, start: impl Fn(Side, u16) -> Result<Proc>) -> Result<()> {
    let data = files::bytes(ECHO_BYTES);
    let sample = lab.path().join("sample");
    std::fs::write(&sample, &data)?;
    for (server, client) in SIDES {
        let port = free_port()?;
        let process = start(server, port)?;
        let watch = lab.watch(port);
        let connect = format!("TCP:127.0.0.1:{port}");
        let args = ["-t10", "-", &connect];
        let mut held = lab.command(client, "socat", &args)?;
        let mut held = Proc::start(held.stdin(std::process::Stdio::piped()), "held", lab.path())?;
        let mut input = held.stdin()?;
        input.write_all(b"held\n")?;
        held.wait_for_text("held", LIMIT)?;
        if let Some(watch) = &watch {
            watch.look();
        }
        drop(input);
        held.wait(LIMIT)?.ok()?;
        for _ in 0..3 {
            let output = lab.run_with_input(client, &sample, "socat", &args, LIMIT)?;
            files::require_same("echo", &output.stdout, &data)?;
        }
        let many: Vec<Proc> = (0..4)
            .map(|_| {
                let mut command = lab.command(client, "socat", &args)?;
                command.stdin(std::fs::File::open(&sample)?);
                Proc::start(&mut command, "socat", lab.path())
            })
            .collect::<Result<_>>()?;
        for one in many {
            files::require_same("echo beside others", &one.wait(LIMIT)?.ok()?.stdout, &data)?;
        }
        lab.check_executed(watch, server, client)
            .map_err(|e| format!("{} server, {} client: {e}", server.name(), client.name()))?;
        process.terminate(LIMIT)?;
    }
    Ok(())
}

/// ncat stops a program whose client has said all; so this one only says something.
fn ncat(lab: &mut Lab) -> Result<()> {
    let data = files::bytes(ECHO_BYTES);
    let sample = lab.path().join("sample");
    std::fs::write(&sample, &data)?;
    let program = format!("/bin/cat {}", sample.display());
    for (server, client) in SIDES {
        let port = free_port()?;
        let args = ["-l", "127.0.0.1", &port.to_string(), "--keep-open", "--exec", &program];
        let process = lab.serve(server, port, "ncat", &args)?;
        let watch = lab.watch_every(port, Duration::from_millis(5));
        let connect = format!("TCP:127.0.0.1:{port}");
        for _ in 0..5 {
            let output = lab.run(client, "socat", &["-u", &connect, "-"], LIMIT)?;
            files::require_same("what the program says", &output.stdout, &data)?;
        }
        lab.check_executed(watch, server, client)?;
        process.terminate(LIMIT)?;
    }
    Ok(())
}

fn xinetd(lab: &mut Lab) -> Result<()> {
    let lab = &*lab;
    echoes(lab, |side, port| start_xinetd(lab, side, port))
}

fn xinetd_rate(lab: &Lab, side: Side) -> Result<f64> {
    let port = free_port()?;
    let process = start_xinetd(lab, side, port)?;
    let rate = rates::echoes(lab, side, port, "visit")?;
    process.terminate(LIMIT)?;
    Ok(rate)
}

fn start_xinetd(lab: &Lab, side: Side, port: u16) -> Result<Proc> {
    let configuration = lab.path().join(format!("xinetd-{port}.conf"));
    let text = format!(
        "service lab\n{{\n type = UNLISTED\n socket_type = stream\n protocol = tcp\n wait = no\n user = {}\n \
             bind = 127.0.0.1\n port = {port}\n server = /bin/cat\n cps = 100000 1\n instances = UNLIMITED\n disable = no\n}}\n",
        harness::nginx::own_user()
    );
    std::fs::write(&configuration, text)?;
    let pid = lab.path().join(format!("xinetd-{port}.pid")).display().to_string();
    let args = ["-dontfork", "-f", &configuration.display().to_string(), "-pidfile", &pid];
    lab.serve(side, port, "xinetd", &args)
}

fn activated_inetd(lab: &mut Lab) -> Result<()> {
    let lab = &*lab;
    echoes(lab, |side, port| {
        let listen = format!("127.0.0.1:{port}");
        lab.serve(side, port, "systemd-socket-activate", &["-l", &listen, "-a", "--inetd", "/bin/cat"])
    })
}

/// The activator waits for the first connection; the server it then becomes finds the listener as descriptor 3.
fn activated(lab: &mut Lab) -> Result<()> {
    let script = python::script(lab, "activated_server.py")?;
    let lab = &*lab;
    echoes(lab, |side, port| {
        let listen = format!("127.0.0.1:{port}");
        // It passes on what it is told to; ours is among that.
        let args = ["-l", &listen, "-E", "LD_PRELOAD", "-E", "SD_MONITOR", "/usr/bin/python3", &script];
        lab.serve(side, port, "systemd-socket-activate", &args)
    })
}
