//! `sd demote`: connections go back to the kernel's.

use sd_cli::cli::{DemoteOptions, Demoted};
use sd_cli::client;
use sd_cli::failure::{Failure, Result, print};
use sd_cli::place;
use sd_proto::Ip;
use std::net::IpAddr;

/// Says how many connections' processes were told.
pub(crate) fn main(options: &DemoteOptions) -> Result<()> {
    let (pid, name) = match options.what {
        None => (0, (Ip([0; 16]), 0)),
        Some(Demoted::Process(pid)) => (pid, (Ip([0; 16]), 0)),
        Some(Demoted::Name(name)) => (0, (ip_of(name.ip()), name.port())),
    };
    let socket = place::socket(options.socket.as_deref());
    let count = client::demote(&socket, pid, name, options.at_once)
        .map_err(|silence| Failure::new(format!("{}: {silence}", socket.display())))?;
    print(&format!("{count} told\n"))
}

fn ip_of(ip: IpAddr) -> Ip {
    match ip {
        IpAddr::V4(ip) => Ip::v4(ip.octets()),
        IpAddr::V6(ip) => Ip(ip.octets()),
    }
}
