//! `sd demote`: connections go back to the kernel's.

use sd_cli::cli::{DemoteOptions, Demoted};
use sd_cli::client;
use sd_cli::failure::{Failure, Result, print};
use sd_cli::place;
use sd_proto::Ip;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// So often it is looked whether they have gone back.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Says how many connections' processes were told, and how many of those have not gone back.
pub(crate) fn main(options: &DemoteOptions) -> Result<()> {
    let (pid, name) = match options.what {
        None => (0, (Ip([0; 16]), 0)),
        Some(Demoted::Process(pid)) => (pid, (Ip([0; 16]), 0)),
        Some(Demoted::Name(name)) => (0, (ip_of(name.ip()), name.port())),
    };
    let socket = place::socket(options.socket.as_deref());
    let ask = |before_ns| {
        client::demote(&socket, pid, name, (options.at_once, before_ns))
            .map_err(|silence| Failure::new(format!("{}: {silence}", socket.display())))
    };
    let (asked_at, until) = (sd_sys::time::now_ns(), Instant::now() + Duration::from_secs(options.timeout));
    let count = ask(0)?;
    if options.timeout == 0 || count == 0 {
        return print(&format!("{count} told\n"));
    }
    let mut left = ask(asked_at)?;
    while left != 0 && Instant::now() < until {
        std::thread::sleep(LOOK_EVERY);
        left = ask(asked_at)?;
    }
    match left {
        0 => print(&format!("{count} told, all have gone back\n")),
        _ => {
            print(&format!("{count} told\n"))?;
            let seconds = options.timeout;
            Err(Failure::new(format!(
                "{left} of them have not gone back within {seconds} s: their processes compute, or are stopped"
            )))
        }
    }
}

fn ip_of(ip: IpAddr) -> Ip {
    match ip {
        IpAddr::V4(ip) => Ip::v4(ip.octets()),
        IpAddr::V6(ip) => Ip(ip.octets()),
    }
}
