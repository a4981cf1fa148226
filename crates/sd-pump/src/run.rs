//! The loop: what was announced is looked at, until nothing has come for a while; then it sleeps.

use crate::control::{Control, Error, Role};
use crate::end::End;
use crate::twin::Twin;
use sd_proto::{ErrorCode, Reply, Request};
use sd_shm::channel::Side;
use sd_sys::fd::{EVENTFD_EDGE, Owned};
use sd_sys::msg::Received;
use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::time::{Duration, Instant};

/// Looks without news before somebody has to ring again. Between them the processor is offered to others.
const QUIET_LOOKS: u32 = 20;
/// Looks with news at one slot before others have their turn.
const LOOKS: u32 = 64;
/// Without a monitor: so often the ends are looked at, and whether there is a new one.
const ORPHAN: Duration = Duration::from_millis(200);
/// A slot's memory is looked at so many nanoseconds after its use.
const IDLE_NS: u64 = 1_000_000_000;
/// At times that are multiples of this, so that a sleep ends for many slots.
const IDLE_STEP_NS: u64 = 100_000_000;
/// So many slots' before what was announced meanwhile is looked at.
const IDLE_LOOKS: usize = 16;

/// Serves as pump of the monitor at `socket` until that has ended, and all that is carried. Meanwhile a new monitor there is told of
/// that, but gives it nothing else.
pub fn run(socket: &Path) -> Result<(), Error> {
    let mut pump = Pump::new(Control::connect(socket, Role::Pump)?)?;
    while pump.is_needed() {
        if pump.control.has_ended {
            pump.look_for_monitor(socket);
        }
        pump.take_mail();
        let rung = pump.rung();
        pump.take_events();
        let is_busy = pump.visit();
        pump.answer(&rung);
        pump.give_back();
        if !is_busy {
            pump.sleep();
        }
    }
    Ok(())
}

/// A slot that is looked at again and again.
struct Hot {
    twin: u64,
    slot: usize,
    quiet: u32,
}

/// Slots whose memory is looked at, with their twins and the times for that, in the order of these.
#[derive(Default)]
pub(crate) struct Idle(VecDeque<(u64, (u64, usize))>);

impl Idle {
    /// A slot of a twin, by its id, if it was used.
    pub(crate) fn add(&mut self, twin: &mut Twin, place: (u64, usize)) {
        if twin.begins_to_idle(place.1) {
            let due = (sd_sys::time::now_ns() + IDLE_NS).next_multiple_of(IDLE_STEP_NS);
            self.0.push_back((due, place));
        }
    }

    pub(crate) fn next_due(&mut self) -> Option<(u64, usize)> {
        let is_due = self.0.front()?.0 <= sd_sys::time::now_ns();
        if is_due { self.0.pop_front().map(|(_, place)| place) } else { None }
    }

    /// In how many milliseconds the next is due, and a bit more.
    pub(crate) fn due_ms(&self) -> Option<i32> {
        let left = self.0.front()?.0.saturating_sub(sd_sys::time::now_ns());
        Some(if left == 0 { 0 } else { (left / 1_000_000) as i32 + 1 })
    }
}

struct Pump {
    control: Control,
    /// By the id of the near channel, which both are of.
    twins: HashMap<u64, Twin>,
    /// Near channels by the id of the far one.
    by_far: HashMap<u64, u64>,
    hot: VecDeque<Hot>,
    idle: Idle,
    sleeper: Owned,
    orphan: Orphan,
}

/// What there is to know of the time since the monitor ended.
#[derive(Default)]
struct Orphan {
    /// When the ends are looked at next; before that it was not noticed.
    next_look: Option<Instant>,
    /// Connections are another pump's, as one monitor has ended.
    is_of_before: bool,
    /// A new monitor wants no pump.
    is_unwanted: bool,
}

impl Pump {
    fn new(control: Control) -> Result<Pump, Error> {
        let system = |what| move |error| Error::System(what, error);
        let sleeper = sd_sys::fd::epoll_create().map_err(system("wait for something"))?;
        let watched = [(control.socket(), libc::EPOLLIN as u32), (control.eventfd.raw(), EVENTFD_EDGE)];
        for (fd, events) in watched {
            let added = sd_sys::fd::epoll_ctl(sleeper.raw(), libc::EPOLL_CTL_ADD, fd, events, 0);
            added.map_err(system("wait for something"))?;
        }
        let (twins, by_far) = (HashMap::new(), HashMap::new());
        let (hot, idle, orphan) = (VecDeque::new(), Idle::default(), Orphan::default());
        Ok(Pump { control, twins, by_far, hot, idle, sleeper, orphan })
    }

    fn is_needed(&self) -> bool {
        let is_used = !self.control.has_ended && !self.orphan.is_of_before;
        is_used || self.twins.values().any(Twin::is_used)
    }

    fn take_mail(&mut self) {
        if self.control.has_ended || !self.control.has_mail() {
            return;
        }
        while let Some((reply, got)) = self.control.notice() {
            self.hear(reply, got);
        }
    }

    fn hear(&mut self, reply: Reply, got: Received) {
        match reply {
            Reply::Twin { near, far, near_stranger, far_stranger } => {
                let strangers = [near_stranger, far_stranger];
                if self.add((near, far), strangers, got).is_none() {
                    [near, far].iter().for_each(|id| self.control.tell(&Request::Over { channel: *id }));
                }
            }
            Reply::ChannelDead { id } => self.end(id),
            // Others may accept what waits there.
            Reply::PeerGone { id } => self.look_at_all(id),
            Reply::Stranger { id } => {
                let near = self.by_far.get(&id).copied().unwrap_or(id);
                if let Some(twin) = self.twins.get_mut(&near) {
                    let end = if near == id { &mut twin.near } else { &mut twin.far };
                    end.is_stranger = true;
                }
            }
            _ => {}
        }
    }

    pub(crate) fn add(&mut self, (near, far): (u64, u64), strangers: [bool; 2], got: Received) -> Option<()> {
        let [segment_a, page_a, bell_a, segment_b, page_b, bell_b] = got.fds.take()?;
        let a = End::new(near, Side::B, strangers[0], [segment_a, page_a, bell_a]);
        let b = End::new(far, Side::A, strangers[1], [segment_b, page_b, bell_b]);
        self.twins.insert(near, Twin::new(a?, b?));
        self.by_far.insert(far, near);
        self.look_at_all(near);
        Some(())
    }

    /// A process at an end is gone: what it had said goes to the other end, whose channel is over then.
    fn end(&mut self, id: u64) {
        self.look_at_all(id);
        let near = self.by_far.get(&id).copied().unwrap_or(id);
        let Some(twin) = self.twins.remove(&near) else { return };
        self.by_far.remove(&twin.far.id);
        self.hot.retain(|hot| hot.twin != near);
        let channel = if near == id { twin.far.id } else { near };
        self.control.tell(&Request::Over { channel });
        let strange = [&twin.near, &twin.far].map(|end| end.is_stranger.then_some(end.id));
        drop(twin);
        strange.into_iter().flatten().for_each(|channel| self.control.tell(&Request::Finished { channel }));
    }

    /// Looks at all connections of a twin, until there is nothing left to be said.
    fn look_at_all(&mut self, id: u64) {
        let near = self.by_far.get(&id).copied().unwrap_or(id);
        let Some(twin) = self.twins.get_mut(&near) else { return };
        for slot in 0..twin.used() {
            // As much as two rings hold, in the smallest messages.
            let mut looks = 0;
            while looks < 2048 && twin.visit(slot, &mut self.control) {
                looks += 1;
            }
            if twin.becomes_hot(slot) {
                self.hot.push_back(Hot { twin: near, slot, quiet: 0 });
            }
        }
    }

    /// Who waits for an answer: the twins, and how often each end has rung.
    fn rung(&self) -> Vec<(u64, [Option<u32>; 2])> {
        let all = self.twins.iter().map(|(id, twin)| (*id, [twin.near.rung(), twin.far.rung()]));
        all.filter(|(_, rung)| rung.iter().any(Option::is_some)).collect()
    }

    /// What was announced before was looked at, by a pump that leaves nothing hot.
    fn answer(&self, rung: &[(u64, [Option<u32>; 2])]) {
        for (id, [near, far]) in rung {
            if let Some(twin) = self.twins.get(id) {
                near.iter().for_each(|near| twin.near.answer(*near));
                far.iter().for_each(|far| twin.far.answer(*far));
            }
        }
    }

    fn take_events(&mut self) {
        let hot = &mut self.hot;
        for (id, twin) in &mut self.twins {
            let events = [twin.near.map.events(Side::B), twin.far.map.events(Side::A)];
            let [is_left_beside, _] = events.map(|set| {
                set.take(|slot| {
                    if twin.becomes_hot(slot) {
                        hot.push_back(Hot { twin: *id, slot, quiet: 0 });
                    }
                })
            });
            if is_left_beside {
                twin.far.say_left_beside(&mut self.control);
            }
        }
    }

    /// A look at all that is hot. False when nothing is left.
    fn visit(&mut self) -> bool {
        let mut news = false;
        for _ in 0..self.hot.len() {
            let Some(mut hot) = self.hot.pop_front() else { break };
            let Some(twin) = self.twins.get_mut(&hot.twin) else { continue };
            if twin.near.rung().is_some() {
                // Whoever has news rings from now on, so nothing needs to stay hot.
                twin.arm(hot.slot);
                let mut looks = 0;
                while twin.visit(hot.slot, &mut self.control) && looks < LOOKS {
                    twin.arm(hot.slot);
                    looks += 1;
                }
                self.idle.add(twin, (hot.twin, hot.slot));
                if looks < LOOKS {
                    twin.cools(hot.slot);
                } else {
                    news = true;
                    self.hot.push_back(hot);
                }
                continue;
            }
            let mut found = twin.visit(hot.slot, &mut self.control);
            hot.quiet = if found { 0 } else { hot.quiet + 1 };
            self.idle.add(twin, (hot.twin, hot.slot));
            if hot.quiet >= QUIET_LOOKS {
                twin.arm(hot.slot);
                found = twin.visit(hot.slot, &mut self.control);
                if !found {
                    twin.cools(hot.slot);
                    continue;
                }
                hot.quiet = 0;
            }
            news |= found;
            self.hot.push_back(hot);
        }
        if !news && !self.hot.is_empty() {
            sd_sys::time::yield_now();
        }
        !self.hot.is_empty()
    }

    /// Looks at the memory of some slots that may idle.
    fn give_back(&mut self) {
        for _ in 0..IDLE_LOOKS {
            let Some((id, slot)) = self.idle.next_due() else { return };
            let Some(twin) = self.twins.get_mut(&id) else { continue };
            twin.has_waited(slot);
            self.idle.add(twin, (id, slot));
        }
    }

    fn sleep(&mut self) {
        let patience = if self.control.has_ended { ORPHAN.as_millis() as i32 } else { -1 };
        let due = self.idle.due_ms();
        let timeout =
            if patience < 0 { due.unwrap_or(-1) } else { due.map_or(patience, |due| due.min(patience)) };
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event; no mask.
        let _ = unsafe {
            sd_sys::fd::epoll_pwait(self.sleeper.raw(), &raw mut event, 1, timeout, std::ptr::null())
        };
        // Its end is not announced.
        while let Some((reply, got)) = self.control.notice() {
            self.hear(reply, got);
        }
    }

    /// There is no monitor.
    fn look_for_monitor(&mut self, socket: &Path) {
        let now = Instant::now();
        match self.orphan.next_look {
            Some(next) if next > now => return,
            Some(_) => {}
            None => {
                let old = self.control.socket();
                let _ = sd_sys::fd::epoll_ctl(self.sleeper.raw(), libc::EPOLL_CTL_DEL, old, 0, 0);
            }
        }
        self.orphan.next_look = Some(now + ORPHAN);
        self.orphan.is_of_before = true;
        self.forget_the_dead();
        if self.orphan.is_unwanted || !self.twins.values().any(Twin::is_used) {
            return;
        }
        match self.control.come_back(socket) {
            Ok(()) => self.bring_all(),
            Err(Error::Refused(Some(ErrorCode::Denied))) => self.orphan.is_unwanted = true,
            Err(_) => {}
        }
    }

    /// A new monitor learns what is carried.
    fn bring_all(&mut self) {
        self.orphan.next_look = None;
        let (socket, events) = (self.control.socket(), libc::EPOLLIN as u32);
        let _ = sd_sys::fd::epoll_ctl(self.sleeper.raw(), libc::EPOLL_CTL_ADD, socket, events, 0);
        for twin in self.twins.values() {
            twin.near.bring(&mut self.control);
            twin.far.bring(&mut self.control);
            self.control.tell(&Request::Carries { near: twin.near.id, far: twin.far.id });
        }
    }

    /// Nobody tells that a process has ended.
    fn forget_the_dead(&mut self) {
        let is_gone = |end: &End| sd_sys::fd::task_is_dead(end.pid() as i32);
        self.twins.retain(|_, twin| !is_gone(&twin.near) && !is_gone(&twin.far));
    }
}
