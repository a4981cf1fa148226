//! Runs one subject under a watchdog.
//!
//! A solo subject runs in this very process. For a pair subject this process starts two copies of itself, each behind
//! its optional prefix, and joins them by two pipes: `server --lines--> client` and `client --lines--> server`, which
//! are descriptors `role::INPUT` and `role::OUTPUT` in the children, out of the way of the lowest-fd rule.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::role::{self, Role};
use crate::sys;
use crate::table::{self, Kind};

const WATCHDOG_SECONDS: u32 = 10;

pub(crate) fn run(name: &str) -> ExitCode {
    match table::find(name).map(|subject| &subject.kind) {
        None => unknown(name),
        Some(Kind::Solo(body)) => {
            watch();
            body();
            ExitCode::SUCCESS
        }
        Some(Kind::Pair { .. }) => run_pair(name),
    }
}

pub(crate) fn role(name: &str, side: &str) -> ExitCode {
    let Some(Kind::Pair { server, client }) = table::find(name).map(|subject| &subject.kind) else {
        return unknown(name);
    };
    watch();
    let mut role = Role::inherited();
    match side {
        "server" => server(&mut role),
        _ => client(&mut role),
    }
    ExitCode::SUCCESS
}

fn unknown(name: &str) -> ExitCode {
    eprintln!("sd-posix: no such subject (or role): {name}");
    ExitCode::from(2)
}

/// Arms the watchdog of this process.
fn watch() {
    sys::signal(libc::SIGPIPE, libc::SIG_IGN);
    sys::handle(libc::SIGALRM, timed_out, 0);
    sys::alarm(WATCHDOG_SECONDS);
}

extern "C" fn timed_out(_: i32) {
    sys::out("TIMEOUT");
    sys::exit_now(124);
}

/// One running side of a pair.
struct Side {
    child: Child,
    transcript: JoinHandle<String>,
}

fn run_pair(name: &str) -> ExitCode {
    let (client_in, server_out) = sys::pipe(libc::O_CLOEXEC);
    let (server_in, client_out) = sys::pipe(libc::O_CLOEXEC);
    let mut server = start(name, "server", "SD_POSIX_SERVER_PREFIX", server_in, server_out);
    let mut client = start(name, "client", "SD_POSIX_CLIENT_PREFIX", client_in, client_out);
    for fd in [client_in, server_out, server_in, client_out] {
        sys::close(fd);
    }
    let deadline = Instant::now() + Duration::from_secs(u64::from(WATCHDOG_SECONDS) + 1);
    let server_end = wait_until(&mut server.child, deadline);
    let client_end = wait_until(&mut client.child, deadline);
    for (title, side, end) in [("server", server, server_end), ("client", client, client_end)] {
        say!("[{title}]");
        for line in side.transcript.join().unwrap_or_default().lines() {
            say!("{line}");
        }
        say!("({})", describe(end));
    }
    ExitCode::SUCCESS
}

fn start(name: &str, side: &str, prefix: &str, input: i32, output: i32) -> Side {
    let prefix = std::env::var(prefix).unwrap_or_default();
    let own = std::env::current_exe().expect("own path");
    let own = own.to_str().expect("own path is UTF-8");
    let words: Vec<&str> = prefix.split_whitespace().chain([own, "role", name, side]).collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    // SAFETY: only dup2, which is async-signal-safe, runs between fork and exec.
    unsafe {
        command.pre_exec(move || {
            sys::dup2(input, role::INPUT);
            sys::dup2(output, role::OUTPUT);
            Ok(())
        });
    }
    let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {words:?}: {error}"));
    let mut stdout = child.stdout.take().expect("stdout is piped");
    let transcript = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stdout.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    });
    Side { child, transcript }
}

/// Waits for a side; at the deadline its whole process group is killed.
fn wait_until(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    let group = -i32::try_from(child.id()).expect("a pid");
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
            _ => {
                sys::kill(group, libc::SIGKILL);
                let _ = child.wait();
                return None;
            }
        }
    }
}

fn describe(end: Option<ExitStatus>) -> String {
    match end {
        None => "TIMEOUT".to_owned(),
        Some(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit {code}"),
            (None, Some(signal)) => format!("killed by {}", sys::signal_name(signal)),
            (None, None) => "ended".to_owned(),
        },
    }
}
