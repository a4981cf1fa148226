//! iperf3, netcat and socat.

use super::table::{Load, Row};
use super::{Scenario, files};
use harness::lab::{Lab, Side, each};
use harness::process::{Proc, free_port};
use harness::{Result, fail};
use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("iperf3-both-directions", &["iperf3"], iperf).limit_s(90),
    Scenario::new("iperf3-parallel", &["iperf3"], iperf_parallel),
    Scenario::new("nc-to-server", &["nc"], |lab| netcat(lab, true)),
    Scenario::new("nc-from-server", &["nc"], |lab| netcat(lab, false)),
    Scenario::new("nc-conversation", &["nc"], |lab| conversation(lab, "nc")),
    Scenario::new("socat-conversation", &["socat"], |lab| conversation(lab, "socat")),
    Scenario::new("socat-fork-echo", &["socat"], socat_fork),
    Scenario::new("socat-one-way", &["socat"], socat_one_way),
];

pub(crate) const ROWS: &[Row] = &[
    Row {
        application: "iperf3",
        version: &["iperf3", "--version"],
        scenarios: "iperf3-",
        features: "a control connection, data in both directions, four streams at once",
        load: Some(Load { unit: "MB/s, one stream", rate: iperf_rate }),
    },
    Row {
        application: "socat",
        version: &["socat", "-V"],
        scenarios: "socat-",
        features: "fork for each connection, half-close, a program behind it",
        load: Some(Load { unit: "MB/s one way, 200 MB", rate: socat_rate }),
    },
    Row {
        application: "netcat (OpenBSD)",
        version: &["sh", "-c", "dpkg-query -W -f '${Version}' netcat-openbsd"],
        scenarios: "nc-",
        features: "poll, half-close, both directions",
        load: Some(Load { unit: "MB/s one way, 200 MB", rate: netcat_rate }),
    },
];

const LIMIT: Duration = Duration::from_secs(30);
const SAMPLE_BYTES: usize = 20_000_003;
/// For connections that last as long as a file takes.
const OFTEN: Duration = Duration::from_millis(3);

fn iperf(lab: &mut Lab) -> Result<()> {
    each(|server, client| {
        for extra in [&[][..], &["-R"][..]] {
            iperf_run(lab, server, client, extra)?;
        }
        Ok(())
    })
}

fn iperf_parallel(lab: &mut Lab) -> Result<()> {
    iperf_run(lab, Side::Sd, Side::Sd, &["-P", "4"])?;
    iperf_run(lab, Side::Sd, Side::Sd, &["-P", "4", "--bidir"])?;
    Ok(())
}

/// Its rate in MB/s.
fn iperf_run(lab: &Lab, server: Side, client: Side, extra: &[&str]) -> Result<f64> {
    let port = free_port()?;
    let text = port.to_string();
    let process = lab.serve(server, port, "iperf3", &["-s", "-1", "-p", &text, "-B", "127.0.0.1"])?;
    let watch = lab.watch(port);
    let mut args = vec!["-c", "127.0.0.1", "-p", &text, "-t", "2", "-J"];
    args.extend(extra);
    let what = format!("iperf3 {extra:?}");
    let output = lab.run(client, "iperf3", &args, LIMIT).map_err(|error| format!("{what}: {error}"))?;
    let report: serde_json::Value = serde_json::from_str(&output.text())?;
    let sent = report["end"]["sum_sent"]["bytes"].as_u64().unwrap_or(0);
    let received = report["end"]["sum_received"]["bytes"].as_u64().unwrap_or(0);
    if received < 1_000_000 || received > sent || !report["error"].is_null() {
        fail!("{what}: sent {sent}, received {received}, error {}", report["error"]);
    }
    lab.check(watch, server, client).map_err(|error| format!("{what}: {error}"))?;
    process.wait(Duration::from_secs(5))?.ok()?;
    Ok(received as f64 / 2e6)
}

fn iperf_rate(lab: &Lab, side: Side) -> Result<f64> {
    iperf_run(lab, side, side, &[])
}

/// MB/s of what a sender's program passes to a receiver's.
fn one_way(lab: &Lab, side: Side, program: &str, receive: &[&str], send: &[&str], port: u16) -> Result<f64> {
    const BYTES: usize = 200_000_000;
    let sample = lab.path().join("sample");
    std::fs::write(&sample, vec![b'x'; BYTES])?;
    let mut receiver = lab.command(side, "sh", &["-c", "exec \"$0\" \"$@\" >/dev/null", program])?;
    let mut receiver = Proc::start(receiver.args(receive), "receiver", lab.path())?;
    receiver.wait_listening(port)?;
    let start = std::time::Instant::now();
    lab.run_with_input(side, &sample, program, send, LIMIT)?;
    receiver.wait(LIMIT)?.ok()?;
    Ok(BYTES as f64 / 1e6 / start.elapsed().as_secs_f64())
}

fn socat_rate(lab: &Lab, side: Side) -> Result<f64> {
    let port = free_port()?;
    let listen = format!("TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr");
    let connect = format!("TCP:127.0.0.1:{port}");
    one_way(lab, side, "socat", &["-u", &listen, "-"], &["-u", "-", &connect], port)
}

fn netcat_rate(lab: &Lab, side: Side) -> Result<f64> {
    let port = free_port()?;
    let text = port.to_string();
    one_way(lab, side, "nc", &["-d", "-l", "127.0.0.1", &text], &["-N", "127.0.0.1", &text], port)
}

/// A file through netcat, towards the server or from it.
fn netcat(lab: &mut Lab, is_upload: bool) -> Result<()> {
    let data = files::bytes(SAMPLE_BYTES);
    let sample = lab.path().join("sample");
    std::fs::write(&sample, &data)?;
    each(|server, client| {
        let port = free_port()?;
        let text = port.to_string();
        let start = |side, args: &[&str], is_sender: bool| -> Result<Proc> {
            // The sender ends the stream at the end of its input; the receiver has no input.
            let mut all = vec![if is_sender { "-N" } else { "-d" }];
            all.extend(args);
            let mut command = lab.command(side, "nc", &all)?;
            if is_sender {
                command.stdin(std::fs::File::open(&sample)?);
            }
            Proc::start(&mut command, "nc", lab.path())
        };
        let mut listener = start(server, &["-l", "127.0.0.1", &text], !is_upload)?;
        listener.wait_listening(port)?;
        let watch = lab.watch_every(port, OFTEN);
        let connector = start(client, &["127.0.0.1", &text], is_upload)?;
        let (first, second) = if is_upload { (connector, listener) } else { (listener, connector) };
        first.wait(LIMIT)?.ok()?;
        let receiver = second.wait(LIMIT)?.ok()?;
        files::require_same("received file", &receiver.stdout, &data)?;
        lab.check_if_seen(watch, server, client)?;
        Ok(())
    })
}

/// Lines typed at both ends in turn, slowly enough for `sd ss` to show the path.
fn conversation(lab: &mut Lab, program: &str) -> Result<()> {
    each(|server, client| {
        let port = free_port()?;
        let text = port.to_string();
        let (listen, connect) =
            (format!("TCP-LISTEN:{port},bind=127.0.0.1"), format!("TCP:127.0.0.1:{port}"));
        let (listen, connect) = match program {
            "nc" => (vec!["-l", "127.0.0.1", &text], vec!["-N", "127.0.0.1", &text]),
            _ => (vec!["-t10", listen.as_str(), "-"], vec!["-t10", connect.as_str(), "-"]),
        };
        let start = |side, args: &[&str], name| -> Result<Proc> {
            let mut command = lab.command(side, program, args)?;
            Proc::start(command.stdin(Stdio::piped()), name, lab.path())
        };
        let mut left = start(server, &listen, "left")?;
        left.wait_listening(port)?;
        let watch = lab.watch(port);
        let mut right = start(client, &connect, "right")?;
        let (mut to_left, mut to_right) = (left.stdin()?, right.stdin()?);
        for line in 0..5 {
            writeln!(to_right, "question {line}")?;
            left.wait_for_text(&format!("question {line}\n"), LIMIT)?;
            writeln!(to_left, "answer {line}")?;
            right.wait_for_text(&format!("answer {line}\n"), LIMIT)?;
            std::thread::sleep(Duration::from_millis(40));
        }
        lab.check(watch, server, client)?;
        drop((to_right, to_left));
        right.wait(LIMIT)?.ok()?;
        left.wait(LIMIT)?.ok()?;
        Ok(())
    })
}

/// A server that forks and executes cat for each connection; the client sends, half-closes, and compares.
fn socat_fork(lab: &mut Lab) -> Result<()> {
    let data = files::bytes(3_000_001);
    let sample = lab.path().join("sample");
    std::fs::write(&sample, &data)?;
    each(|server, client| {
        let port = free_port()?;
        let listen = format!("TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr");
        let process = lab.serve(server, port, "socat", &["-t10", &listen, "EXEC:cat"])?;
        let connect = format!("TCP:127.0.0.1:{port}");
        let watch = lab.watch_every(port, OFTEN);
        for _ in 0..3 {
            let args = ["-t10", "-", &connect];
            let output = lab.run_with_input(client, &sample, "socat", &args, LIMIT)?;
            files::require_same("echo", &output.stdout, &data)?;
        }
        lab.check_if_seen(watch, server, client)?;
        process.terminate(Duration::from_secs(5))?;
        Ok(())
    })
}

fn socat_one_way(lab: &mut Lab) -> Result<()> {
    let data = files::bytes(SAMPLE_BYTES);
    let sample = lab.path().join("sample");
    std::fs::write(&sample, &data)?;
    each(|server, client| {
        let port = free_port()?;
        let listen = format!("TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr");
        let connect = format!("TCP:127.0.0.1:{port}");
        let receiver = lab.serve(server, port, "socat", &["-u", &listen, "-"])?;
        let watch = lab.watch_every(port, OFTEN);
        let mut command = lab.command(client, "socat", &["-u", "-", &connect])?;
        command.stdin(Stdio::from(std::fs::File::open(&sample)?));
        Proc::start(&mut command, "socat", lab.path())?.wait(LIMIT)?.ok()?;
        let output = receiver.wait(LIMIT)?.ok()?;
        files::require_same("received file", &output.stdout, &data)?;
        lab.check_if_seen(watch, server, client)?;
        Ok(())
    })
}
