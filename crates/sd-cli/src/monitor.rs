//! `sd monitor`: the monitor in the foreground.

use sd_cli::cli::{LoopbackPump, MonitorOptions, Promote};
use sd_cli::failure::{Failure, Result};
use sd_cli::place;

/// Runs until it is told to end.
pub(crate) fn main(options: MonitorOptions) -> Result<()> {
    let socket = place::socket_to_serve(options.socket.as_deref());
    // A reader of the log who goes away must not take the monitor along.
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    // Where it will be reached.
    let place = sd_monitor::handed_socket_path().unwrap_or_else(|| socket.clone());
    if options.loopback_pump.is_some() {
        crate::pump::start(&place)?;
    }
    if let Some(hosts) = &options.hosts {
        crate::engine::start(&place, hosts)?;
    }
    let pump = options.loopback_pump.map(|pump| match pump {
        LoopbackPump::Prompt => sd_monitor::Pump::Prompt,
        LoopbackPump::Late => sd_monitor::Pump::Late,
    });
    let promote = match options.promote {
        Promote::Off => sd_monitor::Promote::Nothing,
        Promote::Earned => sd_monitor::Promote::Earned,
        Promote::All => sd_monitor::Promote::All,
    };
    // Its own file, also when another one has taken the name.
    let helper = Some("/proc/self/exe".into());
    sd_monitor::run(sd_monitor::Options {
        socket,
        policy: options.policy,
        helper,
        pump,
        hosts: options.hosts,
        metrics: options.metrics,
        promote,
        wander: options.demote,
    })
    .map_err(|error| Failure::new(error.to_string()))
}
