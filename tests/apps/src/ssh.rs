//! OpenSSH and Dropbear over loopback: servers that execute themselves anew for each connection and drop privileges.

use super::table::{Load, Row};
use super::{Scenario, files};
use harness::lab::{Lab, Side};
use harness::process::{Proc, free_port};
use harness::{Result, fail, nginx};
use std::time::{Duration, Instant};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("ssh-openssh-copies", OPENSSH, copies).limit_s(150).extra(),
    Scenario::new("ssh-openssh-forwarding", OPENSSH, forwarding).limit_s(120).extra(),
    Scenario::new("ssh-openssh-rekey-and-restart", OPENSSH, rekey).limit_s(120).extra(),
    Scenario::new("ssh-dropbear", &["dropbear", "dropbearkey", "ssh", "ssh-keygen"], dropbear)
        .limit_s(120)
        .extra(),
    Scenario::new("ssh-rsync", &["sshd", "ssh", "ssh-keygen", "rsync"], over_ssh).limit_s(120).extra(),
];

pub(crate) const ROWS: &[Row] = &[Row {
    application: "OpenSSH",
    version: &["ssh", "-V"],
    scenarios: "ssh-openssh",
    features: "server that executes itself for each connection, drop of privileges, scp, sftp, forwarding, rekeying",
    load: Some(Load { unit: "MB/s, ssh, 200 MB", rate }),
}];

const OPENSSH: &[&str] = &["sshd", "ssh", "scp", "sftp", "ssh-keygen"];
const LIMIT: Duration = Duration::from_secs(60);

/// Keys of a server and a client, and the options with which a client uses them.
struct Keys {
    host: String,
    own: String,
}

impl Keys {
    fn new(lab: &Lab) -> Result<Keys> {
        let path = |name: &str| lab.path().join(name).display().to_string();
        let keys = Keys { host: path("host_key"), own: path("own_key") };
        for key in [&keys.host, &keys.own] {
            lab.run(Side::Kernel, "ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", key], LIMIT)?;
        }
        Ok(keys)
    }

    fn options(&self) -> Vec<&str> {
        let mut options = vec!["-F", "none", "-i", &self.own, "-o", "BatchMode=yes", "-o", "LogLevel=ERROR"];
        options.extend(["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]);
        options
    }
}

struct Sshd {
    server: Proc,
    port: String,
}

fn serve(lab: &Lab, side: Side, keys: &Keys) -> Result<Sshd> {
    if nix::unistd::geteuid().is_root() {
        // Its service would make it.
        std::fs::create_dir_all("/run/sshd")?;
    }
    let port = free_port()?;
    let configuration = lab.path().join("sshd_config");
    let text = format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}.pub\nStrictModes no\nUsePAM no\n\
         PermitRootLogin yes\nPidFile none\nSubsystem sftp internal-sftp\nMaxStartups 50\nPrintMotd no\n",
        keys.host, keys.own
    );
    std::fs::write(&configuration, text)?;
    let configuration = configuration.display().to_string();
    let server = lab.serve(side, port, "sshd", &["-D", "-e", "-f", &configuration])?;
    Ok(Sshd { server, port: port.to_string() })
}

impl Sshd {
    fn port(&self) -> u16 {
        self.port.parse().unwrap_or(0)
    }

    /// The options of ssh, its destination, and what it shall do there.
    fn ssh<'a>(&'a self, keys: &'a Keys, extra: &[&'a str], remote: &[&'a str]) -> Vec<&'a str> {
        let mut args = keys.options();
        args.extend(["-p", &self.port]);
        args.extend(extra);
        args.push("127.0.0.1");
        args.extend(remote);
        args
    }

    fn stop(self) -> Result<()> {
        // It says with which signal it was ended.
        self.server.terminate(LIMIT)?;
        Ok(())
    }
}

fn rate(lab: &Lab, side: Side) -> Result<f64> {
    let keys = Keys::new(lab)?;
    let sshd = serve(lab, side, &keys)?;
    let start = Instant::now();
    let args = sshd.ssh(&keys, &[], &["head -c 200000000 /dev/zero"]);
    let output = lab.run(side, "ssh", &args, LIMIT)?;
    let seconds = start.elapsed().as_secs_f64();
    sshd.stop()?;
    Ok(output.stdout.len() as f64 / 1e6 / seconds)
}

/// Fifty megabytes there and back, by scp, by sftp, and through a remote cat.
fn copies(lab: &mut Lab) -> Result<()> {
    let keys = Keys::new(lab)?;
    let data = files::bytes(50_000_000);
    let sample = lab.path().join("sample");
    std::fs::write(&sample, &data)?;
    let (from, there, back) = (sample.display().to_string(), path(lab, "there"), path(lab, "back"));
    for (server, client) in [(Side::Sd, Side::Sd), (Side::Sd, Side::Kernel), (Side::Kernel, Side::Sd)] {
        let sshd = serve(lab, server, &keys)?;
        let watch = lab.watch(sshd.port());
        for program in ["scp", "sftp"] {
            let remote = |path: &str| format!("127.0.0.1:{path}");
            let mut args = keys.options();
            args.extend(["-P", &sshd.port]);
            if program == "scp" {
                let (to, from_there) = (remote(&there), remote(&there));
                let up: Vec<&str> = args.iter().copied().chain([from.as_str(), &to]).collect();
                lab.run(client, "scp", &up, LIMIT)?;
                let down: Vec<&str> = args.iter().copied().chain([from_there.as_str(), &back]).collect();
                lab.run(client, "scp", &down, LIMIT)?;
            } else {
                let batch = lab.path().join("batch");
                std::fs::write(&batch, format!("put {from} {there}\nget {there} {back}\n"))?;
                let batch = batch.display().to_string();
                args.extend(["-b", &batch, "127.0.0.1"]);
                lab.run(client, "sftp", &args, LIMIT)?;
            }
            files::require_same(program, &std::fs::read(&back)?, &data)?;
            std::fs::remove_file(&there)?;
            std::fs::remove_file(&back)?;
        }
        let args = sshd.ssh(&keys, &[], &["cat"]);
        let output = lab.run_with_input(client, &sample, "ssh", &args, LIMIT)?;
        files::require_same("ssh cat", &output.stdout, &data)?;
        status(lab, client, &sshd, &keys)?;
        lab.check_executed(watch, server, client)?;
        sshd.stop()?;
    }
    Ok(())
}

fn path(lab: &Lab, name: &str) -> String {
    lab.path().join(name).display().to_string()
}

/// The remote command's status comes back, and what it is: our user.
fn status(lab: &Lab, client: Side, sshd: &Sshd, keys: &Keys) -> Result<()> {
    let args = sshd.ssh(keys, &[], &["id -un; exit 7"]);
    let output = lab.start(client, "ssh", &args)?.wait(LIMIT)?;
    if output.status.code() != Some(7) || output.text().trim() != nginx::own_user() {
        fail!("ssh ended with {}: {:?} {:?}", output.status, output.text(), output.stderr);
    }
    Ok(())
}

/// A port forwarded with -L, one with -R, and a SOCKS proxy, to a redirecting echo server behind.
fn forwarding(lab: &mut Lab) -> Result<()> {
    let keys = Keys::new(lab)?;
    let data = files::bytes(10_000_000);
    let sample = lab.path().join("sample");
    std::fs::write(&sample, &data)?;
    for (server, client) in [(Side::Sd, Side::Sd), (Side::Sd, Side::Kernel), (Side::Kernel, Side::Sd)] {
        let sshd = serve(lab, server, &keys)?;
        let echo_port = free_port()?;
        let listen = format!("TCP-LISTEN:{echo_port},bind=127.0.0.1,fork,reuseaddr");
        let echo = lab.serve(server, echo_port, "socat", &["-t10", &listen, "EXEC:cat"])?;
        let ports = [free_port()?, free_port()?];
        let local = format!("127.0.0.1:{}:127.0.0.1:{echo_port}", ports[0]);
        let remote = format!("127.0.0.1:{}:127.0.0.1:{echo_port}", ports[1]);
        let watch = lab.watch(sshd.port());
        let extra = ["-N", "-o", "ExitOnForwardFailure=yes", "-L", &local, "-R", &remote];
        let mut tunnel = lab.start(client, "ssh", &sshd.ssh(&keys, &extra, &[]))?;
        for port in ports {
            tunnel.wait_listening(port)?;
            let connect = format!("TCP:127.0.0.1:{port}");
            for side in [Side::Sd, Side::Kernel] {
                let output = lab.run_with_input(side, &sample, "socat", &["-t10", "-", &connect], LIMIT)?;
                files::require_same("through the tunnel", &output.stdout, &data)?;
            }
        }
        lab.check_executed(watch, server, client)?;
        tunnel.terminate(LIMIT)?;
        echo.terminate(LIMIT)?;
        sshd.stop()?;
    }
    Ok(())
}

/// New keys after each megabyte; sessions go on when the listening server ends, and a new one takes its place.
fn rekey(lab: &mut Lab) -> Result<()> {
    let keys = Keys::new(lab)?;
    let data = files::bytes(20_000_000);
    let sample = lab.path().join("sample");
    std::fs::write(&sample, &data)?;
    let sshd = serve(lab, Side::Sd, &keys)?;
    let extra = ["-o", "RekeyLimit=1M"];
    let args = sshd.ssh(&keys, &extra, &["cat"]);
    let output = lab.run_with_input(Side::Sd, &sample, "ssh", &args, LIMIT)?;
    files::require_same("with new keys", &output.stdout, &data)?;
    let args = sshd.ssh(&keys, &[], &["echo begin; sleep 2; echo end"]);
    let mut session = lab.start(Side::Sd, "ssh", &args)?;
    session.wait_for_text("begin", LIMIT)?;
    drop(args);
    sshd.stop()?;
    session.wait_for_text("end", LIMIT)?;
    session.wait(LIMIT)?.ok()?;
    let sshd = serve(lab, Side::Sd, &keys)?;
    status(lab, Side::Sd, &sshd, &keys)?;
    sshd.stop()
}

/// A server that forks without executing itself.
fn dropbear(lab: &mut Lab) -> Result<()> {
    let keys = Keys::new(lab)?;
    let host = path(lab, "dropbear_key");
    lab.run(Side::Kernel, "dropbearkey", &["-t", "ed25519", "-f", &host], LIMIT)?;
    let home = lab.path().join("home");
    std::fs::create_dir_all(home.join(".ssh"))?;
    let data = files::bytes(10_000_000);
    let sample = lab.path().join("sample");
    std::fs::write(&sample, &data)?;
    for (server, client) in [(Side::Sd, Side::Sd), (Side::Sd, Side::Kernel), (Side::Kernel, Side::Sd)] {
        let port = free_port()?;
        let listen = format!("127.0.0.1:{port}");
        let server_process =
            lab.serve(server, port, "dropbear", &["-F", "-E", "-r", &host, "-p", &listen])?;
        let watch = lab.watch(port);
        // No key of ours is known there: the exchange of keys works, the log-in is refused.
        let text = port.to_string();
        let mut args = keys.options();
        args.extend(["-p", &text, "127.0.0.1", "true"]);
        for _ in 0..5 {
            let output = lab.start(client, "ssh", &args)?.wait(LIMIT)?;
            if !output.stderr.contains("Permission denied") {
                let words = server_process.last_words();
                fail!(
                    "ssh to dropbear ended with {}: {:?}; the server: {words}",
                    output.status,
                    output.stderr
                );
            }
        }
        lab.check_executed(watch, server, client)?;
        server_process.terminate(LIMIT)?;
    }
    Ok(())
}

/// rsync through ssh: two programs, each with a pipe to the other.
fn over_ssh(lab: &mut Lab) -> Result<()> {
    let keys = Keys::new(lab)?;
    let from = lab.path().join("from");
    std::fs::create_dir(&from)?;
    for len in [0, 1, 1000, 65_537, 10_000_000] {
        std::fs::write(from.join(format!("{len}.bin")), files::bytes(len))?;
    }
    let sshd = serve(lab, Side::Sd, &keys)?;
    let watch = lab.watch(sshd.port());
    let shell = format!("ssh {} -p {}", keys.options().join(" "), sshd.port);
    let (from, to) = (format!("{}/", from.display()), path(lab, "to"));
    let destination = format!("127.0.0.1:{to}");
    lab.run(Side::Sd, "rsync", &["-a", "-e", &shell, &from, &destination], LIMIT)?;
    lab.run(Side::Kernel, "diff", &["-r", &from, &to], LIMIT)?;
    lab.check(watch, Side::Sd, Side::Sd)?;
    sshd.stop()
}
