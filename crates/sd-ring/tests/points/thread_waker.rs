//! SYNC POINT: thread waker. Fails without the fence of `named`, of `displace` (two threads), of `no_more`, or when
//! who takes a name back wakes nobody (found by this model).

use super::{EventFd, model};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::thread;
use sd_ring::doorbell::{self, RX_EVENT};
use sd_ring::sync::{sleepers, thread_waker};

/// In `target`: a thread sleeps on the only thread waker that there is.
const SLEEPS: u64 = 1;
/// In `rings`: the peer does not know it any more.
const RINGS_NOT: u64 = 2;

/// A connection, and the process that has it.
struct Connection {
    news: AtomicU64,
    wait: AtomicU32,
    target: AtomicU64,
    rings: AtomicU64,
    others_wait: AtomicU32,
    sleepers: AtomicU64,
    thread_waker: EventFd,
    /// Of the whole process.
    event_fd: EventFd,
}

impl Connection {
    fn new() -> Arc<Connection> {
        Arc::new(Connection {
            news: AtomicU64::new(0),
            wait: AtomicU32::new(0),
            target: AtomicU64::new(0),
            rings: AtomicU64::new(0),
            others_wait: AtomicU32::new(0),
            sleepers: AtomicU64::new(0),
            thread_waker: EventFd::new(),
            event_fd: EventFd::new(),
        })
    }

    fn has_news(&self) -> bool {
        self.news.load(Ordering::Acquire) != 0
    }

    /// The peer publishes, and wakes; it may know the thread waker.
    fn announce(&self, knows: bool) {
        self.news.store(1, Ordering::Release);
        if doorbell::ring(&self.wait, RX_EVENT) == 0 {
            return;
        }
        if knows && thread_waker::target(&self.target) == SLEEPS {
            self.thread_waker.signal();
        } else if sleepers::whom_to_wake(&self.sleepers, &AtomicU64::new(0)).is_some() {
            self.event_fd.signal();
        }
    }

    fn is_alone(&self) -> bool {
        self.others_wait.load(Ordering::SeqCst) == 0 && self.rings.load(Ordering::SeqCst) & RINGS_NOT == 0
    }

    /// A thread that waits for the connection, on its thread waker while it may.
    fn wait(&self) {
        while !self.has_news() {
            let watched = self.thread_waker.watch();
            if self.is_alone() && thread_waker::name(&self.target, 0, SLEEPS) {
                if thread_waker::named(|| self.target.load(Ordering::SeqCst) == SLEEPS && self.is_alone()) {
                    doorbell::arm(&self.wait, RX_EVENT);
                    if !self.has_news() {
                        self.thread_waker.sleep(watched);
                    }
                    thread_waker::name(&self.target, SLEEPS, 0);
                } else {
                    thread_waker::take_back([&self.target].into_iter(), SLEEPS);
                    self.event_fd.signal();
                }
            } else {
                self.wait_with_others();
            }
        }
    }

    fn wait_with_others(&self) {
        let watched = self.event_fd.watch();
        sleepers::enter([&self.sleepers].into_iter());
        doorbell::arm(&self.wait, RX_EVENT);
        if !self.has_news() {
            self.event_fd.sleep(watched);
        }
        sleepers::leave([&self.sleepers].into_iter());
    }

    /// Another thread waits for the connection as well.
    fn wait_among(&self) {
        self.others_wait.fetch_add(1, Ordering::SeqCst);
        let sleeping = |target| (target == SLEEPS).then_some(0);
        if thread_waker::displace(|| Some(&self.target), sleeping).is_some() {
            self.thread_waker.signal();
        }
        while !self.has_news() {
            self.wait_with_others();
        }
    }
}

#[test]
fn a_thread_that_sleeps_alone_is_woken_by_news() {
    model(4, || {
        let connection = Connection::new();
        let peer = {
            let connection = connection.clone();
            thread::spawn(move || connection.announce(true))
        };
        connection.wait();
        peer.join().unwrap();
    });
}

/// Whoever waits learns of news, both threads of them.
#[test]
fn a_second_thread_that_waits_displaces_the_first() {
    model(2, || {
        let connection = Connection::new();
        let peer = {
            let connection = connection.clone();
            thread::spawn(move || connection.announce(true))
        };
        let second = {
            let connection = connection.clone();
            thread::spawn(move || connection.wait_among())
        };
        connection.wait();
        second.join().unwrap();
        peer.join().unwrap();
    });
}

/// Between them, before any news: the first does not stay where nobody would ring for both.
#[test]
fn who_begins_to_sleep_alone_sees_the_second_or_is_displaced() {
    model(5, || {
        let connection = Connection::new();
        let second = {
            let connection = connection.clone();
            thread::spawn(move || {
                connection.others_wait.fetch_add(1, Ordering::SeqCst);
                let sleeping = |target| (target == SLEEPS).then_some(0);
                thread_waker::displace(|| Some(&connection.target), sleeping).is_some()
            })
        };
        let stays = connection.is_alone()
            && thread_waker::name(&connection.target, 0, SLEEPS)
            && thread_waker::named(|| connection.is_alone());
        let displaced = second.join().unwrap();
        assert!(!stays || displaced);
    });
}

/// The peer executes another program, which knows no thread waker: it says so, and its next image has news.
#[test]
fn a_peer_that_can_ring_no_more_has_said_so() {
    model(5, || {
        let connection = Connection::new();
        let peer = {
            let connection = connection.clone();
            thread::spawn(move || {
                thread_waker::no_more(&connection.rings, RINGS_NOT);
                if thread_waker::target(&connection.target) == SLEEPS {
                    connection.thread_waker.signal();
                }
                connection.announce(false);
            })
        };
        connection.wait();
        peer.join().unwrap();
    });
}
