//! Finding 5, at the peers: a server is to wake its client by an eventfd that is blocking and full, between its look at
//! it and its write. The client asks as fast as it can, and says all the while that it sleeps.

use crate::client::Client;
use crate::eventfd;
use crate::syn::Way;
use sd_ring::doorbell::RX_EVENT;
use sd_ring::{Effort, Next, RxCursor, TxCursor};
use sd_shm::channel::{GEOMETRY, Side, SlotState};
use sd_shm::rings::Rings;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

const SLOT: usize = 0;

pub(crate) fn run(port: u16) -> io::Result<()> {
    let client = Client::register()?;
    client.public.sleepers.store(1, Ordering::Release);
    let Some(way) = Way::ask(&client, port, false)? else {
        return Err(io::Error::other("no way"));
    };
    way.syn(SLOT, 40_000, port, (way.listener, way.generation));
    way.wake();
    let (map, mut asked) = (&way.channel.map, 0u64);
    let [own, other] = &map.slot(SLOT).side;
    while other.state().1 != SlotState::Open {
        std::thread::yield_now();
    }
    eventfd::make_blocking(client.eventfd.as_raw_fd());
    println!("ready");
    let (mut tx, mut rx) = (TxCursor::new(&GEOMETRY), RxCursor::new());
    let (out, back) = (Rings::of(map, SLOT, Side::A), Rings::of(map, SLOT, Side::B));
    loop {
        own.wait.store(RX_EVENT, Ordering::SeqCst);
        let _ = tx.credit(other.consumed.load(Ordering::Acquire));
        if let Some(room) = tx.reserve(&GEOMETRY, &out, 2, Effort::Cached) {
            // SAFETY: the ring has given these two bytes to its sender.
            unsafe { out.at(room.region, room.off).cast::<[u8; 2]>().write(*b"x\n") };
            tx.commit(&out, 2, 0);
            map.events(Side::B).post(SLOT);
            way.wake();
            asked += 1;
        }
        let before = eventfd::ANSWERS.load(Ordering::Relaxed);
        let end = std::time::Instant::now() + std::time::Duration::from_secs(1);
        while eventfd::ANSWERS.load(Ordering::Relaxed) == before {
            match rx.next(&GEOMETRY, &back) {
                Ok(Next::Data { len, .. }) => {
                    rx.advance(len);
                    own.consumed.store(rx.position(), Ordering::Release);
                    eventfd::ANSWERS.fetch_add(1, Ordering::Release);
                }
                _ if std::time::Instant::now() > end => {
                    println!("after {asked} questions the server does not answer");
                    return crate::stand();
                }
                _ => std::hint::spin_loop(),
            }
        }
    }
}
