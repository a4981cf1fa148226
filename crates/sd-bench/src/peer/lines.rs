//! Which memory single operations write: run under valgrind's lackey, which prints every access.
//!
//! Two pairs of connections, each with a thread of its own; the threads take turns, so that the trace tells them apart. A
//! store to a mark begins and ends what counts:
//!
//! ```text
//! phase NUMBER OPERATION PAIR            a store to mark NUMBER begins it, one to the last mark ends it
//! marks ADDRESS
//! shared FROM-TO NAME                    a mapping that other processes may share
//! ```

use super::count::connected;
use super::link::{Link, Socket};
use super::socket::{Address, listen_on};
use sd_cli::failure::{Context, Failure, Result, print};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const MARKS: usize = 16;
const PAIRS: usize = 2;
/// Messages of 8 bytes, which fit into the smallest ring.
const TIMES: usize = 16;
/// Rounds before the one that counts, so that a thread is the holder of its tokens.
const WARM_UPS: usize = 8;
const OPERATIONS: [&str; 2] = ["send", "recv"];

static MARK: [AtomicU64; MARKS] = [const { AtomicU64::new(0) }; MARKS];

fn mark(number: usize) {
    MARK[number].store(1, Ordering::SeqCst);
}

/// Does everything once in each thread, while the others rest.
pub(crate) fn run() -> Result<()> {
    let (listener, address) = listen_on("127.0.0.1:0")?;
    let address = Address::parse(&address)?;
    let pairs = (0..PAIRS).map(|_| connected(&listener, &address)).collect::<Result<Vec<_>>>()?;
    let mut text = format!("marks {:#x}\ntimes {TIMES}\n", MARK.as_ptr() as usize);
    for number in 0..PAIRS * OPERATIONS.len() {
        let (pair, operation) = (number / OPERATIONS.len(), OPERATIONS[number % OPERATIONS.len()]);
        text.push_str(&format!("phase {number} {operation} {pair}\n"));
    }
    let maps = std::fs::read_to_string("/proc/self/maps").context("/proc/self/maps")?;
    for line in maps.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if let [range, access, _, _, _, name, ..] = fields[..]
            && access.ends_with('s')
        {
            text.push_str(&format!("shared {range} {name}\n"));
        }
    }
    print(&text)?;
    in_turn(pairs)
}

/// Threads that stay until all are done, so that none gets the stack of another.
fn in_turn(pairs: Vec<[Socket; 2]>) -> Result<()> {
    let turn = Mutex::new(());
    let everybody = std::sync::Barrier::new(PAIRS);
    std::thread::scope(|scope| {
        let (turn, everybody) = (&turn, &everybody);
        let threads: Vec<_> = pairs
            .into_iter()
            .enumerate()
            .map(|(number, pair)| {
                scope.spawn(move || {
                    everybody.wait();
                    let held = turn.lock();
                    let done = one(number, pair);
                    drop(held);
                    everybody.wait();
                    done
                })
            })
            .collect();
        let end = |thread: std::thread::ScopedJoinHandle<'_, Result<[Socket; 2]>>| {
            thread.join().unwrap_or_else(|_| Err(Failure::new("a thread panicked"))).map(drop)
        };
        threads.into_iter().try_for_each(end)
    })
}

fn one(pair: usize, [mut here, mut there]: [Socket; 2]) -> Result<[Socket; 2]> {
    for round in 0..=WARM_UPS {
        let number =
            |operation| if round == WARM_UPS { pair * OPERATIONS.len() + operation } else { MARKS - 1 };
        mark(number(0));
        for _ in 0..TIMES {
            here.send(&[7; 8]).context("send")?;
        }
        mark(MARKS - 1);
        mark(number(1));
        for _ in 0..TIMES {
            there.recv(&mut [0; 8]).context("recv")?;
        }
        mark(MARKS - 1);
    }
    Ok([here, there])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_phase_is_run_once() {
        run().unwrap();
        assert!((0..PAIRS * OPERATIONS.len()).all(|number| MARK[number].load(Ordering::Relaxed) == 1));
    }
}
