//! Another host's engine: by which trunk it is reached, and what is moved between that and the link.

use crate::carrier::Trunk;
use crate::desk::{Desk, View};
use crate::hosts::{self, Hosts};
use sd_link::seal::Checksum;
use sd_link::{Config, Limits, Link, PathConfig, Taken};
use std::net::IpAddr;

/// After an attempt to reach it, the next: at first, and at last.
const PAUSE_NS: [u64; 2] = [100_000_000, 5_000_000_000];
/// The way to another host may be cut for as long as the kernel's own connections would wait (tcp_retries2).
const SILENCE_NS: u64 = 900_000_000_000;
/// Looked at once in this time while nothing else happens.
pub(crate) const FOREVER_NS: u64 = u64::MAX;

/// See the module.
pub(crate) struct Peer {
    pub(crate) trunk: Option<Trunk>,
    engine: hosts::Engine,
    /// This engine connects; otherwise that one does.
    dials: bool,
    dial_at: u64,
    pause: u64,
}

impl Peer {
    pub(crate) fn new(hosts: &Hosts, engine: &hosts::Engine) -> Peer {
        let dials = hosts.listen < engine.address;
        Peer { trunk: None, engine: engine.clone(), dials, dial_at: 0, pause: PAUSE_NS[0] }
    }

    pub(crate) fn is_at(&self, ip: IpAddr) -> bool {
        !self.dials && self.engine.address.ip() == ip
    }

    /// When it has something to do by itself.
    pub(crate) fn next_time(&self, link: &Link) -> u64 {
        match &self.trunk {
            None if !link.is_up() => {
                if self.dials {
                    self.dial_at
                } else {
                    FOREVER_NS
                }
            }
            None if self.dials => self.dial_at.min(link.next_time().unwrap_or(FOREVER_NS)),
            _ => link.next_time().unwrap_or(FOREVER_NS),
        }
    }

    /// Has a trunk made anew, where that is due. The socket is to be watched then.
    pub(crate) fn dial(&mut self, now: u64, from: IpAddr) -> Option<i32> {
        if self.trunk.is_some() || !self.dials || now < self.dial_at {
            return None;
        }
        self.dial_at = now + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_NS[1]);
        self.trunk = Trunk::dial(self.engine.address, from).ok();
        self.trunk.as_ref().map(Trunk::raw)
    }

    /// Moves what there is, in both directions: whether something came.
    pub(crate) fn carry(&mut self, at: usize, now: u64, link: &mut Link, desk: &mut Desk) -> bool {
        let mut view = View { desk, peer: at };
        if link.next_time().is_some_and(|due| due <= now) {
            link.tick(now, &mut view);
        }
        let Some(trunk) = &mut self.trunk else { return false };
        let mut is_up = false;
        let news = trunk.read(|packet| {
            let taken = link.receive(now, 0, packet, false, &mut view);
            is_up |= taken == Taken::Up;
            if let Taken::Down(_) = taken {
                link.restart(now, &mut view);
            }
        });
        if is_up {
            self.pause = PAUSE_NS[0];
        }
        news
    }

    /// Sends what there is to send.
    pub(crate) fn send(&mut self, at: usize, now: u64, link: &mut Link, desk: &mut Desk) {
        let Some(trunk) = &mut self.trunk else { return };
        let mut view = View { desk, peer: at };
        let most = PathConfig::stream().packet_max;
        loop {
            trunk.flush();
            let mut made = 0;
            while let Some(room) = trunk.room(most) {
                let Some(len) = link.transmit(now, 0, room, &mut view) else { break };
                trunk.used(len);
                made += 1;
            }
            if made == 0 {
                break;
            }
        }
        if trunk.is_broken {
            self.trunk = None;
            link.path_broke(0);
        }
    }

    /// Another trunk takes the place of the one that there is.
    pub(crate) fn take(&mut self, trunk: Trunk, link: &mut Link) {
        if self.trunk.replace(trunk).is_some() {
            link.path_broke(0);
        }
    }
}

/// The link with one other engine.
pub(crate) fn link(now: u64) -> Link {
    let random = || sd_sys::mem::random().unwrap_or(now) | 1;
    let config = Config { silence: SILENCE_NS, ..Config::new(random(), random()) };
    let mut link = Link::new(config, &[PathConfig::stream()], Checksum::default());
    let _ = link.tenant(now, 0, Limits { weight: 1, rate: None });
    link
}
