//! The subjects by topic, in order of importance.

use crate::table::Subject;

mod accept;
mod bind;
mod close;
mod connect;
mod create;
mod descriptor;
mod epoll;
mod epoll_modes;
mod file;
mod flags;
mod fork;
mod ipv6;
mod listen;
mod message;
mod names;
mod nonblocking;
mod options;
mod others;
mod poll;
mod shutdown;
mod stream;
mod threads;
mod transfer;
mod urgent;
mod waiting;

pub(crate) const TOPICS: &[&[Subject]] = &[
    create::SUBJECTS,
    bind::SUBJECTS,
    listen::SUBJECTS,
    connect::SUBJECTS,
    accept::SUBJECTS,
    stream::SUBJECTS,
    flags::SUBJECTS,
    nonblocking::SUBJECTS,
    shutdown::SUBJECTS,
    close::SUBJECTS,
    waiting::SUBJECTS,
    poll::SUBJECTS,
    epoll::SUBJECTS,
    epoll_modes::SUBJECTS,
    fork::SUBJECTS,
    threads::SUBJECTS,
    options::SUBJECTS,
    descriptor::SUBJECTS,
    file::SUBJECTS,
    message::SUBJECTS,
    names::SUBJECTS,
    ipv6::SUBJECTS,
    transfer::SUBJECTS,
    others::SUBJECTS,
    urgent::SUBJECTS,
];
