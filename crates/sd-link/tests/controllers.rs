//! What each congestion controller must do.

use sd_link::congestion::{Acknowledged, Congestion, Controller};

const PACKET: u64 = 1400;
const MILLI: u64 = 1_000_000;
const ALL: [Congestion; 3] = [Congestion::NewReno, Congestion::Dctcp, Congestion::Swift(2 * MILLI)];

/// A round trip of `rtt` in which the whole window was acknowledged, `marked` of a hundred packets with a mark.
fn round(controller: &mut dyn Controller, now: &mut u64, rtt: u64, marked: u64) {
    let (bytes, sent_at) = (controller.window(), *now);
    *now += rtt;
    let what = Acknowledged {
        now: *now,
        bytes,
        packets: 100,
        marked,
        sent_at: sent_at + 1,
        rtt: Some(rtt),
        smoothed_rtt: rtt,
        is_idle: false,
    };
    controller.acknowledged(&what);
}

#[test]
fn grows_while_all_is_well() {
    for congestion in ALL {
        let (mut controller, mut now) = (congestion.controller(PACKET), 0);
        let first = controller.window();
        for _ in 0..4 {
            round(&mut *controller, &mut now, MILLI, 0);
        }
        assert!(controller.window() >= 8 * first, "{controller:?} doubles");
        controller.lost(now, now);
        let before = controller.window();
        round(&mut *controller, &mut now, MILLI, 0);
        let grown = controller.window() - before;
        assert!(grown <= PACKET, "{controller:?} grows by a packet after a loss, not by {grown}");
    }
}

#[test]
fn a_round_trip_of_losses_counts_once() {
    for congestion in ALL {
        let mut controller = congestion.controller(PACKET);
        let before = controller.window();
        for lost in 1..20 {
            controller.lost(lost, 100 + lost);
        }
        assert_eq!(controller.window(), before / 2, "{controller:?}");
    }
}

#[test]
fn never_below_two_packets_nor_beyond_a_bound() {
    for congestion in ALL {
        let (mut controller, mut now) = (congestion.controller(PACKET), 0);
        for at in 1..50 {
            controller.lost(at * MILLI, at * MILLI);
            controller.silent();
        }
        assert_eq!(controller.window(), 2 * PACKET, "{controller:?}");
        now += 100 * MILLI;
        for _ in 0..60 {
            round(&mut *controller, &mut now, MILLI, 0);
        }
        assert!(controller.window() > 2 * PACKET && controller.window() <= 64 << 20, "{controller:?}");
    }
}

#[test]
fn an_idle_sender_earns_nothing() {
    for congestion in ALL {
        let mut controller = congestion.controller(PACKET);
        let before = controller.window();
        let what = Acknowledged {
            now: MILLI,
            bytes: before,
            packets: 10,
            marked: 0,
            sent_at: 1,
            rtt: Some(MILLI),
            smoothed_rtt: MILLI,
            is_idle: true,
        };
        controller.acknowledged(&what);
        assert_eq!(controller.window(), before, "{controller:?}");
    }
}

#[test]
fn few_marks_shrink_dctcp_little() {
    let (mut controller, mut now) = (Congestion::Dctcp.controller(PACKET), 0);
    for _ in 0..100 {
        round(&mut *controller, &mut now, MILLI, 0);
    }
    let before = controller.window();
    round(&mut *controller, &mut now, MILLI, 5);
    let after = controller.window();
    assert!(after < before && after > before * 9 / 10, "{before} {after}");
    let mut reno = Congestion::NewReno.controller(PACKET);
    let before = reno.window();
    round(&mut *reno, &mut now, MILLI, 5);
    assert_eq!(reno.window(), before / 2, "a mark is a loss to it");
}

#[test]
fn swift_holds_its_target() {
    let (mut controller, mut now) = (Congestion::Swift(2 * MILLI).controller(PACKET), 0);
    // A queue: the delay follows the window, a millisecond for each hundred packets.
    for _ in 0..400 {
        let rtt = MILLI / 2 + controller.window() * MILLI / (100 * PACKET);
        round(&mut *controller, &mut now, rtt, 0);
    }
    let delay = MILLI / 2 + controller.window() * MILLI / (100 * PACKET);
    assert!((MILLI..3 * MILLI).contains(&delay), "{delay}");
}
