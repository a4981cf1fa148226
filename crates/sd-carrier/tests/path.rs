//! What networks do to datagrams, and say of them: marks, ICMP errors, a path that becomes narrower.

mod common;

use common::{Make, packet, put, set, take, udp, wait};
use sd_carrier::{Carrier, Datagram, DatagramConfig, End, Flushed, Mark, State};
use std::net::UdpSocket;
use std::process::Command;

fn marks(carrier: &mut dyn Carrier, count: usize) -> Vec<Mark> {
    let mut marks = Vec::new();
    while marks.len() < count {
        wait(&[carrier], -1);
        carrier.receive(&mut |_, mark| marks.push(mark));
    }
    marks
}

#[test]
fn each_mark_comes_with_its_packet() {
    for (address, level, name) in
        [("127.0.0.1:0", libc::IPPROTO_IP, libc::IP_TOS), ("[::1]:0", libc::IPPROTO_IPV6, libc::IPV6_TCLASS)]
    {
        let (here, raw) = udp(address);
        let mut here = Datagram::new(here, DatagramConfig::default()).unwrap();
        for class in [0, 1, 2, 3, 0xb8 | 3, 0xb8] {
            set(&raw, level, name, class);
            raw.send(b"\x01\x00.").unwrap();
        }
        let expected = [
            Mark::Incapable,
            Mark::Capable,
            Mark::Capable,
            Mark::Congested,
            Mark::Congested,
            Mark::Incapable,
        ];
        assert_eq!(marks(&mut here, 6), expected);
        assert_eq!(here.counters().congested, 2);
    }
}

#[test]
fn what_is_sent_may_be_marked() {
    for address in ["127.0.0.1:0", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
        for (is_marking, expected) in [(true, Mark::Capable), (false, Mark::Incapable)] {
            let config = DatagramConfig { is_marking, ..DatagramConfig::default() };
            let [mut here, mut there] = Make::Datagram(address, config).pair();
            // Those that travel as one message have the mark each.
            assert!((0..20).all(|number| put(&mut *here, &packet(number, 1000))));
            assert_eq!(here.flush(), Flushed::All);
            assert_eq!(marks(&mut *there, 20), [expected; 20]);
        }
    }
}

#[test]
fn many_packets_are_one_message() {
    let (here, there) = udp("127.0.0.1:0");
    let mut here = Datagram::new(here, DatagramConfig::default()).unwrap();
    let mut there = Datagram::new(there, DatagramConfig::default()).unwrap();
    if !here.is_cut() || !there.is_joined() {
        return eprintln!("this kernel has neither UDP_SEGMENT nor UDP_GRO");
    }
    assert!((0..40).all(|number| put(&mut here, &packet(number, 1400 + number as usize * 7 % 70))));
    assert_eq!(here.flush(), Flushed::All);
    assert_eq!(take(&mut there, 40).len(), 40);
    assert_eq!((here.counters().packets_sent, here.counters().sends), (40, 1));
    assert!(there.counters().reads < 4, "{:?}", there.counters());
}

#[test]
fn a_kernel_that_cannot_cut_is_asked_once() {
    let (here, there) = udp("127.0.0.1:0");
    common::forbid_cutting(&here);
    let mut here = Datagram::new(here, DatagramConfig::default()).unwrap();
    let mut there = Datagram::new(there, DatagramConfig::default()).unwrap();
    for _ in 0..2 {
        let sent: Vec<_> = (0..30).map(|number| packet(number, 1000)).collect();
        assert!(sent.iter().all(|packet| put(&mut here, packet)));
        assert_eq!(here.flush(), Flushed::All);
        assert!(take(&mut there, 30) == sent);
    }
    let counters = here.counters();
    assert!(!here.is_cut());
    assert_eq!((counters.faults, counters.dropped, counters.packets_sent), (1, 0, 60));
}

#[test]
fn nobody_there_is_no_end() {
    let (here, there) = udp("127.0.0.1:0");
    drop(there);
    let mut here = Datagram::new(here, DatagramConfig::default()).unwrap();
    for number in 0..10 {
        assert!(put(&mut here, &packet(number, 700)));
        assert_eq!(here.flush(), Flushed::All);
    }
    assert_eq!(here.state(), State::Open);
    assert!(here.counters().faults > 0);
}

#[test]
fn an_error_of_one_packet_costs_no_later_one() {
    let (here, raw) = udp("127.0.0.1:0");
    let (address, peer) = (raw.local_addr().unwrap(), raw.peer_addr().unwrap());
    drop(raw);
    let mut here = Datagram::new(here, DatagramConfig::default()).unwrap();
    assert!(put(&mut here, b"nobody is there") && here.flush() == Flushed::All);
    let anew = UdpSocket::bind(address).unwrap();
    anew.connect(peer).unwrap();
    let mut there = Datagram::new(anew, DatagramConfig::default()).unwrap();
    // The kernel tells the error of the packet before, instead of sending this.
    assert!(put(&mut here, b"now it is") && here.flush() == Flushed::All);
    assert_eq!(take(&mut there, 1), [b"now it is"]);
    assert_eq!((here.counters().faults, here.counters().dropped), (1, 0));
}

#[test]
fn a_socket_without_a_peer_is_refused() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    assert!(Datagram::new(socket, DatagramConfig::default()).is_err());
}

/// In a network namespace of its own, where there may be one: the MTU of the loopback device changes under a carrier.
#[test]
fn a_path_becomes_narrower() {
    let myself = std::env::current_exe().unwrap();
    let script = "ip link set lo up mtu 1500 || exit 77; exec \"$0\" --exact inside --ignored";
    let unshare = ["--user", "--map-root-user", "--net", "sh", "-c", script];
    let Ok(output) = Command::new("unshare").args(unshare).arg(myself).output() else {
        return eprintln!("not tried: no unshare(1)");
    };
    let said = String::from_utf8_lossy(&output.stdout);
    if !said.contains("running 1 test") {
        return eprintln!("not tried: {}", String::from_utf8_lossy(&output.stderr));
    }
    assert!(output.status.success(), "{said}");
}

fn set_mtu(mtu: &str) {
    assert!(Command::new("ip").args(["link", "set", "lo", "mtu", mtu]).status().unwrap().success());
}

#[test]
#[ignore = "a_path_becomes_narrower runs it in a network namespace"]
fn inside() {
    let (here, there) = udp("127.0.0.1:0");
    let mut here =
        Datagram::new(here, DatagramConfig { packet_max: 4000, ..DatagramConfig::default() }).unwrap();
    let mut there = Datagram::new(there, DatagramConfig::default()).unwrap();
    let most = 1500 - 20 - 8 - 2;
    assert_eq!((here.packet_max(), there.packet_max()), (most, most));
    assert!((0..10).all(|number| put(&mut here, &packet(number, most))));
    assert_eq!(here.flush(), Flushed::All);
    assert_eq!(take(&mut there, 10).len(), 10);

    // What waits and is too long is lost; what follows is shorter.
    for count in [1, 10] {
        set_mtu("1500");
        assert_eq!(here.look_at_path(), most);
        let before = here.counters();
        assert!((0..count).all(|number| put(&mut here, &packet(number, most))));
        set_mtu("1000");
        assert_eq!(here.flush(), Flushed::All);
        assert_eq!(here.counters().dropped - before.dropped, count);
        assert_eq!((here.packet_max(), here.room().unwrap().len()), (most - 500, most - 500));
        assert!((0..count).all(|number| put(&mut here, &packet(number, most - 500))));
        assert_eq!(here.flush(), Flushed::All);
        assert_eq!(take(&mut there, count as usize).len(), count as usize);
        assert!(here.is_cut(), "a path that is narrow is no kernel that cannot cut");
    }
    set_mtu("300");
    assert!(put(&mut here, &packet(0, 900)));
    assert_eq!(here.flush(), Flushed::Ended);
    assert_eq!(here.state(), State::Ended(End::Narrow(300 - 30)));
}
