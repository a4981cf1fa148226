//! The subjects by topic, in order of importance.

use crate::table::Subject;

mod accept;
mod aliases;
mod backlog;
mod bind;
mod buffers;
mod cancel;
mod clone;
mod close;
mod confine;
mod connect;
mod create;
mod defer;
mod descriptor;
mod epoll;
mod epoll_asked;
mod epoll_edges;
mod epoll_lingers;
mod epoll_lives;
mod epoll_modes;
mod epoll_nested;
mod epoll_once;
mod epoll_order;
mod epoll_pools;
mod epoll_set;
mod epoll_threads;
mod epoll_turns;
mod errnos;
mod exec;
mod exec_image;
mod exec_quiet;
mod file;
mod flags;
mod fork;
mod fork_epoll;
mod fork_served;
mod handlers;
mod idle;
mod idle_busy;
mod idle_parked;
mod idle_sleeper;
mod ipv6;
mod limits;
mod limits_raised;
mod listen;
mod makers;
mod matrix;
mod message;
mod mptcp;
mod mptcp_life;
mod names;
mod network;
mod no_forks;
mod nonblocking;
mod odd;
mod offspring;
mod options;
mod other_names;
mod others;
mod pair_basic;
mod pair_failure;
mod pair_load;
mod pair_servers;
mod pair_states;
mod pass;
mod pass_races;
mod poll;
mod poll_threads;
mod ports;
mod privileges;
mod privileges_copies;
mod privileges_handlers;
mod privileges_threads;
mod rare;
mod raw;
mod shutdown;
mod siblings;
mod siblings_queue;
mod siblings_spread;
mod siblings_users;
mod signals;
mod spawn;
mod stacks;
mod stream;
mod syn_sent;
mod threads;
mod tokens;
mod transfer;
mod urgent;
mod waiting;

pub(crate) use exec::exec_helper;

pub(crate) const TOPICS: &[&[Subject]] = &[
    create::SUBJECTS,
    bind::SUBJECTS,
    ports::SUBJECTS,
    buffers::SUBJECTS,
    listen::SUBJECTS,
    backlog::SUBJECTS,
    connect::SUBJECTS,
    accept::SUBJECTS,
    syn_sent::SUBJECTS,
    defer::SUBJECTS,
    mptcp::SUBJECTS,
    mptcp_life::SUBJECTS,
    pair_basic::SUBJECTS,
    stream::SUBJECTS,
    pair_servers::SUBJECTS,
    pair_load::SUBJECTS,
    pair_states::SUBJECTS,
    flags::SUBJECTS,
    nonblocking::SUBJECTS,
    shutdown::SUBJECTS,
    siblings::SUBJECTS,
    siblings_queue::SUBJECTS,
    siblings_spread::SUBJECTS,
    siblings_users::SUBJECTS,
    clone::SUBJECTS,
    close::SUBJECTS,
    pair_failure::SUBJECTS,
    waiting::SUBJECTS,
    idle::SUBJECTS,
    idle_busy::SUBJECTS,
    idle_parked::SUBJECTS,
    idle_sleeper::SUBJECTS,
    pass::SUBJECTS,
    no_forks::SUBJECTS,
    pass_races::SUBJECTS,
    poll::SUBJECTS,
    poll_threads::SUBJECTS,
    privileges::SUBJECTS,
    privileges_copies::SUBJECTS,
    privileges_handlers::SUBJECTS,
    privileges_threads::SUBJECTS,
    raw::SUBJECTS,
    epoll::SUBJECTS,
    epoll_set::SUBJECTS,
    epoll_turns::SUBJECTS,
    epoll_lingers::SUBJECTS,
    epoll_modes::SUBJECTS,
    epoll_asked::SUBJECTS,
    epoll_once::SUBJECTS,
    epoll_order::SUBJECTS,
    epoll_edges::SUBJECTS,
    epoll_nested::SUBJECTS,
    epoll_lives::SUBJECTS,
    epoll_pools::SUBJECTS,
    epoll_threads::SUBJECTS,
    fork::SUBJECTS,
    fork_epoll::SUBJECTS,
    fork_served::SUBJECTS,
    confine::SUBJECTS,
    limits::SUBJECTS,
    limits_raised::SUBJECTS,
    exec::SUBJECTS,
    exec_image::SUBJECTS,
    exec_quiet::SUBJECTS,
    spawn::SUBJECTS,
    offspring::SUBJECTS,
    threads::SUBJECTS,
    tokens::SUBJECTS,
    options::SUBJECTS,
    descriptor::SUBJECTS,
    makers::SUBJECTS,
    file::SUBJECTS,
    message::SUBJECTS,
    names::SUBJECTS,
    network::SUBJECTS,
    ipv6::SUBJECTS,
    transfer::SUBJECTS,
    others::SUBJECTS,
    urgent::SUBJECTS,
    handlers::SUBJECTS,
    stacks::SUBJECTS,
    signals::SUBJECTS,
    cancel::SUBJECTS,
    aliases::SUBJECTS,
    other_names::SUBJECTS,
    odd::SUBJECTS,
    errnos::SUBJECTS,
    rare::SUBJECTS,
    matrix::SUBJECTS,
    matrix::MORE,
    matrix::OF_V6,
    matrix::OF_MAPPED,
    matrix::BLOCKING,
    matrix::COPIES,
    matrix::CHILDREN,
    matrix::ends::SUBJECTS,
    matrix::flags::SUBJECTS,
    matrix::flags::PAIRS,
    matrix::flags::OF_V6,
    matrix::flags::BLOCKING,
    matrix::sequences::SUBJECTS,
    matrix::controls::SUBJECTS,
    matrix::masks::SUBJECTS,
    matrix::masks::EDGES,
    matrix::options::SUBJECTS,
    matrix::numbers::SUBJECTS,
    matrix::pointers::SUBJECTS,
];
