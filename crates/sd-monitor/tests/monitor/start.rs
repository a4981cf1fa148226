//! Starting and ending.

use crate::client::{Client, Control};
use crate::server::{Server, keep_signals_from_threads};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, sockopt};
use nix::sys::socket::{bind, listen, setsockopt, socket};
use sd_proto::{Reply, Request};
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

fn fails_with(server: &Server) -> String {
    let mut child = server.command().stderr(Stdio::piped()).env("SD_LOG", "off").spawn().unwrap();
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(!child.wait().unwrap().success());
    text
}

#[test]
fn a_second_monitor_is_refused() {
    let server = Server::start();
    let text = fails_with(&server);
    assert!(text.contains("already running"), "{text}");
    Client::register(&server);
}

#[test]
fn what_a_killed_monitor_left_is_replaced() {
    let mut server = Server::start();
    server.kill();
    assert!(server.socket().exists());
    server.restart();
    Client::register(&server);
    assert!(server.end().success());
    assert!(!server.socket().exists());
    assert_eq!(std::fs::read_dir(server.directory()).unwrap().count(), 0);
}

#[test]
fn a_bad_policy_stops_the_start() {
    let mut server = Server::start_with_policy(Some("allow"));
    server.kill();
    server.write_policy("allow\nforbid port=1\n");
    let text = fails_with(&server);
    assert!(text.contains("policy:2: unknown action \"forbid\""), "{text}");
}

#[test]
fn an_idle_monitor_sleeps() {
    let server = Server::start();
    let clients: Vec<Client> = (0..20).map(|_| Client::register(&server)).collect();
    std::thread::sleep(Duration::from_millis(50));
    let before = server.sleeps();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(server.sleeps(), before);
    drop(clients);
}

#[test]
fn systemd_is_told() {
    let mut server = Server::start();
    server.end();
    let path = server.directory().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    let mut child = server.command().env("NOTIFY_SOCKET", &path).env("SD_LOG", "off").spawn().unwrap();
    let mut buf = [0; 64];
    let len = socket.recv(&mut buf).unwrap();
    assert_eq!(&buf[..len], b"READY=1");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A listening socket, as a service manager makes it.
fn listening(server: &Server) -> OwnedFd {
    let made = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    setsockopt(&made, sockopt::PassCred, &true).unwrap();
    bind(made.as_raw_fd(), &UnixAddr::new(&server.socket()).unwrap()).unwrap();
    listen(&made, Backlog::MAXCONN).unwrap();
    made
}

/// The command's process gets a descriptor as a service manager hands it over: `LISTEN_PID` is its own number.
fn hand(command: &mut Command, to_hand: &OwnedFd) {
    let fd = to_hand.as_raw_fd();
    let shell = Command::new("sh");
    let monitor = std::mem::replace(command, shell);
    command.args(["-c", "export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$0\" \"$@\""]);
    command.arg(monitor.get_program()).args(monitor.get_args()).stdin(Stdio::null());
    for (name, value) in monitor.get_envs() {
        value.map(|value| command.env(name, value));
    }
    keep_signals_from_threads(command);
    // SAFETY: between fork and exec only system calls are made, on numbers.
    unsafe {
        command.pre_exec(move || {
            // Of the same number dup2 changes nothing, and the descriptor would be closed by exec.
            let is_done = match fd {
                3 => nix::libc::fcntl(fd, nix::libc::F_SETFD, 0) == 0,
                _ => nix::libc::dup2(fd, 3) == 3,
            };
            if is_done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        });
    }
}

#[test]
fn a_socket_that_was_handed_over_is_served_and_stays() {
    let mut server = Server::start();
    server.end();
    let made = listening(&server);
    // Asked before there is a monitor.
    let early = Control::connect(server.socket());
    early.tell(Request::Status, &[]);
    for _ in 0..2 {
        server.restart_with(|command| hand(command, &made));
        Client::register(&server);
        assert!(server.end().success());
        assert!(server.socket().exists(), "it is not the monitor's to remove");
        assert_eq!(std::fs::read_dir(server.directory()).unwrap().count(), 1, "and there is nothing else");
    }
    assert_eq!(early.receive().map(|(reply, fds)| (reply, fds.len())), Some((Reply::Status, 1)));
    drop(made);
    std::fs::remove_file(server.socket()).unwrap();
}

#[test]
fn another_socket_that_was_handed_over_is_refused() {
    let mut server = Server::start();
    server.end();
    let other: OwnedFd = std::net::TcpListener::bind("127.0.0.1:0").unwrap().into();
    let mut command = server.command();
    hand(&mut command, &other);
    let mut child = command.stderr(Stdio::piped()).env("SD_LOG", "off").spawn().unwrap();
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(!child.wait().unwrap().success());
    assert!(text.contains("LISTEN_FDS"), "{text}");
}
