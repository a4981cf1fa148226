//! `sd demote`: whose connections go back to the kernel's, and who is told.

use crate::authority::{MALLORY, become_user, is_root};
use crate::client::{Client, Control};
use crate::process::Process;
use crate::server::Server;
use sd_proto::{Ip, Reply, Request};
use sd_shm::channel::Side;
use sd_shm::slab::{HAS_COLD, Reason, State};
use sd_sys::Errno;
use std::sync::atomic::Ordering;

const ANY: Ip = Ip([0; 16]);

/// A process with a connection that was promoted, one that was not, and one that has gone back. Their names are 127.0.0.1:40000 and :80.
fn client(server: &Server) -> Client {
    let client = Client::register(server);
    let reasons = [Reason::Promoted, Reason::None, Reason::Demoted].into_iter().enumerate();
    for (index, reason) in reasons {
        let endpoint = client.attach(index, 1, Side::A, index as u32, 1);
        endpoint.reason.store(reason as u8, Ordering::Relaxed);
        if reason == Reason::Demoted {
            endpoint.state.store(State::Kernel as u8, Ordering::Release);
        }
    }
    client
}

fn told(control: &Control, pid: u32, ip: Ip, port: u16) -> u32 {
    match control.ask(Request::Demote { pid, ip, port, at_once: port == 80, before_ns: 0 }, &[]).0 {
        Reply::Demoted { count } => count,
        other => panic!("{other:?}"),
    }
}

/// What a client was told since the last look.
fn notices(client: &Client) -> Vec<(Ip, u16)> {
    let mut all = Vec::new();
    loop {
        match client.control.receive_with(libc::MSG_DONTWAIT) {
            Ok(Some((Reply::Demote { ip, port, at_once, by_policy: false }, fds)))
                if fds.is_empty() && at_once == (port == 80) =>
            {
                all.push((ip, port));
            }
            Err(Errno::EAGAIN) => return all,
            other => panic!("{:?}", other.map(|found| found.map(|(reply, _)| reply))),
        }
    }
}

#[test]
fn those_are_told_that_have_such_a_connection() {
    let server = Server::start();
    let client = client(&server);
    let asks = Control::connect(server.socket());
    let (here, pid) = (Ip::v4([127, 0, 0, 1]), std::process::id());
    let mail = client.mail();
    for (pid, ip, port) in [(0, ANY, 0), (pid, ANY, 0), (0, ANY, 80), (0, here, 40000), (pid, here, 0)] {
        assert_eq!(told(&asks, pid, ip, port), 1, "{pid} {ip:?} {port}");
        assert_eq!(notices(&client), [(ip, port)]);
    }
    assert_eq!(client.mail(), mail + 5);
    for (pid, ip, port) in [(1, ANY, 0), (0, ANY, 81), (0, Ip::v4([127, 0, 0, 2]), 80), (pid, ANY, 40001)] {
        assert_eq!(told(&asks, pid, ip, port), 0, "{pid} {ip:?} {port}");
    }
    assert_eq!((notices(&client), client.mail()), (vec![], mail + 5));
}

/// Who waits for them counts those that have their road since before they were told; nobody is told again.
#[test]
fn those_that_have_not_gone_back_are_counted() {
    let server = Server::start();
    let client = client(&server);
    let asks = Control::connect(server.socket());
    let still = |before_ns| {
        let request = Request::Demote { pid: 0, ip: ANY, port: 0, at_once: false, before_ns };
        match asks.ask(request, &[]).0 {
            Reply::Demoted { count } => count,
            other => panic!("{other:?}"),
        }
    };
    client.slab.endpoint(0).unwrap().flags.fetch_or(HAS_COLD, Ordering::Relaxed);
    let since = |ns| client.slab.cold(0).unwrap().road_since_ns.store(ns, Ordering::Relaxed);
    since(500);
    assert_eq!([still(499), still(500), still(501)], [0, 0, 1]);
    since(502);
    assert_eq!(still(501), 0, "it has been promoted again");
    assert_eq!(notices(&client), []);
}

/// What stands in the way of a process that is to be checkpointed, who is told, and when it is done.
#[test]
fn who_detaches_is_told_and_counted() {
    let server = Server::start();
    let client = client(&server);
    let asks = Control::connect(server.socket());
    let detach = |pid, tell| asks.ask(Request::Detach { pid, tell }, &[]).0;
    let pid = std::process::id();
    let there = Reply::Detaching { is_there: true, promoted: 1, shared: 1, relatives: 0 };
    let nobody = Reply::Detaching { is_there: false, promoted: 0, shared: 0, relatives: 0 };
    assert_eq!([detach(pid, false), detach(1, true)], [there, nobody]);
    assert!(matches!(client.control.receive_with(libc::MSG_DONTWAIT), Err(Errno::EAGAIN)), "only asked");
    let mail = client.mail();
    assert_eq!(detach(pid, true), there);
    assert!(matches!(client.control.receive(), Some((Reply::Detach, _))) && client.mail() == mail + 1);
    assert_eq!(client.control.ask(Request::Separate, &[]).0, Reply::Ok);
    assert_eq!(detach(pid, true), nobody, "it has left");
}

#[test]
fn who_reads_nothing_is_not_told_for_ever() {
    let server = Server::start();
    let client = client(&server);
    let asks = Control::connect(server.socket());
    const TIMES: usize = 18_000;
    for _ in 0..TIMES {
        assert_eq!(told(&asks, 0, ANY, 0), 1);
    }
    let told = notices(&client).len();
    assert!(told > 0 && told < TIMES, "{told} notices wait in the monitor, or on the way");
}

/// As kill(2) would have it.
#[test]
fn connections_of_others_stay_where_they_are() {
    if !is_root() {
        return;
    }
    let server = Server::start();
    let roots = client(&server);
    let mut mallory = Process::fork(|ready| {
        become_user(MALLORY);
        let asks = Control::connect(server.socket());
        assert_eq!(told(&asks, 0, ANY, 0), 0);
        assert_eq!(told(&asks, std::process::id(), ANY, 0), 0);
        let nobody = Reply::Detaching { is_there: false, promoted: 0, shared: 0, relatives: 0 };
        let victim = nix::unistd::getppid().as_raw() as u32;
        assert_eq!(asks.ask(Request::Detach { pid: victim, tell: true }, &[]).0, nobody);
        let own = client(&server);
        assert_eq!(told(&asks, 0, ANY, 80), 1);
        assert_eq!(notices(&own), [(ANY, 80)]);
        ready();
        std::mem::forget(own);
    });
    mallory.wait_ready();
    assert_eq!(notices(&roots), []);
    let asks = Control::connect(server.socket());
    assert_eq!(told(&asks, 0, ANY, 0), 2, "root's word is for all");
}
