//! A network namespace for one side of an item, so that ports, TIME-WAIT and abstract Unix sockets are its own.
//!
//! It has the loopback interface, and a second one with an address and default routes, as a machine has that is
//! connected to others: some tests want that. What is sent there is lost. Of the name servers of the machine a thread
//! of ours stands in for the first: it knows no name; the others are unreachable, so that a question fails at once.

use harness::Result;
use harness::network::{Network, configure};
use std::net::{IpAddr, UdpSocket};

const INTERFACES: &str = "
link add eth0 type veth peer name gate
address add 192.0.2.2/24 dev eth0
link set gate up
link set eth0 up
neighbour add 192.0.2.1 lladdr 02:00:00:00:00:01 dev eth0
route add default via 192.0.2.1
";

const INTERFACES_V6: &str = "
address add fd00::2/64 dev eth0 nodad
neighbour add fd00::1 lladdr 02:00:00:00:00:01 dev eth0
route add default via fd00::1 dev eth0
";

/// Gives the calling thread, and what it starts from now on, a network of its own. After an error nothing has changed.
pub(crate) fn enter() -> Result<()> {
    let network = Network::new()?;
    network.inside(set_up)?;
    network.enter()
}

fn set_up() -> Result<()> {
    // Addresses are usable at once: there is nobody to ask whether they are taken.
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0");
    configure(INTERFACES)?;
    if std::path::Path::new("/proc/net/if_inet6").exists() {
        configure(INTERFACES_V6)?;
    }
    let servers = name_servers(&std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default());
    let Some((first, others)) = servers.split_first() else { return Ok(()) };
    if !first.is_loopback() {
        configure(&format!("address add {first} dev lo\n"))?;
    }
    let others = others.iter().filter(|address| !address.is_loopback());
    configure(&others.map(|address| format!("route add unreachable {address}\n")).collect::<String>())?;
    let socket = UdpSocket::bind((*first, DNS_PORT))?;
    std::thread::spawn(move || know_no_name(&socket));
    Ok(())
}

/// The name servers of a resolver's configuration.
fn name_servers(configuration: &str) -> Vec<IpAddr> {
    let words = configuration.lines().filter_map(|line| line.trim().strip_prefix("nameserver "));
    words.filter_map(|word| word.trim().parse().ok()).collect()
}

const DNS_PORT: u16 = 53;

/// Answers every question of the domain name system by "no such name".
fn know_no_name(socket: &UdpSocket) {
    let mut message = [0; 1500];
    while let Ok((len, from)) = socket.recv_from(&mut message) {
        if len >= 12 {
            answer(&mut message);
            let _ = socket.send_to(&message[..len], from);
        }
    }
}

/// Makes an answer of a question (RFC 1035, section 4.1.1): QR and RA are set, RCODE is 3.
fn answer(message: &mut [u8]) {
    message[2] |= 0x80;
    message[3] = message[3] & 0x70 | 0x83;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_of_a_configuration() {
        let text =
            "# nameserver 1.1.1.1\nnameserver 127.0.0.53\nnameserver 10.0.0.1\n nameserver fd00::53 \n";
        let servers: Vec<IpAddr> =
            ["127.0.0.53", "10.0.0.1", "fd00::53"].map(|text| text.parse().unwrap()).into();
        assert_eq!(name_servers(text), servers);
    }

    #[test]
    fn no_such_name() {
        let mut question = [0x12, 0x34, 0x01, 0x20, 0, 1, 0, 0, 0, 0, 0, 1];
        answer(&mut question);
        assert_eq!(question[..4], [0x12, 0x34, 0x81, 0xa3]);
    }
}
