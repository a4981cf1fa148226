//! Attacks on what a server has: its descriptors, by channels; its backlog, by requests.

use crate::client::{Channel, Client};
use sd_proto::Route;
use sd_shm::channel::{Side, SlotState};
use std::io;
use std::sync::atomic::Ordering;

/// Asks for another channel to the server, again and again, and keeps none of them. Says how many there were.
pub(crate) fn channels(port: u16, count: u64) -> io::Result<()> {
    let client = Client::register()?;
    let mut made = 0;
    for _ in 0..count {
        made += u64::from(client.connect(port, true)?.1.is_some());
    }
    println!("made {made}");
    crate::stand()
}

/// Fills all slots of as many channels as it gets with requests, again and again for so long, whatever the server's backlog.
pub(crate) fn requests(port: u16, channels: u64, ms: u64) -> io::Result<()> {
    let client = Client::register()?;
    let mut all = Vec::new();
    let mut listener = (0, 0);
    for _ in 0..channels {
        if let (Route::Shm { listener: index, generation, .. }, Some(channel)) = client.connect(port, true)? {
            listener = (index, generation);
            all.push(channel);
        }
    }
    println!("made {}", all.len());
    println!("ready");
    let end = std::time::Instant::now() + std::time::Duration::from_millis(ms);
    while std::time::Instant::now() < end {
        for channel in &all {
            fill(channel, port, listener);
        }
    }
    crate::stand()
}

fn fill(channel: &Channel, port: u16, listener: (u32, u32)) {
    let map = &channel.map;
    map.header().used.store(sd_shm::channel::SLOTS as u32, Ordering::Release);
    for slot in 0..sd_shm::channel::SLOTS {
        let [a, b] = &map.slot(slot).side;
        let generation = a.state().0;
        // What the server has refused is asked for again.
        if generation != 0 && b.state().0 != generation {
            map.events(Side::B).post(slot);
            continue;
        }
        let names = map.names(slot);
        a.listener.store(listener.0, Ordering::Relaxed);
        names.listener_gen.store(listener.1, Ordering::Relaxed);
        names.ports.store(40_000 << 16 | u32::from(port), Ordering::Relaxed);
        for words in [&names.local, &names.remote] {
            words[0].store(0, Ordering::Relaxed);
            words[1].store(u64::from_ne_bytes([0, 0, 255, 255, 127, 0, 0, 1]), Ordering::Relaxed);
        }
        a.set_state((generation + 1) & 0xff_ffff, SlotState::Syn);
        map.events(Side::B).post(slot);
    }
}
