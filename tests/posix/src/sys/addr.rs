//! Socket addresses, printed with labels for ports so that transcripts are the same in every run.

use std::fmt;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::{Mutex, OnceLock};

/// Any socket address with its length.
#[derive(Clone, Copy)]
pub(crate) struct Addr {
    pub(crate) raw: libc::sockaddr_storage,
    pub(crate) len: libc::socklen_t,
}

const V4_LEN: libc::socklen_t = mem::size_of::<libc::sockaddr_in>() as libc::socklen_t;
const V6_LEN: libc::socklen_t = mem::size_of::<libc::sockaddr_in6>() as libc::socklen_t;

static PORT_LABELS: Mutex<Vec<(u16, &'static str)>> = Mutex::new(Vec::new());

/// Gives a port a name for the transcript; the first name wins.
pub(crate) fn label_port(port: u16, label: &'static str) {
    PORT_LABELS.lock().expect("not poisoned").push((port, label));
}

fn port_label(port: u16) -> String {
    let labels = PORT_LABELS.lock().expect("not poisoned");
    match labels.iter().find(|(known, _)| *known == port) {
        _ if port == 0 => "0".to_owned(),
        Some((_, label)) => (*label).to_owned(),
        None => "?".to_owned(),
    }
}

impl Addr {
    /// An address full of zeros (family `AF_UNSPEC`) of full length, as a buffer to be filled.
    pub(crate) fn empty() -> Addr {
        // SAFETY: all-zero bytes are a valid sockaddr_storage.
        let raw: libc::sockaddr_storage = unsafe { mem::zeroed() };
        Addr { raw, len: mem::size_of::<libc::sockaddr_storage>() as libc::socklen_t }
    }

    fn from_part<T>(part: T, len: libc::socklen_t) -> Addr {
        let mut addr = Addr::empty();
        assert!(mem::size_of::<T>() <= mem::size_of::<libc::sockaddr_storage>());
        // SAFETY: sockaddr_storage is at least as large and as aligned as every sockaddr_*.
        unsafe { (&raw mut addr.raw).cast::<T>().write(part) };
        addr.len = len;
        addr
    }

    pub(crate) fn v4(ip: [u8; 4], port: u16) -> Addr {
        let part = libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: port.to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(ip) },
            sin_zero: [0; 8],
        };
        Addr::from_part(part, V4_LEN)
    }

    pub(crate) fn v6(ip: Ipv6Addr, port: u16) -> Addr {
        let part = libc::sockaddr_in6 {
            sin6_family: libc::AF_INET6 as libc::sa_family_t,
            sin6_port: port.to_be(),
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr { s6_addr: ip.octets() },
            sin6_scope_id: 0,
        };
        Addr::from_part(part, V6_LEN)
    }

    /// 127.0.0.1 with the given port; where the roles are on two hosts, the server's address.
    pub(crate) fn local(port: u16) -> Addr {
        Addr::v4(here().octets(), port)
    }

    pub(crate) fn any(port: u16) -> Addr {
        Addr::v4([0, 0, 0, 0], port)
    }

    /// ::1 with the given port.
    pub(crate) fn local6(port: u16) -> Addr {
        Addr::v6(Ipv6Addr::LOCALHOST, port)
    }

    pub(crate) fn any6(port: u16) -> Addr {
        Addr::v6(Ipv6Addr::UNSPECIFIED, port)
    }

    /// `local` as an address of IPv6.
    pub(crate) fn mapped(port: u16) -> Addr {
        Addr::v6(here().to_ipv6_mapped(), port)
    }

    /// `AF_UNSPEC`, as `connect` takes it to dissolve an association.
    pub(crate) fn unspec() -> Addr {
        Addr { len: V4_LEN, ..Addr::empty() }
    }

    /// The same bytes said to be `len` long.
    pub(crate) fn with_len(self, len: libc::socklen_t) -> Addr {
        Addr { len, ..self }
    }

    /// The same bytes said to be of another family.
    pub(crate) fn with_family(mut self, family: i32) -> Addr {
        self.raw.ss_family = family as libc::sa_family_t;
        self
    }

    pub(crate) fn family(&self) -> i32 {
        i32::from(self.raw.ss_family)
    }

    fn as_v4(&self) -> libc::sockaddr_in {
        // SAFETY: sockaddr_storage is larger, as aligned, and fully initialised.
        unsafe { (&raw const self.raw).cast::<libc::sockaddr_in>().read() }
    }

    fn as_v6(&self) -> libc::sockaddr_in6 {
        // SAFETY: sockaddr_storage is larger, as aligned, and fully initialised.
        unsafe { (&raw const self.raw).cast::<libc::sockaddr_in6>().read() }
    }

    /// The port; `sin_port` and `sin6_port` lie at the same place.
    pub(crate) fn port(&self) -> u16 {
        u16::from_be(self.as_v4().sin_port)
    }

    pub(crate) fn ptr(&self) -> *const libc::sockaddr {
        (&raw const self.raw).cast()
    }

    pub(crate) fn ptr_mut(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.raw).cast()
    }
}

/// `SD_POSIX_ADDRESS`, which is read once: later there may be threads and handlers.
fn here() -> Ipv4Addr {
    static HERE: OnceLock<Ipv4Addr> = OnceLock::new();
    let told = || std::env::var("SD_POSIX_ADDRESS").ok()?.parse().ok();
    *HERE.get_or_init(|| told().unwrap_or(Ipv4Addr::LOCALHOST))
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = port_label(self.port());
        match self.family() {
            libc::AF_INET => {
                let ip = Ipv4Addr::from(self.as_v4().sin_addr.s_addr.to_ne_bytes());
                write!(f, "{ip}:{port}")
            }
            libc::AF_INET6 => {
                let part = self.as_v6();
                write!(f, "[{}]:{port}", Ipv6Addr::from(part.sin6_addr.s6_addr))?;
                match (part.sin6_flowinfo, part.sin6_scope_id) {
                    (0, 0) => Ok(()),
                    (flow, scope) => write!(f, " flow {flow} scope {scope}"),
                }
            }
            libc::AF_UNIX => write!(f, "unix"),
            libc::AF_UNSPEC => write!(f, "unspecified"),
            other => write!(f, "family {other}"),
        }
    }
}
