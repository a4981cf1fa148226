//! Which offers are the ends of one connection, and which are not.

use super::*;

const A: Name = (Ip([1; 16]), 1000);
const B: Name = (Ip([2; 16]), 80);
/// Sequence numbers of the SYNs of a connection: of who connected, and of who accepted.
const SYNS: (u32, u32) = (u32::MAX, 5_000);

fn offer(client: u64, connected: bool, (local, remote): (Name, Name)) -> Offer {
    let facts = Facts { netns: 7, cookie: client + 100, local, remote, numbers: Numbers::Untold };
    Offer { client: ClientId(client), serial: 1, uid: 0, connected, facts, restored: None, load: (0, 0) }
}

/// An end whose numbers are known, as the kernel has them at both ends.
fn told(offer: Offer, is_active: bool, (active, passive): (u32, u32)) -> Offer {
    let (sent, received) = match is_active {
        true => (active, passive.wrapping_add(1)),
        false => (passive.wrapping_add(1), active.wrapping_add(1)),
    };
    Offer { facts: Facts { numbers: Numbers::Known { sent, received }, ..offer.facts }, ..offer }
}

fn pair() -> (Offer, Offer) {
    (offer(1, true, (A, B)), offer(2, false, (B, A)))
}

fn add(all: &mut Offers, offer: Offer, now_ms: u64) -> Outcome {
    all.add(offer, (now_ms, false), |_| true)
}

fn is_empty(all: &Offers) -> bool {
    all.waiting.is_empty()
        && all.by_socket.is_empty()
        && all.by_name.is_empty()
        && all.by_mark.is_empty()
        && all.of_user.is_empty()
}

#[test]
fn mirrored_names_in_one_namespace_are_a_pair() {
    for connected_first in [true, false] {
        let mut all = Offers::default();
        let (one, other) = pair();
        let (first, second) = if connected_first { (one, other) } else { (other, one) };
        assert!(matches!(add(&mut all, first, 0), Outcome::Waits));
        let Outcome::Pair(both, Evidence::Names) = add(&mut all, second, 1) else { panic!("a pair") };
        let [a, b] = *both;
        assert_eq!((a.client, b.client), (ClientId(1), ClientId(2)), "who connected comes first");
        assert!(is_empty(&all));
        assert!(matches!(add(&mut all, second, 2), Outcome::Waits), "each offer is used once");
    }
}

#[test]
fn nothing_less_is() {
    let (one, other) = pair();
    let wrong = [
        Offer { connected: true, ..other },
        Offer { facts: Facts { netns: 8, ..other.facts }, ..other },
        Offer { facts: Facts { remote: (A.0, 1001), ..other.facts }, ..other },
        Offer { facts: Facts { local: (A.0, 80), ..other.facts }, ..other },
        Offer { facts: Facts { cookie: one.facts.cookie, ..other.facts }, ..other },
    ];
    for wrong in wrong {
        assert_eq!(evidence(&one, &wrong), Evidence::No, "{wrong:?}");
        assert_eq!(evidence(&wrong, &one), Evidence::No, "{wrong:?}");
    }
    let nowhere = |offer: Offer| Offer { facts: Facts { netns: 0, ..offer.facts }, ..offer };
    assert_eq!(evidence(&nowhere(one), &nowhere(other)), Evidence::No, "the kernel does not tell");
    assert_eq!((evidence(&one, &other), evidence(&other, &one)), (Evidence::Names, Evidence::Names));
}

/// As with translated addresses, and a network namespace for each end.
#[test]
fn numbers_hold_whatever_the_names_are() {
    let (one, other) = pair();
    let (one, other) = (told(one, true, SYNS), told(other, false, SYNS));
    let facts = Facts { netns: 8, local: (B.0, 8080), remote: (B.0, 40_000), ..other.facts };
    let far = Offer { facts, ..other };
    let mut all = Offers::default();
    assert!(matches!(add(&mut all, far, 0), Outcome::Waits));
    assert!(matches!(add(&mut all, one, 0), Outcome::Pair(_, Evidence::Numbers)));
    assert!(is_empty(&all));
}

/// A proxy, which has the names of both, makes two connections.
#[test]
fn where_numbers_are_known_names_are_nothing() {
    let (one, other) = pair();
    let (syn, syn_ack) = SYNS;
    for wrong in [(syn.wrapping_add(1), syn_ack), (syn, syn_ack + 1), (syn_ack, syn)] {
        let (one, other) = (told(one, true, SYNS), told(other, false, wrong));
        assert_eq!(evidence(&one, &other), Evidence::No, "{wrong:?}");
    }
    let half = Offer { facts: Facts { numbers: Numbers::Untold, ..other.facts }, ..other };
    assert_eq!(
        evidence(&told(one, true, SYNS), &half),
        Evidence::Names,
        "one that is not known says nothing"
    );
}

/// Who connected has the SYN among its bytes.
#[test]
fn a_wrong_role_has_other_numbers() {
    let (one, other) = pair();
    let (one, other) = (told(one, true, SYNS), told(other, false, SYNS));
    let turned = |offer: Offer| Offer { connected: !offer.connected, ..offer };
    assert_eq!(evidence(&one, &other), Evidence::Numbers);
    assert_eq!(evidence(&turned(one), &other), Evidence::No);
    assert_eq!(evidence(&one, &turned(other)), Evidence::No);
    assert_eq!(evidence(&turned(one), &turned(other)), Evidence::No);
}

/// Two pairs of namespaces with the same addresses.
#[test]
fn tenants_with_the_same_names_are_kept_apart() {
    let tenant = |at: u64, syns| {
        let (one, other) = pair();
        let place = |offer: Offer, netns| {
            let facts = Facts { netns, cookie: offer.facts.cookie + 10 * at, ..offer.facts };
            Offer { client: ClientId(offer.client.0 + 10 * at), facts, ..offer }
        };
        (told(place(one, 20 + at), true, syns), told(place(other, 30 + at), false, syns))
    };
    let ((a, b), (c, d)) = (tenant(1, SYNS), tenant(2, (77, 88)));
    let mut all = Offers::default();
    for first in [a, c] {
        assert!(matches!(add(&mut all, first, 0), Outcome::Waits));
    }
    let found = |outcome| match outcome {
        Outcome::Pair(both, Evidence::Numbers) => (both[0].client, both[1].client),
        other => panic!("{other:?}"),
    };
    assert_eq!(found(add(&mut all, d, 0)), (c.client, d.client));
    assert_eq!(found(add(&mut all, b, 0)), (a.client, b.client));
}

#[test]
fn an_offer_ends_with_its_client_and_with_time() {
    let mut all = Offers::default();
    let (one, other) = pair();
    assert!(matches!(add(&mut all, one, 0), Outcome::Waits));
    all.forget(ClientId(1));
    assert!(is_empty(&all));
    assert!(matches!(add(&mut all, other, 0), Outcome::Waits));
    assert!(matches!(add(&mut all, one, WAITS_MS), Outcome::Waits), "too late");
    assert_eq!(all.waiting.len(), 1);
}

#[test]
fn an_offer_ends_with_its_connection() {
    let (one, other) = pair();
    let mut all = Offers::default();
    assert!(matches!(add(&mut all, one, 0), Outcome::Waits));
    assert!(matches!(all.add(other, (0, false), |_| false), Outcome::Waits));
    let again = Offer { facts: Facts { cookie: 999, ..one.facts }, ..one };
    let Outcome::Pair(both, _) = add(&mut all, again, 0) else { panic!("a pair") };
    let [a, b] = *both;
    assert_eq!((a.facts.cookie, b.facts.cookie), (999, other.facts.cookie));
}

#[test]
fn a_socket_that_is_offered_again_has_its_last_offer() {
    let (one, other) = pair();
    let mut all = Offers::default();
    for serial in [1, 2, 3] {
        assert!(matches!(add(&mut all, Offer { serial, ..one }, 0), Outcome::Waits));
    }
    let Outcome::Pair(both, _) = add(&mut all, other, 0) else { panic!("a pair") };
    let a = both[0];
    assert_eq!(a.serial, 3);
    assert!(is_empty(&all));
}

/// Both ends count from elsewhere, and are one by what they were known by before.
#[test]
fn restored_ends_are_one_and_count_apart() {
    let (one, other) = pair();
    let (one, other) = (told(one, true, SYNS), told(other, false, SYNS));
    assert_eq!((one.behind(&other), other.behind(&one)), (0, 0));
    let (sent, received) = other.began().unwrap();
    let counts = Numbers::Known { sent: sent.wrapping_add(70), received: received.wrapping_add(50) };
    let anew = Offer { facts: Facts { numbers: counts, ..other.facts }, ..other };
    assert_eq!(evidence(&one, &anew), Evidence::No, "it does not say that it was restored");
    let restored = Offer { restored: Some((sent, received)), ..anew };
    assert_eq!(
        (evidence(&one, &restored), evidence(&restored, &one)),
        (Evidence::Numbers, Evidence::Numbers)
    );
    assert_eq!(restored.began(), other.began());
    // What it sends first from now on the other end has as the 71st; the 51st that comes it counts as its first.
    assert_eq!((one.behind(&restored), restored.behind(&one)), (70, 50u32.wrapping_neg()));
    // Between hosts the one's monitor is told so much only.
    let far = Offer { facts: Facts { numbers: one.far_numbers(70), ..other.facts }, ..other };
    assert_eq!(one.behind(&far), 70);
    let wrong = Offer { restored: Some((sent, received.wrapping_add(1))), ..anew };
    assert_eq!(evidence(&one, &wrong), Evidence::No);
}

#[test]
fn two_that_fit_are_none() {
    let mut all = Offers::default();
    for client in [2, 3] {
        assert!(matches!(add(&mut all, offer(client, false, (B, A)), 0), Outcome::Waits));
    }
    assert!(matches!(add(&mut all, offer(1, true, (A, B)), 0), Outcome::Refused));
}

#[test]
fn a_user_has_his_share_and_no_more() {
    let mut all = Offers::default();
    let of = |uid, port| Offer { uid, ..offer(1000 + u64::from(port), true, ((A.0, port), B)) };
    for port in 0..OF_USER_MAX as u16 {
        assert!(matches!(add(&mut all, of(7, port), 0), Outcome::Waits));
    }
    assert!(matches!(add(&mut all, of(7, 60_000), 0), Outcome::Refused));
    assert!(matches!(add(&mut all, of(7, 5), 0), Outcome::Waits), "offered again");
    assert!(matches!(add(&mut all, of(8, 60_001), 0), Outcome::Waits));
    assert!(matches!(all.add(of(7, 60_002), (0, true), |_| true), Outcome::Waits), "served without bounds");
    let other = Offer { uid: 7, ..offer(5, false, (B, (A.0, 9))) };
    assert!(matches!(add(&mut all, other, 0), Outcome::Pair(..)), "the other end takes no place");
    assert!(matches!(add(&mut all, of(7, 60_000), WAITS_MS), Outcome::Waits));
}

/// Bytes wait to be sent at the one end, so its numbers are not asked for.
#[test]
fn a_full_end_is_known_by_its_names_alone() {
    let here = Ip::v4([127, 0, 0, 1]);
    let between = |(a, b): (Name, Name)| (offer(1, true, (a, b)), offer(2, false, (b, a)));
    let (full, other) = between(((here, 1000), (here, 80)));
    let known = told(other, false, SYNS);
    // Two sockets of a transparent proxy look like that.
    let (near, far) = between((A, B));
    let mut proxied = Offers::default();
    add(&mut proxied, told(far, false, SYNS), 0);
    assert!(!proxied.is_awaited_by_name(&near));
    let mut all = Offers::default();
    assert!(!all.is_awaited_by_name(&full), "nobody waits");
    assert!(matches!(add(&mut all, known, 0), Outcome::Waits));
    assert!(all.is_awaited_by_name(&full));
    let elsewhere = Offer { facts: Facts { netns: 8, ..full.facts }, ..full };
    let translated = Offer { facts: Facts { remote: (here, 8080), ..full.facts }, ..full };
    for one in [elsewhere, translated, Offer { connected: false, ..full }] {
        assert!(!all.is_awaited_by_name(&one), "{one:?}");
    }
    assert!(!all.is_awaited_by_name(&Offer { restored: Some((1, 2)), ..full }));
    assert!(matches!(add(&mut all, full, 1), Outcome::Pair(_, Evidence::Names)));
    assert!(is_empty(&all));
    add(&mut all, Offer { restored: Some((1, 2)), ..known }, 2);
    assert!(!all.is_awaited_by_name(&full), "its kernel counts anew, from where only numbers tell");
}
