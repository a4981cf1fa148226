//! A program raises the limit that it has set: all numbers below it are its own, whatever the library has taken meanwhile.

use super::limits::{limit, talk, use_up};
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] =
    &[solo("limits/raised_later", raised_later), solo("limits/raised_beside_a_peer", raised_beside_a_peer)];

/// Of all that the limit allows so far nothing is left; it is raised twice.
fn show_more(first: i32) {
    for (label, more) in [("left", 0), ("more", 30), ("many more", 880)] {
        show(label, limit(first as u64 + 20 + more, 2000));
        say!("{label}: {}", use_up().len());
    }
}

/// The first connection comes with a low limit.
fn raised_later() {
    let first = lowest_free();
    show("low", limit(first as u64 + 20, 2000));
    let pair = connected();
    talk(pair.client, pair.server);
    show_more(first);
    talk(pair.client, pair.server);
}

/// And so does that to another process.
fn raised_beside_a_peer() {
    let (listening, addr) = listener();
    let child = fork_child(|| {
        let server = accept(listening).fd();
        recv(server, &mut [0], 0);
        let sent = send(server, b"x", 0);
        recv(server, &mut [0], 0);
        i32::from(sent.value != 1)
    });
    let first = lowest_free();
    show("low", limit(first as u64 + 20, 2000));
    let client = dial(&addr);
    send(client, b"x", 0);
    show_recv("client", client, 1, 0);
    show_more(first);
    send(client, b"x", 0);
    say!("child: {}", wait_child(child));
}
