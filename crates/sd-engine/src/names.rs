//! Addresses of names, by the resolver of the C library. It may block for half a minute, so it is asked by a thread of its own.
//!
//! ```text
//!  engine --names, how often--> thread --getaddrinfo(3)--> the host's resolver
//!         <--what has changed-- thread, which rings
//! ```
//! # Guarantees
//! * The engine waits for no answer, and is woken only when one has changed.
//! * A name that cannot be looked up now keeps what it had; the others go on.

use sd_keys::hosts::names::Answers;
use sd_sys::fd::{Owned, eventfd};
use std::collections::HashMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// What is to be looked up, and how often.
type Wanted = (Vec<String>, Duration);
/// What came of a name.
type Found = (String, Result<Vec<IpAddr>, String>);

/// See the module. The thread ends when nobody wants anything of it any more.
pub(crate) struct Names {
    wanted: Sender<Wanted>,
    found: Receiver<Found>,
    bell: Arc<Owned>,
    /// What each has had last.
    answers: Answers,
}

impl Names {
    pub(crate) fn start() -> Option<Names> {
        Names::with(|name| {
            let all = (name, 0).to_socket_addrs().map_err(|error| error.to_string())?;
            Ok(all.map(|address| address.ip()).collect())
        })
    }

    fn with(ask: impl Fn(&str) -> Result<Vec<IpAddr>, String> + Send + 'static) -> Option<Names> {
        let (wanted, wishes) = channel();
        let (finds, found) = channel();
        let bell = Arc::new(eventfd(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK).ok()?);
        let ring = Arc::clone(&bell);
        let look = move || look_up(&wishes, &finds, &ring, ask);
        std::thread::Builder::new().name("sd-names".into()).spawn(look).ok()?;
        Some(Names { wanted, found, bell, answers: Answers::new() })
    }

    /// Rings when there is news, until that was taken.
    pub(crate) fn bell(&self) -> i32 {
        self.bell.raw()
    }

    /// From now on these are looked up: now, and then so often.
    pub(crate) fn want(&mut self, (names, every): Wanted) {
        self.answers.retain(|name, _| names.contains(name));
        let _ = self.wanted.send((names, every));
    }

    /// Whether there is something to take.
    pub(crate) fn has_rung(&self) -> bool {
        sd_sys::fd::poll_one(self.bell(), libc::POLLIN, 0).is_ok_and(|events| events != 0)
    }

    /// Takes what has changed: whether something has.
    pub(crate) fn take(&mut self) -> bool {
        let _ = sd_sys::fd::read(self.bell.raw(), &mut [0; 8]);
        let mut is_new = false;
        while let Ok((name, found)) = self.found.try_recv() {
            match found {
                Ok(addresses) => {
                    tracing::info!("engine: {name} is at {addresses:?}");
                    self.answers.insert(name, addresses);
                    is_new = true;
                }
                Err(error) => tracing::warn!("engine: {name} is not found: {error}; what it had stays"),
            }
        }
        is_new
    }

    pub(crate) fn answers(&self) -> &Answers {
        &self.answers
    }
}

/// The thread.
fn look_up(
    wishes: &Receiver<Wanted>,
    finds: &Sender<Found>,
    bell: &Owned,
    ask: impl Fn(&str) -> Result<Vec<IpAddr>, String>,
) {
    let Ok(mut wanted) = wishes.recv() else { return };
    let mut said: HashMap<String, Result<Vec<IpAddr>, String>> = HashMap::new();
    loop {
        let (names, every) = &wanted;
        said.retain(|name, _| names.contains(name));
        for name in names {
            let mut found = ask(name);
            if let Ok(addresses) = &mut found {
                addresses.sort_unstable();
                addresses.dedup();
            }
            if said.get(name) == Some(&found) {
                continue;
            }
            said.insert(name.clone(), found.clone());
            if finds.send((name.clone(), found)).is_err() {
                return;
            }
            let _ = sd_sys::fd::write(bell.raw(), &1u64.to_ne_bytes());
        }
        match wishes.recv_timeout(*every) {
            Ok(next) => wanted = next,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        while let Ok(next) = wishes.try_recv() {
            wanted = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits for the bell.
    fn rung(names: &mut Names) -> bool {
        let mut poll = libc::pollfd { fd: names.bell(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor to look at.
        assert_eq!(unsafe { libc::poll(&raw mut poll, 1, 60_000) }, 1, "nothing was found");
        names.take()
    }

    #[test]
    fn a_name_that_is_not_found_keeps_what_it_had_and_what_is_the_same_wakes_nobody() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let (answer, answers) = channel();
        let mut names = Names::with(move |_| answers.recv().unwrap_or(Err("over".to_owned()))).unwrap();
        names.want((vec!["a".into()], Duration::from_millis(1)));
        answer.send(Ok(vec![ip("10.0.0.2"), ip("10.0.0.1"), ip("10.0.0.1")])).unwrap();
        assert!(rung(&mut names));
        let first = [ip("10.0.0.1"), ip("10.0.0.2")];
        assert_eq!(names.answers()["a"], first);
        // The same in another order rings for nobody: what rings is that it is not found.
        answer.send(Ok(vec![ip("10.0.0.1"), ip("10.0.0.2")])).unwrap();
        answer.send(Err("no".to_owned())).unwrap();
        assert!(!rung(&mut names));
        assert_eq!(names.answers()["a"], first);
        answer.send(Ok(vec![ip("10.0.0.3")])).unwrap();
        assert!(rung(&mut names));
        assert_eq!(names.answers()["a"], [ip("10.0.0.3")]);
        names.want((vec![], Duration::from_secs(1)));
        assert!(names.answers().is_empty());
    }
}
