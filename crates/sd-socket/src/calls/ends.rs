//! What is done above `socket` when a socket ends.

use crate::setup::{listen, promote, syn_sent, withdrawn};
use crate::socket::life::Ends;

pub(super) static TABLE: Ends = Ends {
    unwatch: crate::epoll::forget_endpoint,
    stop_connecting: syn_sent::forget,
    stop_listening: listen::forget,
    tell: listen::ended,
    free_port: crate::route::port_unused,
    let_go: withdrawn::let_go,
    shown: promote::shown,
};
