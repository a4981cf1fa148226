//! Connections that the kernel has made, offered by the processes at their ends (ADR 82).

use crate::client::{Channel, Client};
use crate::server::Server;
use sd_proto::{ErrorCode, Reply, Request};
use sd_shm::slab::Promotes;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

/// Both ends of a connection: who has connected, and who has accepted.
fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (a, listener.accept().unwrap().0)
}

/// Of a connection that was not restored.
pub(crate) fn offer(serial: u64, connected: bool) -> Request {
    let asked_ms = sd_sys::time::real_ms();
    Request::Offer {
        serial,
        connected,
        restored: false,
        sent: 0,
        received: 0,
        messages: 0,
        bytes: 0,
        asked_ms,
    }
}

/// The notice that the other end was found.
#[derive(Debug, PartialEq, Eq)]
struct Promise {
    serial: u64,
    channel: u64,
    side: u32,
    ticket: u64,
    peer_pid: u32,
}

fn promise(reply: Reply) -> Promise {
    match reply {
        Reply::Promote { serial, channel, side, ticket, peer_pid, stranger: false, .. } => {
            Promise { serial, channel, side, ticket, peer_pid }
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn both_ends_get_a_channel_and_a_ticket() {
    let server = Server::start_with_promotion("");
    let (client_a, client_b) = (Client::register(&server), Client::register(&server));
    assert_eq!(client_a.promotes(), Promotes::Earned as u32);
    let mut known = None;
    for round in 0..2 {
        let (a, b) = connection();
        assert_eq!(client_a.control.ask(offer(10 + round, true), &[a.as_raw_fd()]).0, Reply::Ok);
        client_b.control.tell(offer(20, false), &[b.as_raw_fd()]);
        if round == 0 {
            known = Some(client_b.take_channel());
        }
        let (of_b, fds) = client_b.control.receive().unwrap();
        assert!(fds.is_empty(), "B has the channel");
        assert_eq!(client_b.control.receive().unwrap().0, Reply::Ok);
        let (of_a, fds) = client_a.control.receive().unwrap();
        let (of_a, of_b) = (promise(of_a), promise(of_b));
        assert_eq!((of_a.serial, of_a.side, of_b.serial, of_b.side), (10 + round, 0, 20, 1));
        assert_eq!((of_a.channel, of_a.ticket), (of_b.channel, of_b.ticket));
        let channel = known.as_ref().unwrap();
        assert_eq!(of_a.channel, channel.id);
        match round {
            0 => assert_eq!(Channel::new(of_a.channel, of_a.peer_pid, fds).inode(), channel.inode()),
            _ => assert!(fds.is_empty(), "A has it too by now"),
        }
    }
}

/// An end that was restored says by what the connection was known before, and is found by that.
#[test]
fn who_was_restored_is_known_by_what_he_was_told() {
    if sd_sys::origins::may_ask() {
        let server = Server::start_with_promotion("");
        let (client_a, client_b) = (Client::register(&server), Client::register(&server));
        let (a, b) = connection();
        assert_eq!(client_a.control.ask(offer(1, true), &[a.as_raw_fd()]).0, Reply::Ok);
        client_b.control.tell(offer(2, false), &[b.as_raw_fd()]);
        let channel = client_b.take_channel();
        let of_b = client_b.control.receive().unwrap().0;
        let Reply::Promote { told: true, behind: 0, sent, received, .. } = of_b else { panic!("{of_b:?}") };
        assert_eq!(client_b.control.receive().unwrap().0, Reply::Ok);
        let of_a = client_a.control.receive().unwrap().0;
        let mirrored = matches!(of_a, Reply::Promote { told: true, behind: 0, sent: s, received: r, .. } if (r, s) == (sent, received));
        assert!(mirrored, "{of_a:?}");
        // Another connection, which stands for the restored one: its kernel counts from elsewhere.
        let (other, restored) = connection();
        assert_eq!(client_a.control.ask(offer(3, true), &[a.as_raw_fd()]).0, Reply::Ok);
        let again = Request::Offer {
            serial: 4,
            connected: false,
            restored: true,
            sent,
            received,
            messages: 0,
            bytes: 0,
            asked_ms: sd_sys::time::real_ms(),
        };
        client_b.control.tell(again, &[restored.as_raw_fd()]);
        let of_b = client_b.control.receive().unwrap().0;
        let Reply::Promote { serial: 4, channel: over, behind, sent: s, received: r, .. } = of_b else {
            panic!("{of_b:?}")
        };
        assert_eq!((over, s, r), (channel.id, sent, received), "known by the same numbers");
        assert_ne!(behind, 0, "the ends do not count alike");
        assert_eq!(client_b.control.receive().unwrap().0, Reply::Ok);
        // Whoever says other numbers is nobody's other end.
        client_a.control.receive().unwrap();
        assert_eq!(client_a.control.ask(offer(5, true), &[a.as_raw_fd()]).0, Reply::Ok);
        let wrong = Request::Offer {
            serial: 6,
            connected: false,
            restored: true,
            sent: sent ^ 1,
            received,
            messages: 0,
            bytes: 0,
            asked_ms: sd_sys::time::real_ms(),
        };
        assert_eq!(client_b.control.ask(wrong, &[restored.as_raw_fd()]).0, Reply::Ok, "it waits");
        drop(other);
    }
}

#[test]
fn what_is_no_connection_is_refused() {
    let server = Server::start_with_promotion("");
    let client = Client::register(&server);
    let (a, b) = connection();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    for fd in [listener.as_raw_fd(), file.as_raw_fd()] {
        assert_eq!(client.control.refused(offer(1, true), &[fd]), ErrorCode::Descriptor);
    }
    assert_eq!(client.control.refused(offer(1, true), &[]), ErrorCode::Descriptor);
    // Half closed.
    b.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(client.control.refused(offer(1, true), &[a.as_raw_fd()]), ErrorCode::Descriptor);
    let (_a, b) = connection();
    assert_eq!(client.control.ask(offer(2, false), &[b.as_raw_fd()]).0, Reply::Ok, "its other end may come");
}

#[test]
fn an_offer_that_nobody_may_wait_for_any_more_is_not_looked_at() {
    let server = Server::start_with_promotion("");
    let client = Client::register(&server);
    let (a, _b) = connection();
    let mut late = offer(1, true);
    let Request::Offer { asked_ms, .. } = &mut late else { unreachable!() };
    *asked_ms -= sd_proto::OFFER_MAX_MS + 1;
    assert_eq!(client.control.refused(late, &[a.as_raw_fd()]), ErrorCode::InUse);
    assert_eq!(client.control.ask(offer(2, true), &[a.as_raw_fd()]).0, Reply::Ok);
}

#[test]
fn the_socket_is_closed_by_the_time_of_the_answer() {
    let server = Server::start_with_promotion("");
    let client = Client::register(&server);
    let (a, b) = connection();
    assert_eq!(client.control.ask(offer(1, true), &[a.as_raw_fd()]).0, Reply::Ok);
    drop(a);
    let mut byte = [0];
    b.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
    assert_eq!(std::io::Read::read(&mut &b, &mut byte).unwrap(), 0, "nobody else has it open");
}

#[test]
fn nothing_is_promoted_unless_the_monitor_was_told_to() {
    let server = Server::start();
    let client = Client::register(&server);
    assert_eq!(client.promotes(), Promotes::Nothing as u32);
    let (a, _b) = connection();
    assert_eq!(client.control.refused(offer(1, true), &[a.as_raw_fd()]), ErrorCode::Denied);
}

#[test]
fn the_policy_is_asked() {
    let server = Server::start_with_promotion("kernel port=1-65535");
    let (client_a, client_b) = (Client::register(&server), Client::register(&server));
    let (a, b) = connection();
    assert_eq!(
        client_b.control.ask(offer(2, false), &[b.as_raw_fd()]).0,
        Reply::Ok,
        "it does not know who comes"
    );
    assert_eq!(client_a.control.refused(offer(1, true), &[a.as_raw_fd()]), ErrorCode::Denied);
}

impl Client {
    fn promotes(&self) -> u32 {
        self.slab.header().promotes.load(Ordering::Relaxed)
    }
}
