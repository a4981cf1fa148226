//! The monitor as a process: start-up, signals, sockets, mappings, the event loop.

pub(crate) mod activation;
mod admission;
mod bind;
mod by_kernel;
mod carried;
mod charges;
mod closers;
mod connection;
mod cut_off;
mod demote;
pub(crate) mod descriptors;
mod detach;
mod directories;
mod door;
mod engine;
mod expected;
mod family;
mod files;
mod foreign;
mod forks;
mod grant;
mod hearing;
mod helpers;
mod looks;
mod metrics;
mod networks;
mod offers;
mod origin;
mod outbox;
mod parked;
mod peers;
pub(crate) mod place;
mod poller;
mod processes;
mod proof;
mod pumps;
mod reaper;
mod recovery;
mod remains;
mod requests;
mod rescue;
mod route;
mod segments;
mod sender;
mod server;
mod shortage;
mod signals;
mod silent;
mod soon;
mod standing;
mod starving;
mod status;
mod strangers;
mod thread_wakers;
mod turns;
mod waking;
mod wander;
mod withdrawal;

use crate::{Error, Options};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use tracing_subscriber::filter::LevelFilter;

/// See [`crate::run`].
pub(crate) fn run(options: &Options) -> Result<(), Error> {
    let handed = activation::handed()?;
    start_log();
    let policy = files::read_policy(options.policy.as_deref())?;
    raise_descriptor_limit();
    let place = match handed {
        Some(handed) => place::Place::of(handed)?,
        None => place::Place::take(&options.socket)?,
    };
    tracing::info!("listening at {}", place.path().display());
    let mut metrics = options.metrics.as_ref().map(metrics::place::Place::take).transpose()?;
    let system = |what| move |error| Error::System(what, options.socket.clone(), error);
    let signals = signals().map_err(system("watch signals for"))?;
    let mut server = server::Server::new(place, signals, options, policy).map_err(system("start serving"))?;
    if let Some(listener) = metrics.as_mut().and_then(|place| place.listener.take()) {
        server.serve_metrics(listener).map_err(system("serve metrics of"))?;
    }
    server.say_promotes();
    server.recover_silent();
    tell_systemd("READY=1");
    let ended = server.serve().map_err(system("go on serving"));
    tell_systemd("STOPPING=1");
    ended
}

/// See [`crate::start_log`].
pub(crate) fn start_log() {
    let wanted = std::env::var("SD_LOG").unwrap_or_default();
    let level: LevelFilter =
        if wanted.is_empty() { LevelFilter::ERROR } else { wanted.parse().unwrap_or(LevelFilter::INFO) };
    let log = tracing_subscriber::fmt().with_max_level(level).with_target(false).with_ansi(false);
    // A program that embeds the monitor may have a log of its own already.
    let _ = log.with_writer(std::io::stderr).try_init();
    if !wanted.is_empty() && wanted.parse::<LevelFilter>().is_err() {
        tracing::warn!("SD_LOG={wanted} is not off, error, warn, info, debug or trace");
    }
}

/// Several descriptors per client and one per channel.
fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!("cannot raise the limit of descriptors: {error}");
    }
}

fn signals() -> std::io::Result<SignalFd> {
    let mut set = SigSet::empty();
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().for_each(|signal| set.add(signal));
    set.thread_block()?;
    Ok(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}

/// sd_notify(3), when systemd asked for it.
fn tell_systemd(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = sent {
        tracing::warn!("cannot tell systemd {state}: {error}");
    }
}
