//! Another hosts file, or other addresses of its names, while all goes on (ADR 104).
//!
//! ```text
//!  monitor --Hosts, the open file--> engine --Listed, Network, ..--> monitor
//!  names --addresses-->                │
//!                   kept: as they were │ new: are called │ gone, or other keys: left, then closed, and begun anew if they are listed
//! ```
//! # Guarantees
//! * A file with a mistake changes nothing.
//! * What has not changed is not touched: links go on, and so do connections.
//! * Who is left has no new connections from that moment on.

use super::{Engine, NAMES};
use crate::hosts::Hosts;
use crate::leave::{Due, Leaving};
use crate::names::Names;
use crate::peer::{Peer, Tenure};
use crate::policy::Load;
use crate::socket::{Listener, std_fd};
use crate::words::Question;
use sd_proto::{Name, Request};
use sd_shm::promotion::Advice;
use sd_sys::fd::Owned;
use sd_sys::msg::Received;
use sd_sys::time::now_ns;
use std::collections::VecDeque;
use std::fs::File;

/// The monitor is told of so many networks.
const TOLD_MAX: usize = 1024;
/// So many offers for hosts that are not listed are kept.
const UNPLACED_MAX: usize = 1024;

/// See the module.
#[derive(Default)]
pub(super) struct Reload {
    came: Option<[File; 2]>,
    pub(super) leaving: Leaving,
    pub(super) names: Option<Names>,
    /// What of the names' addresses is not taken.
    refused: Vec<String>,
    /// Offers whose other end was no host's that is listed, and until when they wait: one may be listed meanwhile.
    unplaced: VecDeque<(u64, (u64, u64), Question, Load)>,
}

impl Reload {
    /// Nobody is asked about this offer for now.
    pub(super) fn keep(&mut self, until_ns: u64, offer: (u64, u64), question: Question, load: Load) {
        if self.unplaced.len() >= UNPLACED_MAX {
            self.unplaced.pop_front();
        }
        self.unplaced.push_back((until_ns, offer, question, load));
    }

    /// An offer is over; zero: all of that client's.
    pub(super) fn unsought(&mut self, (client, offer): (u64, u64)) {
        self.unplaced.retain(|(_, of, ..)| of.0 != client || offer != 0 && of.1 != offer);
    }

    /// The monitor hands the file over; the last one counts.
    pub(super) fn hear(&mut self, got: Received) {
        self.came = got.fds.take().map(|both: [Owned; 2]| both.map(|file| std_fd(file).into()));
    }
}

impl Engine {
    /// Does what is to be done about that: seldom anything.
    #[inline]
    pub(super) fn tend_hosts(&mut self) {
        if self.reload.came.is_some() || !self.reload.leaving.is_empty() {
            self.reload(now_ns());
        }
    }

    #[cold]
    fn reload(&mut self, now: u64) {
        if let Some([file, folder]) = self.reload.came.take() {
            let taken =
                Hosts::read_open(&file, &folder).map_err(|mistake| (mistake.line, mistake.to_string()));
            let taken = taken.and_then(|new| self.take_file(new, now).map_err(|error| (0, error)));
            match taken {
                Ok(()) => self.tell_of_hosts(),
                Err((line, error)) => {
                    tracing::error!("the hosts file: {error}; the old one stays");
                    let names = self.unresolved();
                    self.control.tell(&Request::Listed { mistaken: true, line: line as u32, names });
                }
            }
        }
        while let Some(due) = self.next_due(now) {
            match due {
                Due::LetGo(at) => {
                    self.desk.let_go(|it, _| it.peer != at, &mut self.links, &mut self.control);
                }
                Due::Close(at) => self.close(at, now),
            }
            self.is_unsent = true;
        }
    }

    fn next_due(&mut self, now: u64) -> Option<Due> {
        let Engine { reload, links, .. } = self;
        reload.leaving.due(now, |at| links[at].connections() == 0)
    }

    /// Another file.
    fn take_file(&mut self, new: Hosts, now: u64) -> Result<(), String> {
        if new.listen != self.hosts.listen {
            let listener = Listener::new(new.listen);
            let listener = listener.map_err(|error| format!("cannot listen at {}: {error}", new.listen))?;
            self.watch_listener(&listener)
                .map_err(|errno| format!("cannot wait at {}: {errno:?}", new.listen))?;
            self.listener = listener;
        }
        self.look_up(&new);
        let answers = self.reload.names.as_ref().map(|names| names.answers().clone()).unwrap_or_default();
        let (with_names, refused) = new.with(&answers);
        self.refuse(refused);
        self.take_hosts(with_names, now);
        tracing::info!("engine: the hosts file is read again: {} others", self.listed());
        Ok(())
    }

    fn listed(&self) -> usize {
        self.hosts.engines.iter().filter(|engine| !engine.is_gone).count()
    }

    /// Names are looked up from now on, if there are any.
    pub(super) fn look_up(&mut self, hosts: &Hosts) {
        let wanted = hosts.names();
        if self.reload.names.is_none() && !wanted.0.is_empty() {
            self.reload.names = Names::start();
            if let Some(names) = &self.reload.names {
                let readable = libc::EPOLLIN as u32;
                let _ = sd_sys::fd::epoll_ctl(
                    self.sleeper.raw(),
                    libc::EPOLL_CTL_ADD,
                    names.bell(),
                    readable,
                    NAMES,
                );
            }
        }
        self.reload.names.iter_mut().for_each(|names| names.want(wanted.clone()));
    }

    /// Names have other addresses, perhaps.
    pub(super) fn hear_names(&mut self, now: u64) {
        let Some(names) = self.reload.names.as_mut().filter(|names| names.has_rung()) else { return };
        if names.take() {
            let (hosts, refused) = self.hosts.with(names.answers());
            self.refuse(refused);
            self.take_hosts(hosts, now);
        }
        self.tell_of_hosts();
    }

    fn refuse(&mut self, refused: Vec<String>) {
        let is_new = |what: &&String| !self.reload.refused.contains(what);
        refused.iter().filter(is_new).for_each(|what| tracing::warn!("engine: {what}: not taken"));
        self.reload.refused = refused;
    }

    /// From now on this counts.
    fn take_hosts(&mut self, mut new: Hosts, now: u64) {
        let is_free = |at: usize| self.peers.get(at).is_none_or(|peer| peer.tenure == Tenure::Gone);
        new.arrange(&self.hosts.engines, is_free);
        new.keep_credentials(&self.hosts);
        let before = std::mem::replace(&mut self.hosts, new);
        self.desk.lender.most = self.hosts.rings();
        self.namespaces.forget();
        let is_other_way = self.hosts.is_other_way(&before);
        for (at, engine) in self.hosts.engines.iter().enumerate() {
            let Some(peer) = self.peers.get_mut(at) else {
                self.peers.push(Peer::new(&self.hosts, engine));
                self.links.push(self.peers[at].first_link(now));
                continue;
            };
            let stays = before.engines.get(at) == Some(engine)
                && !is_other_way
                && self.hosts.shows_the_same(&before, engine);
            match peer.tenure {
                Tenure::Gone if !engine.is_gone => {
                    *peer = Peer::new(&self.hosts, engine);
                    self.links[at] = peer.first_link(now);
                }
                Tenure::Stays if stays => peer.adopt(&self.hosts, now, &mut self.links[at]),
                Tenure::Stays => {
                    peer.tenure = Tenure::Leaves;
                    self.reload.leaving.begin(at, now);
                }
                Tenure::Leaves | Tenure::Gone => {}
            }
        }
        let Engine { peers, hosts, desk, links, control, .. } = self;
        let stays = |it: &crate::connection::Connection| {
            peers[it.peer].tenure == Tenure::Stays
                && hosts.engine_of(hosts.owner(it.tenant), it.far.0) == Some((it.peer, it.tenant))
        };
        desk.send_back(stays, Advice::Unlisted, links, control);
        self.is_unsent = true;
        for (until_ns, offer, question, load) in std::mem::take(&mut self.reload.unplaced) {
            if until_ns > now {
                self.seek(offer, question, load);
            }
        }
    }

    /// Nothing is left that goes to this one.
    fn close(&mut self, at: usize, now: u64) {
        self.peers[at].close(at, now, &mut self.links[at], &mut self.desk);
        tracing::info!("engine: {} is left", self.hosts.engines[at].address);
        if !self.hosts.engines[at].is_gone {
            self.peers[at] = Peer::new(&self.hosts, &self.hosts.engines[at]);
            self.links[at] = self.peers[at].first_link(now);
        }
        self.tell_of_hosts();
    }

    fn unresolved(&self) -> u32 {
        let answers = self.reload.names.as_ref().map(Names::answers);
        let is_known =
            |name: &String| answers.is_some_and(|all| all.get(name).is_some_and(|has| !has.is_empty()));
        self.hosts.names().0.iter().filter(|name| !is_known(name)).count() as u32
    }

    /// The monitor is told of all, for people.
    fn tell_of_hosts(&mut self) {
        let names = self.unresolved();
        self.control.tell(&Request::Listed { mistaken: false, line: 0, names });
        for host in self.hosts.networks().take(TOLD_MAX) {
            self.control.tell(&Request::Network {
                ip: host.network.first().into(),
                prefix: host.network.prefix().into(),
                engine: host.engine.ip().into(),
                port: host.engine.port(),
                tenant: Name::of(host.tenant.as_deref().unwrap_or_default()),
                apart: host.owner != 0,
            });
        }
        self.reports.begin_anew(&mut self.peers);
    }
}
