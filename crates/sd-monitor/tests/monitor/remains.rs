//! Memory of channels between users that are over: it is given back when nobody needs it any more.

use crate::authority::{MALLORY, become_user, is_root};
use crate::client::{Channel, Client, own};
use crate::cut_off::{cut_off, register, resume};
use crate::process::Process;
use crate::server::{Server, until};
use sd_proto::{Reply, Request};
use sd_shm::channel::{Side, SlotState};
use std::os::fd::AsRawFd;

/// A monitor whose helpers note in their program that they were started.
fn server() -> Server {
    Server::start_with_helper("#!/bin/sh\necho \"# $@\" >> \"$0\"\n")
}

/// What they were asked for.
fn said(server: &Server) -> Vec<String> {
    let program = std::fs::read_to_string(server.socket().with_file_name("helper")).unwrap();
    program.lines().filter_map(|line| line.strip_prefix("# ").map(str::to_owned)).collect()
}

/// A process of mallory's with a channel to a server of root's.
fn stranger(server: &Server, listening: &Client, port: u16) -> (Process, Channel) {
    let mut process = Process::fork(|ready| {
        become_user(MALLORY);
        let client = Client::register(server);
        let channel = client.connect(port, false).1.unwrap();
        ready();
        std::mem::forget((client, channel));
    });
    process.wait_ready();
    let channel = listening.take_channel();
    (process, channel)
}

fn is_over(client: &Client, channel: &Channel) {
    assert_eq!(client.control.receive().unwrap().0, Reply::ChannelDead { id: channel.id });
}

fn is_emptied(client: &Client, channel: &Channel) {
    assert_eq!(client.control.receive().unwrap().0, Reply::Emptied { id: channel.id });
}

fn finish(client: &Client, channel: &Channel) {
    client.control.tell(Request::Finished { channel: channel.id }, &[]);
}

#[test]
fn what_somebody_may_read_is_kept() {
    if !is_root() {
        return;
    }
    let server = server();
    let listening = Client::register(&server);
    let (_listener, port) = listening.listen(0);
    let (mut mallory, channel) = stranger(&server, &listening, port);
    // While it lives there is nothing to wait for.
    finish(&listening, &channel);
    is_emptied(&listening, &channel);
    // A child has what its parent has, whether it was forked before the end or after.
    let [first, second] = [1, 2].map(|member| {
        let [monitors, childs] = sd_sys::msg::pair_with_credentials().unwrap().map(own);
        let fork =
            || listening.control.tell(Request::Fork { member, serial: member }, &[monitors.as_raw_fd()]);
        if member == 1 {
            fork();
        }
        (monitors.try_clone().unwrap(), childs)
    });
    mallory.kill();
    is_over(&listening, &channel);
    listening.control.tell(Request::Fork { member: 2, serial: 2 }, &[second.0.as_raw_fd()]);
    finish(&listening, &channel);
    finish(&listening, &channel);
    let is_kept = || {
        listening.control.status();
        said(&server).is_empty()
    };
    assert!(is_kept());
    drop(first);
    assert!(is_kept());
    drop(second);
    is_emptied(&listening, &channel);
    assert_eq!(said(&server), ["empty-segments"]);
}

/// A client that has ended before its connection was accepted: the server accepts, forks, and then has no use for the channel. Its child may
/// read on.
#[test]
fn what_a_child_of_who_has_left_may_read_is_kept() {
    if !is_root() {
        return;
    }
    let server = server();
    let listening = Client::register(&server);
    let (_listener, port) = listening.listen(0);
    let (mut mallory, channel) = stranger(&server, &listening, port);
    channel.request(0, port);
    mallory.kill();
    // What waits there is offered once more, any time.
    let is_offer = |reply: &Reply| matches!(reply, Reply::Offer { .. });
    let told = || {
        let mut all = std::iter::repeat_with(|| listening.control.receive().unwrap().0);
        all.find(|reply| !is_offer(reply))
    };
    assert_eq!(told(), Some(Reply::PeerGone { id: channel.id }));
    channel.declare(0, Side::B, 1, SlotState::Open);
    let [monitors, childs] = sd_sys::msg::pair_with_credentials().unwrap().map(own);
    listening.control.tell(Request::Fork { member: 1, serial: 1 }, &[monitors.as_raw_fd()]);
    listening.control.tell(Request::Leave { channel: channel.id }, &[]);
    assert_eq!(told(), Some(Reply::ChannelDead { id: channel.id }));
    assert_eq!(told(), Some(Reply::Ok));
    finish(&listening, &channel);
    listening.control.status();
    assert!(said(&server).is_empty());
    drop((monitors, childs));
    is_emptied(&listening, &channel);
    assert_eq!(said(&server), ["empty-segments"]);
}

/// Who was cut off when it would have been told says once more that it is finished.
#[test]
fn what_was_said_to_nobody_is_said_again() {
    if !is_root() {
        return;
    }
    let server = server();
    let (mut listening, _witness) = register(&server);
    let (_listener, port) = listening.listen(0);
    let (mut mallory, channel) = stranger(&server, &listening, port);
    let child = sd_sys::msg::pair_with_credentials().unwrap().map(own);
    listening.control.tell(Request::Fork { member: 1, serial: 1 }, &[child[0].as_raw_fd()]);
    mallory.kill();
    is_over(&listening, &channel);
    finish(&listening, &channel);
    listening.control.status();
    cut_off(&mut listening, &server);
    // The last that holds it.
    drop(child);
    until("it is emptied", || !said(&server).is_empty());
    resume(&listening);
    // Nothing else has come, nor does it.
    listening.control.status();
    finish(&listening, &channel);
    is_emptied(&listening, &channel);
    assert_eq!(said(&server), ["empty-segments"]);
}

#[test]
fn who_ends_needs_nothing() {
    if !is_root() {
        return;
    }
    let server = server();
    let listening = Client::register(&server);
    let (_listener, port) = listening.listen(0);
    let strangers = [0; 3].map(|_| stranger(&server, &listening, port));
    for (mut mallory, channel) in strangers {
        mallory.kill();
        is_over(&listening, &channel);
    }
    assert!(said(&server).is_empty());
    drop(listening);
    until("all are emptied", || !said(&server).is_empty());
}

#[test]
fn between_processes_of_one_user_nothing_is_kept() {
    let server = server();
    let (a, b, _, at_a, at_b) = crate::client::pair(&server);
    drop(a);
    is_over(&b, &at_b);
    finish(&b, &at_b);
    is_emptied(&b, &at_a);
    assert!(said(&server).is_empty());
}
