//! Mixed worlds: processes that do odd things to themselves, and where they are.
//!
//! Each scenario is an echo that is checked byte by byte, and the path that `sd ss` must show for it. What becomes of
//! programs that the library cannot be loaded into stands in docs/POSIX-DIFFERENCES.md.

use super::{Scenario, mixed_tools, python};
use harness::lab::{Lab, Side};
use harness::process::{Proc, free_port};
use harness::{Result, fail, procfs, product, until};
use std::io::Write;
use std::process::Command;
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("mixed-closes-all", PYTHON, |lab| odd_both(lab, "close-all")).at_first_byte(),
    Scenario::new("mixed-close-range", PYTHON, |lab| odd_both(lab, "close-range")).at_first_byte(),
    Scenario::new("mixed-daemon", PYTHON, daemon).at_first_byte(),
    Scenario::new("mixed-drops-privileges", PYTHON, |lab| odd_both(lab, "nobody")).at_first_byte(),
    Scenario::new("mixed-drops-privileges-late", PYTHON, |lab| odd_both(lab, "nobody-late")).at_first_byte(),
    Scenario::new("mixed-chroot", PYTHON, |lab| chroot(lab, "chroot")).at_first_byte(),
    Scenario::new("mixed-chroot-late", PYTHON, |lab| chroot(lab, "chroot-late")).at_first_byte(),
    Scenario::new("mixed-empty-environment", PYTHON, empty_environment).at_first_byte(),
    Scenario::new("mixed-stdbuf", &["python3", "stdbuf"], stdbuf).at_first_byte(),
    Scenario::new("mixed-network-namespaces", &["python3", "unshare"], |lab| {
        network_namespaces(lab, NETWORK)
    })
    .at_first_byte(),
    Scenario::new("mixed-containers", &["python3", "unshare"], |lab| network_namespaces(lab, CONTAINER))
        .at_first_byte(),
    Scenario::new("mixed-pid-namespaces", &["python3", "unshare"], pid_namespaces).at_first_byte(),
    Scenario::new("mixed-jemalloc", &["python3", JEMALLOC], |lab| preloads(lab, JEMALLOC))
        .extra()
        .at_first_byte(),
    Scenario::new("mixed-tcmalloc", &["python3", TCMALLOC], |lab| preloads(lab, TCMALLOC))
        .extra()
        .at_first_byte(),
    Scenario::new("mixed-faketime", &["python3", FAKETIME], |lab| preloads(lab, FAKETIME))
        .extra()
        .at_first_byte(),
];

const PYTHON: &[&str] = &["python3"];
const JEMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";
const TCMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4";
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1";
const NETWORK: &[&str] = &["unshare", "-n"];
/// As containers are made: process ids, network, names, messages and mounts of its own.
const CONTAINER: &[&str] = &["unshare", "-n", "-u", "-i", "-pf", "--mount-proc", "--kill-child"];
const LIMIT: Duration = Duration::from_secs(30);
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// Runs a client beside a server that is ready, and checks what it says and which path it had.
pub(super) fn talk(
    lab: &Lab,
    port: u16,
    client: &mut Command,
    sides: (Side, Side),
    wanted: &str,
) -> Result<()> {
    let watch = lab.watch(port);
    let output = Proc::start(client, "client", lab.path())?.wait(LIMIT)?.ok()?;
    if output.text().trim() != wanted {
        fail!("the client said {:?}, wanted {wanted:?}; {:?}", output.text(), output.stderr);
    }
    lab.check(watch, sides.0, sides.1)
}

/// As `talk`, with the server's start and end.
pub(super) fn both(
    lab: &Lab,
    port: u16,
    server: &mut Command,
    client: &mut Command,
    sides: (Side, Side),
    wanted: &str,
) -> Result<()> {
    let mut process = Proc::start(server, "server", lab.path())?;
    process.wait_listening(port)?;
    if let Err(error) = talk(lab, port, client, sides, wanted) {
        fail!("{error}; server: {}", process.last_words());
    }
    process.terminate(STOP_LIMIT)?.ok()?;
    Ok(())
}

/// The words of a python echo server or client; the odd thing that it does first.
struct Words(Vec<String>);

impl Words {
    fn server(lab: &Lab, odd: Option<&str>, port: u16) -> Result<Words> {
        Words::of(lab, odd, "echo_server.py", &[port.to_string(), "asyncio".to_owned()])
    }

    fn client(lab: &Lab, odd: Option<&str>, port: u16) -> Result<Words> {
        Words::of(lab, odd, "echo_client.py", &[port.to_string(), "6".to_owned(), "8".to_owned()])
    }

    fn of(lab: &Lab, odd: Option<&str>, script: &str, args: &[String]) -> Result<Words> {
        let mut words = vec!["python3".to_owned(), "-u".to_owned()];
        if let Some(odd) = odd {
            words.extend([python::script(lab, "odd.py")?, odd.to_owned()]);
        }
        words.push(python::script(lab, script)?);
        words.extend_from_slice(args);
        Ok(Words(words))
    }

    /// The command, behind the words of programs that execute it.
    fn behind(&self, lab: &Lab, side: Side, before: &[&str]) -> Result<Command> {
        let all: Vec<&str> = before.iter().copied().chain(self.0.iter().map(String::as_str)).collect();
        lab.command(side, all[0], &all[1..])
    }

    fn command(&self, lab: &Lab, side: Side) -> Result<Command> {
        self.behind(lab, side, &[])
    }
}

const ECHOES: &str = "48 echoes";
const BOTH_OURS: (Side, Side) = (Side::Sd, Side::Sd);

/// An odd server with a usual client, a usual server with an odd client, and odd ones with a program without us.
fn odd_both(lab: &mut Lab, odd: &str) -> Result<()> {
    for (server_odd, client_odd, sides) in [
        (Some(odd), None, BOTH_OURS),
        (None, Some(odd), BOTH_OURS),
        (Some(odd), None, (Side::Sd, Side::Kernel)),
        (None, Some(odd), (Side::Kernel, Side::Sd)),
    ] {
        let port = free_port()?;
        let mut server = Words::server(lab, server_odd, port)?.command(lab, sides.0)?;
        let mut client = Words::client(lab, client_odd, port)?.command(lab, sides.1)?;
        both(lab, port, &mut server, &mut client, sides, ECHOES)
            .map_err(|error| format!("{server_odd:?} server, {client_odd:?} client, {sides:?}: {error}"))?;
    }
    Ok(())
}

fn chroot(lab: &mut Lab, kind: &str) -> Result<()> {
    let jail = lab.path().join("jail");
    std::fs::create_dir(&jail)?;
    odd_both(lab, &format!("{kind}={}", jail.display()))
}

/// The server's sockets have the numbers 0, 1 and 2.
fn daemon(lab: &mut Lab) -> Result<()> {
    for client in [Side::Sd, Side::Kernel] {
        let port = free_port()?;
        let file = lab.path().join(format!("daemon-{port}.pid"));
        let odd = format!("daemon={}", file.display());
        let mut start = Words::server(lab, Some(&odd), port)?.command(lab, Side::Sd)?;
        Proc::start(&mut start, "daemon", lab.path())?.wait(LIMIT)?.ok()?;
        until("the daemon listens", LIMIT, || procfs::is_listening(port))?;
        talk(
            lab,
            port,
            &mut Words::client(lab, None, port)?.command(lab, client)?,
            (Side::Sd, client),
            ECHOES,
        )?;
        let pid: i32 = std::fs::read_to_string(&file)?.parse()?;
        let pid = nix::unistd::Pid::from_raw(pid);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM)?;
        // It is our child now: xtask takes orphans.
        nix::sys::wait::waitpid(pid, None)?;
    }
    Ok(())
}

/// `env -i` takes our library out of the program that it executes.
fn empty_environment(lab: &mut Lab) -> Result<()> {
    let port = free_port()?;
    let server = Words::server(lab, None, port)?;
    let client = Words::client(lab, None, port)?;
    let empty = ["env", "-i"];
    let sides = (Side::Sd, Side::Kernel);
    both(
        lab,
        port,
        &mut server.command(lab, Side::Sd)?,
        &mut client.behind(lab, Side::Sd, &empty)?,
        sides,
        ECHOES,
    )?;
    let sides = (Side::Kernel, Side::Sd);
    both(
        lab,
        port,
        &mut server.behind(lab, Side::Sd, &empty)?,
        &mut client.command(lab, Side::Sd)?,
        sides,
        ECHOES,
    )
}

/// stdbuf puts its library behind ours.
fn stdbuf(lab: &mut Lab) -> Result<()> {
    let port = free_port()?;
    let words = ["stdbuf", "-oL"];
    let mut server = Words::server(lab, None, port)?.behind(lab, Side::Sd, &words)?;
    let mut client = Words::client(lab, None, port)?.behind(lab, Side::Sd, &words)?;
    both(lab, port, &mut server, &mut client, BOTH_OURS, ECHOES)
}

/// Another preloaded library behind ours, as `sd run` puts it, and in front of ours.
fn preloads(lab: &mut Lab, other: &str) -> Result<()> {
    let noted = lab.path().join("numbers");
    let outcome = preloads_noted(lab, other, &format!("echo $$ >>{}; exec \"$@\"", noted.display()));
    // A program that executes another leaves libfaketime's page and semaphore of its number behind.
    for number in std::fs::read_to_string(&noted).unwrap_or_default().lines() {
        for name in ["faketime_shm_", "sem.faketime_sem_"] {
            let _ = std::fs::remove_file(format!("/dev/shm/{name}{number}"));
        }
    }
    outcome
}

/// Each process is started by a shell that runs `note` first.
fn preloads_noted(lab: &Lab, other: &str, note: &str) -> Result<()> {
    for order in [mixed_tools::Order::Behind, mixed_tools::Order::InFront] {
        let port = free_port()?;
        let preload = |words: &Words| {
            let mut command = words.behind(lab, order.side(), &["sh", "-c", note, "sh"])?;
            order.apply(lab, &mut command, other);
            Result::Ok(command)
        };
        let mut server = preload(&Words::server(lab, None, port)?)?;
        let mut client = preload(&Words::client(lab, None, port)?)?;
        both(lab, port, &mut server, &mut client, BOTH_OURS, ECHOES)
            .map_err(|error| format!("{other} {order:?}: {error}"))?;
    }
    Ok(())
}

/// A process that is the first of its namespace, with servers and clients inside.
struct Inside<'a> {
    lab: &'a Lab,
    unshare: &'a [&'a str],
    odd: Option<&'a str>,
    echo_port: u16,
    who_port: u16,
}

impl Inside<'_> {
    /// Returns when the echoes inside it are right.
    fn start(&self, name: &str) -> Result<Proc> {
        let Inside { lab, unshare, odd, echo_port, who_port } = *self;
        let mut words = Words::of(lab, odd, "inside.py", &[])?.0;
        let [server, client, who] = ["echo_server.py", "echo_client.py", "who.py"];
        words.extend([python::script(lab, server)?, python::script(lab, client)?, echo_port.to_string()]);
        words.extend([python::script(lab, who)?, who_port.to_string(), name.to_owned()]);
        let mut all: Vec<&str> = unshare.to_vec();
        let sd = product::sd().display().to_string();
        if !lab.is_oracle() {
            all.extend([sd.as_str(), "run", "--"]);
        }
        all.extend(words.iter().map(String::as_str));
        let mut command = lab.command(Side::Kernel, all[0], &all[1..])?;
        command.env("SD_MONITOR", lab.socket()).stdin(std::process::Stdio::piped());
        let mut process = Proc::start(&mut command, name, lab.path())?;
        process.wait_for_text(ECHOES, LIMIT)?;
        Ok(process)
    }

    fn outside(&self, script: &str, args: &[String]) -> Result<Proc> {
        python::start(self.lab, Side::Sd, script, args)
    }

    /// What an echo client outside of the namespace finds.
    fn echo_outside(&self) -> Result<bool> {
        let args = [self.echo_port.to_string(), "6".to_owned(), "8".to_owned()];
        Ok(self.outside("echo_client.py", &args)?.wait(LIMIT)?.status.success())
    }

    /// Asks who answers outside, and wants 16 times this one.
    fn ask_outside(&self, wanted: &str) -> Result<()> {
        let args = ["ask".to_owned(), self.who_port.to_string(), "16".to_owned()];
        let said = self.outside("who.py", &args)?.wait(LIMIT)?.ok()?.text();
        if said.trim() != format!("heard {wanted}:16") {
            fail!("outside was {said:?}, not {wanted}");
        }
        Ok(())
    }
}

/// Two namespaces, each with its own loopback interface, on one monitor, and what is outside: on the same ports each
/// reaches its own servers only, over shared memory.
fn network_namespaces(lab: &mut Lab, unshare: &[&str]) -> Result<()> {
    const ROUNDS: usize = 3;
    let (echo_port, who_port) = (free_port()?, free_port()?);
    let inside = Inside { lab, unshare, odd: Some("lo"), echo_port, who_port };
    let watches = [lab.watch(echo_port), lab.watch(who_port)];
    let mut processes = vec![inside.start("first")?];
    if inside.echo_outside()? {
        fail!("a client outside reached the server inside");
    }
    processes.push(inside.start("second")?);
    let serve = ["serve".to_owned(), who_port.to_string(), "outside".to_owned()];
    let mut outside = inside.outside("who.py", &serve)?;
    outside.wait_listening(who_port)?;
    let mut inputs = processes.iter_mut().map(Proc::stdin).collect::<Result<Vec<_>>>()?;
    for _ in 0..ROUNDS {
        for input in &mut inputs {
            input.write_all(b"ask\n")?;
        }
        inside.ask_outside("outside")?;
    }
    drop(inputs);
    for (process, name) in processes.into_iter().zip(["first", "second"]) {
        let said = process.wait(LIMIT)?.ok()?.text();
        let right = said.matches(&format!("heard {name}:16\n")).count();
        if right != ROUNDS || said.matches("heard").count() != ROUNDS {
            fail!("inside {name} was {said:?}");
        }
    }
    outside.kill();
    for watch in watches.into_iter().flatten() {
        lab.require_shm(&watch.finish()?)?;
    }
    Ok(())
}

/// A container with process ids that mean nothing to the monitor, in the network of the others: they reach each other,
/// and when its first process is killed, and all others in it with that, the peers outside are told.
fn pid_namespaces(lab: &mut Lab) -> Result<()> {
    let (echo_port, who_port) = (free_port()?, free_port()?);
    let unshare = ["unshare", "-pf", "--mount-proc", "--kill-child"];
    let inside = Inside { lab, unshare: &unshare, odd: None, echo_port, who_port };
    let watches = [lab.watch(echo_port), lab.watch(who_port)];
    let process = inside.start("first")?;
    if !inside.echo_outside()? {
        fail!("a client outside did not reach the server inside");
    }
    inside.ask_outside("first")?;
    let mut held = inside.outside("who.py", &["hold".to_owned(), who_port.to_string()])?;
    held.wait_for_text("held by first", LIMIT)?;
    process.kill();
    let said = held.wait(LIMIT)?.ok()?.text();
    if !said.ends_with("ended\n") {
        fail!("after the end of the container the peer said {said:?}");
    }
    for watch in watches.into_iter().flatten() {
        lab.require_shm(&watch.finish()?)?;
    }
    Ok(())
}
