//! Processes that the monitor starts to bridge connections for those who may start none.

use crate::authority::{MALLORY, become_user, is_root};
use crate::client::{Client, Control, own};
use crate::process::Process;
use crate::server::Server;
use sd_proto::Request;
use std::os::fd::{AsRawFd, OwnedFd};

/// A monitor whose helpers say what they were started with, and as whom.
fn server() -> Server {
    Server::start_with_helper("#!/bin/sh\necho \"$@\" $(id -u) >&0\n")
}

/// What the helper says that is asked for; nothing when there is none.
fn helper_for(control: &Control) -> String {
    let [theirs, ours]: [OwnedFd; 2] = sd_sys::msg::pair_with_credentials().unwrap().map(own);
    control.tell(Request::Bridge, &[theirs.as_raw_fd()]);
    drop(theirs);
    sd_sys::msg::set_timeout(ours.as_raw_fd(), 10_000).unwrap();
    let mut text = [0; 64];
    let len = sd_sys::fd::read(ours.as_raw_fd(), &mut text).unwrap_or(0);
    String::from_utf8_lossy(&text[..len]).trim().to_owned()
}

#[test]
fn a_client_has_a_helper_of_its_user() {
    let server = server();
    let client = Client::register(&server);
    let own = sd_sys::fd::geteuid();
    for _ in 0..3 {
        assert_eq!(helper_for(&client.control), format!("bridge-helper {own} {own}"));
    }
    assert_eq!(helper_for(&Control::connect(server.socket())), "", "nobody's connection");
    assert_eq!(client.control.status()["clients"].as_array().map(Vec::len), Some(1));
    if !is_root() {
        return;
    }
    // The helper changes its user itself.
    let mut process = Process::fork(|ready| {
        let client = Client::register(&server);
        become_user(MALLORY);
        assert_eq!(helper_for(&client.control), format!("bridge-helper {MALLORY} 0"));
        ready();
    });
    process.wait_ready();
}

#[test]
fn without_a_program_there_is_none() {
    let server = Server::start();
    assert_eq!(helper_for(&Client::register(&server).control), "");
}

#[test]
fn only_sockets_are_handed_on() {
    let server = server();
    let client = Client::register(&server);
    let (reader, writer) = nix::unistd::pipe().unwrap();
    client.control.tell(Request::Bridge, &[writer.as_raw_fd()]);
    client.control.tell(Request::Bridge, &[]);
    drop(writer);
    assert_eq!(sd_sys::fd::read(reader.as_raw_fd(), &mut [0; 8]), Ok(0), "it is closed");
    client.listen(0);
}
