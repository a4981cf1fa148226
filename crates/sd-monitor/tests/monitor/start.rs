//! Starting and ending.

use crate::client::Client;
use crate::server::Server;
use std::io::Read;
use std::process::Stdio;
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
