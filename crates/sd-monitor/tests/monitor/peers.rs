//! What an engine says of other hosts' engines: who may say it, who is told, and how long it is kept.

use crate::client::Client;
use crate::metrics::{page, parse};
use crate::server::{Server, until};
use sd_proto::{Carrier, Ip, PeerState, Reply, Request};

fn peer(port: u16, state: PeerState) -> Request {
    Request::Peer {
        ip: Ip::v4([10, 0, 0, 2]),
        port,
        state,
        errno: 0,
        sealed: true,
        carrier: Carrier::Trunk,
        since_ns: 5,
        rtt_ns: 2_000_000_000,
        connections: 3,
        bytes_sent: 70,
        bytes_received: 80,
        packets_sent: 7,
        packets_received: 8,
        placed_sent: 0,
        placed_received: 0,
        said_again: 1,
        retransmitted: 2,
    }
}

fn engine(server: &Server) -> Client {
    let engine = Client::register(server);
    assert_eq!(engine.control.ask(Request::Engine, &[]).0, Reply::Ok);
    engine
}

#[test]
fn what_an_engine_says_is_shown_until_it_ends() {
    let server = Server::start_with_engine();
    let liar = Client::register(&server);
    let seen = || liar.control.status()["engine"].clone();
    liar.control.tell(peer(1, PeerState::Up), &[]);
    assert_eq!((&seen()["pid"], &seen()["peers"]), (&().into(), &Vec::<u8>::new().into()));
    let first = engine(&server);
    first.control.tell(peer(7, PeerState::Refused), &[]);
    first.control.tell(peer(7, PeerState::Up), &[]);
    liar.control.tell(peer(9, PeerState::Up), &[]);
    first.control.status();
    assert_eq!(seen()["pid"], std::process::id());
    assert_eq!(seen()["peers"].as_array().map(Vec::len), Some(1));
    let shown = &seen()["peers"][0];
    assert_eq!((&shown["address"], &shown["carrier"]), (&"10.0.0.2:7".into(), &"trunk".into()));
    assert_eq!((&shown["state"], &shown["encrypted"]), (&"up".into(), &true.into()));
    assert_eq!((&shown["bytes_sent"], &shown["retransmitted"]), (&70.into(), &2.into()));
    drop(first);
    until("the engine is gone", || seen()["pid"].is_null());
    assert_eq!(seen()["peers"], serde_json::json!([]));
    // The next begins anew.
    engine(&server).control.tell(peer(8, PeerState::Up), &[]);
}

/// What comes unasked, of which the first descriptor is read.
fn hosts_file(engine: &Client) -> String {
    let (reply, mut fds) = engine.control.receive().unwrap();
    assert_eq!((reply, fds.len()), (Reply::Hosts, 2));
    let (folder, file) = (std::fs::File::from(fds.pop().unwrap()), std::fs::File::from(fds.pop().unwrap()));
    assert!(folder.metadata().unwrap().is_dir());
    std::io::read_to_string(file).unwrap()
}

#[test]
fn an_engine_gets_the_hosts_file_and_what_it_makes_of_it_is_shown() {
    let server = Server::start_with_engine();
    let file = server.directory().join("hosts");
    std::fs::write(&file, "one").unwrap();
    let client = Client::register(&server);
    client.control.tell(Request::Engine, &[]);
    assert_eq!(hosts_file(&client), "one");
    assert_eq!(client.control.receive().unwrap().0, Reply::Ok);
    std::fs::write(&file, "two").unwrap();
    server.signal(nix::sys::signal::Signal::SIGHUP);
    assert_eq!(hosts_file(&client), "two");
    let listed = |mistaken, line, names| Request::Listed { mistaken, line, names };
    let (ip, engine) = (Ip::v4([10, 1, 0, 0]), Ip::v4([10, 0, 0, 2]));
    client.control.tell(listed(false, 0, 1), &[]);
    let tenant = sd_proto::Name::of("blue");
    client.control.tell(Request::Network { ip, prefix: 16, engine, port: 7, tenant, apart: false }, &[]);
    client.control.tell(peer(7, PeerState::Up), &[]);
    let seen = client.control.status()["engine"].clone();
    assert_eq!(seen["hosts"], serde_json::json!({"mistake": null, "unresolved": 1}));
    assert_eq!(seen["peers"][0]["tenants"], serde_json::json!(["blue"]));
    let all = parse(&page(&server.directory().join("metrics.sock")));
    let of = |name: &str| all[&format!("socksdirect_engine_{name}")];
    assert_eq!(of("peer_tenant{peer=\"10.0.0.2:7\",tenant=\"blue\"}"), 1.0);
    assert_eq!(of("peer_carrier{peer=\"10.0.0.2:7\",carrier=\"trunk\"}"), 1.0);
    assert_eq!((of("names_unresolved"), of("hosts_file_mistaken")), (1.0, 0.0));
    // What is not taken takes nothing away; what is begins anew.
    client.control.tell(listed(true, 3, 1), &[]);
    let seen = client.control.status()["engine"].clone();
    assert_eq!((&seen["hosts"]["mistake"], seen["peers"].as_array().map(Vec::len)), (&3.into(), Some(1)));
    client.control.tell(listed(false, 0, 0), &[]);
    let seen = client.control.status()["engine"].clone();
    assert_eq!((&seen["hosts"]["mistake"], seen["peers"].as_array().map(Vec::len)), (&().into(), Some(0)));
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn a_monitor_without_a_hosts_file_has_none() {
    let server = Server::start();
    let client = Client::register(&server);
    client.control.tell(peer(1, PeerState::Up), &[]);
    assert!(client.control.status()["engine"].is_null());
}

#[test]
fn a_prometheus_server_is_told() {
    let server = Server::start_with_engine();
    let engine = engine(&server);
    engine.control.tell(peer(7, PeerState::Up), &[]);
    engine.control.tell(peer(8, PeerState::NoRoute), &[]);
    engine.control.status();
    let all = parse(&page(&server.directory().join("metrics.sock")));
    let of = |name: &str, port: u16, more: &str| {
        all[&format!("socksdirect_engine_peer_{name}{{peer=\"10.0.0.2:{port}\"{more}}}")]
    };
    assert_eq!((of("up", 7, ""), of("up", 8, "")), (1.0, 0.0));
    assert_eq!((of("rtt_seconds", 7, ""), of("connections", 7, "")), (2.0, 3.0));
    assert_eq!(of("bytes_total", 7, ",direction=\"sent\""), 70.0);
    assert_eq!(of("packets_total", 7, ",direction=\"received\""), 8.0);
    assert_eq!(of("retransmissions_total", 7, ",by=\"kernel\""), 2.0);
}
