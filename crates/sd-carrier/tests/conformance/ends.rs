//! The other end goes, or does what no honest engine does.

use crate::common::{Make, Random, Raw, drain, packet, put, take, wait};
use sd_carrier::{Carrier, End, Flushed, Kind, Received, State};
use std::io::Write;
use std::net::UdpSocket;

/// Reads until the end, and returns what came before it.
fn until_end(carrier: &mut dyn Carrier) -> Vec<Vec<u8>> {
    let mut came = Vec::new();
    while drain(carrier, &mut came) != Received::Ended {
        wait(&[carrier], -1);
    }
    let wants = carrier.wants();
    assert!(!wants.read && !wants.write && carrier.room().is_none());
    assert_eq!(carrier.flush(), Flushed::Ended);
    assert_eq!(carrier.receive(&mut |_, _| panic!("after the end")), Received::Ended);
    came
}

fn send_three(carrier: &mut dyn Carrier) -> [Vec<u8>; 3] {
    let packets = [100, 1, 500].map(|len| packet(len as u64, len));
    assert!(packets.iter().all(|packet| put(carrier, packet)));
    assert_eq!(carrier.flush(), Flushed::All);
    packets
}

/// All that it had sent comes, and then its end is told; of datagrams nobody tells that.
pub(crate) fn the_other_ends(make: Make) {
    let [mut here, mut there] = make.pair();
    let sent = send_three(&mut *there);
    drop(there);
    if here.kind() == Kind::Stream {
        assert_eq!(until_end(&mut *here), sent);
        assert_eq!(here.state(), State::Ended(End::Closed));
        return;
    }
    assert_eq!(take(&mut *here, 3), sent);
    for _ in 0..20 {
        // Each is answered by an ICMP error, which one of the next calls is told.
        send_three(&mut *here);
        drain(&mut *here, &mut Vec::new());
    }
    assert_eq!(here.state(), State::Open);
    assert!(!here.wants().write);
    assert_eq!(wait(&[&*here], 0), 0, "an error that was told wakes the loop again");
}

/// It goes while something is on its way to it. What it had sent comes nevertheless.
pub(crate) fn the_other_dies(make: Make) {
    let (mut here, raw) = make.with_raw();
    if here.kind() == Kind::Datagrams {
        return started_anew(here, raw);
    }
    let Raw::Tcp(mut raw) = raw else { unreachable!() };
    let words = b"\x03\x00one\x03\x00two";
    raw.write_all(words).unwrap();
    // It has not read this, so the kernel resets the connection.
    assert!(put(&mut *here, b"unread") && here.flush() == Flushed::All);
    wait_until_come(&mut *here);
    drop(raw);
    // Nothing is said of it, until it is tried to send.
    while put(&mut *here, b"more") && here.flush() != Flushed::Ended {
        std::thread::yield_now();
    }
    assert_eq!(until_end(&mut *here), [b"one", b"two"]);
    assert!(
        matches!(here.state(), State::Ended(End::Broken(libc::ECONNRESET | libc::EPIPE))),
        "{:?}",
        here.state()
    );
}

fn wait_until_come(carrier: &mut dyn Carrier) {
    assert_eq!(wait(&[carrier], -1), 1);
}

/// Another engine at the same address, after one that is gone.
fn started_anew(mut here: Box<dyn Carrier>, raw: Raw) {
    let Raw::Udp(raw) = raw else { unreachable!() };
    let (address, peer) = (raw.local_addr().unwrap(), raw.peer_addr().unwrap());
    drop(raw);
    for _ in 0..5 {
        send_three(&mut *here);
    }
    let anew = UdpSocket::bind(address).unwrap();
    anew.connect(peer).unwrap();
    anew.send(b"\x05\x00again").unwrap();
    assert_eq!(take(&mut *here, 1), [b"again"]);
    let sent = send_three(&mut *here);
    let mut place = [0; 2000];
    for packet in sent {
        // What was sent is filled up here at most.
        let len = anew.recv(&mut place).unwrap();
        assert!(place[2..len].starts_with(&packet));
    }
}

/// No length that the other engine writes leads outside of what came.
pub(crate) fn lengths_that_lie(make: Make) {
    let (here, _) = make.with_raw();
    let most = here.packet_max() as u16;
    let (is_stream, longest) = (here.kind() == Kind::Stream, most.checked_add(1));
    for len in [Some(0), longest, Some(u16::MAX)].into_iter().flatten() {
        let (mut here, mut raw) = make.with_raw();
        let mut words = b"\x04\x00good".to_vec();
        write(&mut raw, &words);
        words.clear();
        words.extend(len.to_le_bytes());
        words.extend([9; 100]);
        write(&mut raw, &words);
        if is_stream {
            assert_eq!(until_end(&mut *here), [b"good"]);
            assert_eq!(here.state(), State::Ended(End::Length(usize::from(len))));
        } else {
            write(&mut raw, b"\x04\x00next");
            assert_eq!(take(&mut *here, 2), [b"good", b"next"]);
        }
    }
    let (mut here, mut raw) = make.with_raw();
    write(&mut raw, b"\x09\x00part");
    if is_stream {
        drop(raw);
        assert_eq!(until_end(&mut *here), [b""; 0]);
        assert_eq!(here.state(), State::Ended(End::Truncated));
    } else {
        // Nor is anything of the datagram before it seen.
        for words in [&b""[..], b"\x01", b"\x01\x00", b"\x04\x00next"] {
            write(&mut raw, words);
        }
        assert_eq!(take(&mut *here, 1), [b"next"]);
    }
}

fn write(raw: &mut Raw, bytes: &[u8]) {
    match raw {
        Raw::Tcp(stream) => stream.write_all(bytes).unwrap(),
        Raw::Udp(socket) => assert_eq!(socket.send(bytes).unwrap(), bytes.len()),
    }
}

/// Whatever comes, what is handed over is a packet by its length.
pub(crate) fn any_bytes(make: Make) {
    for seed in 0..100 {
        let (mut here, mut raw) = make.with_raw();
        let (mut random, most) = (Random(seed), here.packet_max());
        let mut count = 0;
        for _ in 0..20 {
            let len = 1 + random.below(1400) as usize;
            let mut bytes = packet(random.next(), len);
            if let [_, high, ..] = &mut bytes[..] {
                // Some of them are possible lengths.
                *high &= random.next() as u8 & 3;
            }
            // A stream that has ended may be closed already.
            match &mut raw {
                Raw::Tcp(stream) => _ = stream.write(&bytes),
                Raw::Udp(socket) => _ = socket.send(&bytes),
            }
            here.receive(&mut |packet, _| {
                assert!(!packet.is_empty() && packet.len() <= most);
                count += 1;
            });
        }
        drop(raw);
        if here.kind() == Kind::Stream {
            until_end(&mut *here);
        } else {
            assert!(here.state() == State::Open && count > 0);
        }
    }
}

/// A packet of a stream may come in any pieces.
pub(crate) fn byte_by_byte(make: Make) {
    let (mut here, raw) = make.with_raw();
    let Raw::Tcp(mut raw) = raw else { return };
    raw.set_nodelay(true).unwrap();
    let mut random = Random(3);
    let (mut sent, mut came) = (Vec::new(), Vec::new());
    for number in 0..60 {
        let packet = packet(number, 1 + random.below(700) as usize);
        let mut bytes = (packet.len() as u16).to_le_bytes().to_vec();
        bytes.extend(&packet);
        sent.push(packet);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (piece, next) = rest.split_at(rest.len().min(1 + random.below(9) as usize));
            raw.write_all(piece).unwrap();
            rest = next;
            wait(&[&*here], -1);
            drain(&mut *here, &mut came);
        }
        assert!(came.len() as u64 == number + 1 && came.last() == sent.last());
    }
    assert!(came == sent);
}
