//! Connections whose addresses this host's kernel translates on their way: to a service's address that stands for one of several hosts (kube-proxy, a
//! load balancer by nftables), or from a source that others see as another one (masquerading).
//!
//! A program connects to a name that no hosts file has, and the other end has the connection under other names. Both are in the kernel's table of
//! connections (nf_conntrack), in the network namespace of the engine, which is the one that translates for the host and what it runs; who asks needs
//! CAP_NET_ADMIN. Where it cannot be asked, names are as the program has them.

use crate::words::{Here, Question};
use sd_proto::Ip;
use sd_sys::netlink::Netlink;

/// There when the kernel has loaded what translates: a question alone would load it.
const LOADED: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

/// See the module.
#[derive(Default)]
pub(crate) struct Translations {
    netlink: Option<Netlink>,
}

impl Translations {
    /// The question with the names that the other host has.
    pub(crate) fn of(&mut self, question: Question) -> Question {
        if self.netlink.is_none() && std::path::Path::new(LOADED).exists() {
            self.netlink = Netlink::of_translations().ok();
        }
        let plain = |(Ip(ip), port): (Ip, u16)| (ip, port);
        let asked = self.netlink.as_ref().and_then(|netlink| {
            netlink.translated(plain(question.local), plain(question.remote)).ok().flatten()
        });
        let own = [question.local, question.remote];
        match asked.map(|names| names.map(|(ip, port)| (Ip(ip), port))) {
            Some(names) if names != own => {
                let [local, remote] = names;
                tracing::debug!(?own, ?names, "engine: the kernel translates a connection");
                Question { local, remote, here: Here { names: Some(own), ..question.here }, ..question }
            }
            _ => question,
        }
    }
}
