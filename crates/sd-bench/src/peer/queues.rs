//! A ring for each connection, or one ring for all: what a round trip over very many connections costs without any calls
//! around it (ADR 38).
//!
//! Two threads, two processors. One sends some messages on connections in an order that no processor foresees, the other
//! answers them. Each connection has a line on each side that its messages touch, as an endpoint's half is. In the ring
//! that all share a message says whose it is.

use super::clock::{Clock, ticks};
use super::link::Link;
use super::pair::segment;
use super::ring::Ring;
use super::{Options, Report};
use sd_cli::failure::{Context, Failure, Result};
use sd_shm::channel::{Mapping, SLOTS, Side};
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

const COUNTS: [usize; 5] = [64, 1000, 10_000, 100_000, 1_000_000];
/// Messages under way at a time.
const BATCH: usize = 16;
/// On any connection: the other side ends.
const END: u64 = u64::MAX;

/// Nanoseconds a round trip, by the way and the number of connections.
pub(crate) fn run(options: &Options) -> Result<Report> {
    let counts = || COUNTS.into_iter().filter(|count| *count <= options.count);
    let most = counts().max().unwrap_or(0);
    let segments = (0..most.div_ceil(SLOTS)).map(|_| segment()).collect::<Result<Vec<_>>>()?;
    let mut items = BTreeMap::new();
    for count in counts() {
        let order = order(count);
        let own = [Side::A, Side::B].map(|side| Own::new(&segments, count, side));
        items.insert(format!("{count:07} connections, a ring each"), timed(options, &order, own)?);
        let one = [Side::A, Side::B].map(|side| One::new(&segments, count, side));
        items.insert(format!("{count:07} connections, one ring"), timed(options, &order, one)?);
    }
    Ok(Report { items, ..Report::default() })
}

/// All connections once, in no order.
fn order(count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    // xorshift64
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for at in (1..count).rev() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        order.swap(at, (random % (at as u64 + 1)) as usize);
    }
    order
}

/// One side of all connections.
trait Connections: Send {
    fn send(&mut self, connection: usize, value: u64) -> io::Result<()>;
    fn recv(&mut self, connection: usize) -> io::Result<u64>;
}

/// A ring for each.
struct Own(Vec<Ring<false>>);

impl Own {
    /// Every slot of the segments is used again by each count: all rings are empty before, and begin anew.
    fn new(segments: &[Mapping], count: usize, side: Side) -> Own {
        let ring = |number: usize| {
            let slot = number % SLOTS;
            let segment = segments[number / SLOTS];
            segment.slot(slot).side[side as usize].consumed.store(0, std::sync::atomic::Ordering::Relaxed);
            // SAFETY: the first word of a ring that nobody uses now.
            unsafe { segment.small_ring(slot, side).cast::<u64>().write_volatile(0) };
            Ring::at(segment, slot, side)
        };
        Own((0..count).map(ring).collect())
    }
}

impl Connections for Own {
    fn send(&mut self, connection: usize, value: u64) -> io::Result<()> {
        self.0[connection].send(&value.to_ne_bytes()).map(drop)
    }

    fn recv(&mut self, connection: usize) -> io::Result<u64> {
        let mut value = [0; 8];
        self.0[connection].recv(&mut value)?;
        Ok(u64::from_ne_bytes(value))
    }
}

/// What a connection still has of its own: a line of the senders' half, and one of the receivers'.
#[derive(Clone, Default)]
#[repr(C, align(64))]
struct Half([u64; 8]);

/// One ring for all.
struct One {
    ring: Ring<false>,
    halves: Vec<[Half; 2]>,
}

impl One {
    fn new(segments: &[Mapping], count: usize, side: Side) -> One {
        let Own(mut first) = Own::new(segments, 1, side);
        One { ring: first.remove(0), halves: vec![Default::default(); count] }
    }
}

impl Connections for One {
    fn send(&mut self, connection: usize, value: u64) -> io::Result<()> {
        self.halves[connection][0].0[0] += 1;
        let mut message = [0; 16];
        message[..8].copy_from_slice(&connection.to_ne_bytes());
        message[8..].copy_from_slice(&value.to_ne_bytes());
        self.ring.send(&message).map(drop)
    }

    fn recv(&mut self, _: usize) -> io::Result<u64> {
        let mut message = [0; 16];
        self.ring.recv(&mut message)?;
        let (number, value) = message.split_at(8);
        let number = usize::from_ne_bytes(number.try_into().unwrap_or_default());
        let half = self.halves.get_mut(number).ok_or_else(|| io::Error::other("no such connection"))?;
        half[1].0[0] += 1;
        Ok(u64::from_ne_bytes(value.try_into().unwrap_or_default()))
    }
}

/// Sends and takes answers for a while, all connections in turn; nanoseconds a round trip.
fn timed<C: Connections>(options: &Options, order: &[usize], [mut here, mut there]: [C; 2]) -> Result<f64> {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| super::pin(options.cpu_other).and_then(|()| answer(order, &mut there)));
        let mut to_send = in_turn(order);
        let time = options.duration() / 8;
        let asked = super::pin(options.cpu).and_then(|()| ask(order, &mut to_send, &mut here, time));
        let next = to_send.next().unwrap_or_default();
        let ended = here.send(next, END).context("end");
        let answered = other.join().unwrap_or_else(|_| Err(Failure::new("a thread panicked")));
        answered.and(ended).and(asked)
    })
}

/// The connections in turn, from the first.
fn in_turn(order: &[usize]) -> impl Iterator<Item = usize> {
    order.iter().copied().cycle()
}

fn ask(
    order: &[usize],
    to_send: &mut impl Iterator<Item = usize>,
    all: &mut impl Connections,
    time: Duration,
) -> Result<f64> {
    let mut to_take = in_turn(order);
    let mut batch = || -> Result<()> {
        for connection in to_send.by_ref().take(BATCH) {
            all.send(connection, 1).context("send")?;
        }
        for connection in to_take.by_ref().take(BATCH) {
            all.recv(connection).context("recv")?;
        }
        Ok(())
    };
    // Everything is touched before the clock starts.
    (0..order.len().div_ceil(BATCH)).try_for_each(|_| batch())?;
    let (clock, mut done) = (Clock::start(time), 0);
    while !clock.is_over(ticks()) {
        batch()?;
        done += BATCH;
    }
    Ok(clock.elapsed_ns() / done as f64)
}

fn answer(order: &[usize], all: &mut impl Connections) -> Result<()> {
    let (mut to_take, mut to_send) = (in_turn(order), in_turn(order));
    loop {
        for connection in to_take.by_ref().take(BATCH) {
            if all.recv(connection).context("recv")? == END {
                return Ok(());
            }
        }
        for connection in to_send.by_ref().take(BATCH) {
            all.send(connection, 1).context("send")?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_has_each_connection_once() {
        let mut all = order(1000);
        assert_ne!(all[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        all.sort_unstable();
        assert!(all.iter().enumerate().all(|(at, number)| at == *number));
    }
}
