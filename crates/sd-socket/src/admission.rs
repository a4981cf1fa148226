//! Does the policy let the other side of a channel reach this listener? Its own library has asked the monitor before; one
//! that is not ours may not have. Where there are rules accept asks once for each channel, listener and policy.

use crate::addr::Name;
use crate::channel::Channel;
use crate::control;
use crate::listen::Listener;
use crate::process::PROCESS;
use core::sync::atomic::{AtomicU64, Ordering};
use sd_proto::{Ip, Reply, Request};

/// What a channel's other side was found to be admitted to, the last few of it (see [`key`]).
pub(crate) struct Admitted([AtomicU64; 4]);

impl Admitted {
    pub(crate) const fn new() -> Admitted {
        Admitted([const { AtomicU64::new(0) }; 4])
    }

    fn place(&self, port: u16) -> Option<&AtomicU64> {
        self.0.get(usize::from(port) % self.0.len())
    }
}

/// What the answer depends on, for one channel: policy, port, address, and whether the listener has all addresses, of which
/// the other side may have named any. `None` for addresses of IPv6, which are asked about each time.
fn key(policy: u32, listener: Ip, to: Name) -> Option<u64> {
    let address = u32::from_be_bytes(to.ip.to_v4()?);
    let all = u64::from(listener.is_unspecified());
    Some(u64::from(policy & 0x7fff) << 49 | all << 48 | u64::from(to.port) << 32 | u64::from(address))
}

/// Whether a connection to this name of the listener's is let in.
#[inline]
pub(crate) fn admits(channel: &Channel, listener: &Listener, to: Name) -> bool {
    // The monitor has raised it before it answers anybody by the new rules.
    let policy = PROCESS.policy();
    policy == 0 || is_admitted(channel, listener, to, policy)
}

#[cold]
fn is_admitted(channel: &Channel, listener: &Listener, to: Name, policy: u32) -> bool {
    let Some(place) = channel.admitted.place(to.port) else { return false };
    let known = key(policy, listener.ip(), to);
    if known.is_some_and(|known| place.load(Ordering::Relaxed) == known) {
        return true;
    }
    let index = listener.index.load(Ordering::Relaxed);
    let asked = Request::Admits { channel: channel.id, listener: index, ip: to.ip };
    let admits = matches!(control::question(&asked, &[]), Some((Reply::Ok, _)));
    if let Some(known) = known.filter(|_| admits) {
        place.store(known, Ordering::Relaxed);
    }
    admits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_apart() {
        let to = |last, port| Name { ip: Ip::v4([10, 0, 0, last]), port };
        let (one, any) = (Ip::v4([10, 0, 0, 1]), Ip::v4([0; 4]));
        let keys = [
            key(1, one, to(1, 80)),
            key(2, one, to(1, 80)),
            key(1, one, to(1, 81)),
            key(1, any, to(1, 80)),
            key(1, any, to(2, 80)),
        ];
        assert!(keys.iter().all(Option::is_some));
        assert_eq!(keys.iter().collect::<std::collections::HashSet<_>>().len(), keys.len());
        assert_eq!(key(1, Ip([0; 16]), Name { ip: Ip([1; 16]), port: 80 }), None);
    }
}
