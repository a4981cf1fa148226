//! Options that a socket keeps for the day on which it gets a kernel socket, and how they are set there.

use crate::socket::endpoint::{EndpointExt, INQ, NONBLOCK};
use crate::socket::{cold, notes};
use core::sync::atomic::Ordering;
use libc::{SO_KEEPALIVE, SO_LINGER, SO_RCVTIMEO, SO_SNDTIMEO, SOL_SOCKET, c_int, c_void};
use sd_shm::slab::{Endpoint, LINGER_ON, State, Switch};

/// Options kept as a number: level, name, where, lowest and highest value (others are EINVAL), and the value when never
/// set.
pub(crate) struct Number {
    pub(crate) level: c_int,
    pub(crate) name: c_int,
    place: Place,
    pub(crate) range: (i32, i32),
    pub(crate) default: i32,
}

/// Where it is kept.
#[derive(Clone, Copy)]
enum Place {
    /// Any value but zero reads back as 1.
    Switch(Switch),
    /// In `Cold::opts`, plus one, as zero means "never set"; none is negative or above 32767.
    Cold(usize),
}

impl Number {
    /// What was set.
    pub(crate) fn load(&self, endpoint: &Endpoint) -> Option<i32> {
        match self.place {
            Place::Switch(switch) => endpoint.switch(switch).map(i32::from),
            Place::Cold(index) => {
                let stored = cold::of(endpoint).opts.get(index)?.load(Ordering::Relaxed);
                i32::from(stored).checked_sub(1).filter(|value| *value >= 0)
            }
        }
    }

    pub(crate) fn store(&self, endpoint: &Endpoint, value: i32) {
        match self.place {
            Place::Switch(switch) => endpoint.set_switch(switch, value != 0),
            Place::Cold(index) => cold::change(endpoint, |cold| {
                let cell = cold.opts.get(index);
                cell.into_iter().for_each(|cell| cell.store((value + 1) as u16, Ordering::Relaxed));
            }),
        }
    }
}

const TCP: c_int = libc::IPPROTO_TCP;
const ANY: (i32, i32) = (i32::MIN, i32::MAX);

pub(crate) const NUMBERS: [Number; 7] = [
    switch(TCP, libc::TCP_NODELAY, Switch::NoDelay),
    switch(SOL_SOCKET, SO_KEEPALIVE, Switch::KeepAlive),
    switch(SOL_SOCKET, libc::SO_REUSEADDR, Switch::ReuseAddress),
    Number { level: TCP, name: libc::TCP_KEEPIDLE, place: Place::Cold(0), range: (1, 32767), default: 7200 },
    Number { level: TCP, name: libc::TCP_KEEPINTVL, place: Place::Cold(1), range: (1, 32767), default: 75 },
    Number { level: TCP, name: libc::TCP_KEEPCNT, place: Place::Cold(2), range: (1, 127), default: 9 },
    switch(TCP, libc::TCP_CORK, Switch::Cork),
];

const fn switch(level: c_int, name: c_int, switch: Switch) -> Number {
    Number { level, name, place: Place::Switch(switch), range: ANY, default: 0 }
}

/// The option, if it is one of those.
pub(crate) fn number(level: c_int, name: c_int) -> Option<&'static Number> {
    NUMBERS.iter().find(|n| n.level == level && n.name == name)
}

/// Sets on a fresh kernel socket what was recorded, and the status flags.
pub(crate) fn replay(endpoint: &Endpoint, fd: i32) {
    for n in &NUMBERS {
        if let Some(value) = n.load(endpoint) {
            let _ = sd_sys::fd::setsockopt_int(fd, n.level, n.name, value);
        }
    }
    let cold = cold::of(endpoint);
    for (name, cell) in [(SO_RCVTIMEO, &cold.rx_timeout_ns), (SO_SNDTIMEO, &cold.tx_timeout_ns)] {
        let ns = cell.load(Ordering::Relaxed);
        if ns != 0 {
            let tv = timeval_of(ns);
            // SAFETY: the kernel reads one timeval.
            let _ = unsafe { raw_set(fd, SOL_SOCKET, name, &tv as *const _ as *const c_void, 16) };
        }
    }
    let linger = cold::of(endpoint).linger.load(Ordering::Relaxed);
    if linger != 0 {
        let value = linger_of(linger);
        // SAFETY: the kernel reads one linger.
        let _ = unsafe { raw_set(fd, SOL_SOCKET, SO_LINGER, &value as *const _ as *const c_void, 8) };
    }
    let noted = notes::each(endpoint, |level, name, value| {
        // Which TCP connections of MPTCP listeners do not inherit.
        if (level, name) == (TCP, libc::TCP_INQ) && !endpoint.flag(INQ) {
            return;
        }
        // SAFETY: the kernel reads the value.
        let _ = unsafe { raw_set(fd, level, name, value.as_ptr().cast(), value.len() as u32) };
    });
    if noted && endpoint.state_now() == State::Connected {
        // IP_TOS has changed what is not inherited.
        let _ = sd_sys::fd::setsockopt_int(fd, SOL_SOCKET, libc::SO_PRIORITY, 0);
    }
    let lowat = endpoint.rx().lowat.load(Ordering::Relaxed).max(1);
    if lowat != 1 {
        let _ = sd_sys::fd::setsockopt_int(fd, SOL_SOCKET, libc::SO_RCVLOWAT, lowat as i32);
    }
    if endpoint.flag(NONBLOCK) {
        let _ = sd_sys::fd::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK as usize | libc::O_RDWR as usize);
    }
}

pub(crate) unsafe fn raw_set(
    fd: i32,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: u32,
) -> sd_sys::Result<usize> {
    // SAFETY: promised by the caller.
    sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_setsockopt, fd, level, name, value, len) })
}

pub(crate) fn timeval_of(ns: u64) -> libc::timeval {
    libc::timeval { tv_sec: (ns / 1_000_000_000) as i64, tv_usec: (ns % 1_000_000_000 / 1000) as i64 }
}

pub(crate) fn linger_of(stored: u32) -> libc::linger {
    libc::linger { l_onoff: i32::from(stored & LINGER_ON != 0), l_linger: (stored & !LINGER_ON) as i32 }
}
