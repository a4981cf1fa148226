//! Network namespaces: ports, addresses, TIME-WAIT, abstract Unix sockets and settings that are nobody else's.
//!
//! They have no names: each lives as long as its value here, or a program in it. Made by root only.

use crate::process::find_program;
use crate::{Result, fail};
use nix::libc;
use nix::sched::{CloneFlags, setns, unshare};
use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What sets interfaces up.
pub const PROGRAM: &str = "ip";

/// A network namespace with the loopback device up.
pub struct Network {
    place: File,
}

impl Network {
    /// A fresh one, joined to nothing.
    pub fn new() -> Result<Network> {
        let place = in_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            loopback_up()?;
            Ok(File::open("/proc/thread-self/ns/net")?)
        })?;
        Ok(Network { place })
    }

    /// One that exists: `/run/netns/NAME`, `/proc/PID/ns/net`.
    pub fn at(path: &Path) -> Result<Network> {
        let place = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Network { place })
    }

    /// Does something inside, in a thread of its own.
    pub fn inside<T: Send>(&self, act: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        in_thread(|| {
            setns(&self.place, CloneFlags::CLONE_NEWNET)?;
            act()
        })
    }

    /// The calling thread, and what it starts from now on, is inside.
    pub fn enter(&self) -> Result<()> {
        Ok(setns(&self.place, CloneFlags::CLONE_NEWNET)?)
    }

    /// The command's program will be inside.
    pub fn host(&self, command: &mut Command) -> Result<()> {
        let place = self.place.try_clone()?;
        let enter = move || Ok(setns(&place, CloneFlags::CLONE_NEWNET)?);
        // SAFETY: one system call between fork and exec.
        unsafe { command.pre_exec(enter) };
        Ok(())
    }

    /// Where others find it, as long as this value lives.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.place.as_raw_fd()).into()
    }

    /// Sets names below /proc/sys to values.
    pub fn set(&self, settings: &[(&str, &str)]) -> Result<()> {
        self.inside(|| {
            for (name, value) in settings {
                std::fs::write(format!("/proc/sys/{name}"), value)?;
            }
            Ok(())
        })
    }

    /// A change to one of the kernel's tables of rules, as iptables(8) has it: "-A PREROUTING -p tcp --dport 80 -j DNAT --to-destination 10.0.0.1:80".
    pub fn iptables(&self, table: &str, rule: &str) -> Result<()> {
        let Some(program) = find_program("iptables") else { fail!("iptables is not installed") };
        let mut command = Command::new(program);
        self.host(command.args(["-w", "-t", table]).args(rule.split(' ')))?;
        let output = command.output()?;
        if !output.status.success() {
            fail!("iptables -t {table} {rule}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }

    /// What runs in it.
    pub fn processes(&self) -> Result<Vec<u32>> {
        let own = self.place.metadata()?.ino();
        let is_inside = |pid: &u32| {
            std::fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|place| place.ino() == own)
        };
        let all = std::fs::read_dir("/proc")?;
        let pids = all.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        Ok(pids.filter(is_inside).collect())
    }

    /// Joins two by a cable (a pair of veth devices), with these addresses of one network of 24 bits at its ends.
    pub fn join(ends: [(&Network, Ipv4Addr); 2]) -> Result<()> {
        let [(here, _), (there, _)] = ends;
        let other = there.path();
        let line = format!("link add eth0 type veth peer name eth0 netns {}\n", other.display());
        here.inside(|| configure(&line))?;
        for (network, address) in ends {
            let lines = format!("{}link set eth0 up\n", addresses(address, "eth0"));
            network.inside(|| configure(&lines))?;
        }
        Ok(())
    }
}

/// The address of IPv6 that a host has beside this one.
pub fn ipv6(address: Ipv4Addr) -> Ipv6Addr {
    let [.., high, low] = address.to_ipv6_mapped().segments();
    Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, high, low)
}

/// Lines that give a device both.
pub fn addresses(address: Ipv4Addr, device: &str) -> String {
    let ipv6 = ipv6(address);
    format!("address add {address}/24 dev {device}\naddress add {ipv6}/64 dev {device} nodad\n")
}

/// What joins any number of networks: a bridge in a namespace of its own.
///
/// They know each other's Ethernet addresses from the beginning: of those that are found by asking the kernel keeps some hundred for all
/// namespaces together (arp(7), gc_thresh2), and drops packets beyond.
pub struct Switch {
    _network: Network,
}

impl Switch {
    /// Gives each network a device `eth0` with its address, all of one network of 24 bits.
    pub fn join(ends: &[(&Network, Ipv4Addr)]) -> Result<Switch> {
        let switch = Network::new()?;
        let mut lines = "link add br0 type bridge\nlink set br0 up\n".to_owned();
        for (at, (network, _)) in ends.iter().enumerate() {
            let other = network.path();
            lines += &format!("link add port{at} type veth peer name eth0 netns {}\n", other.display());
            lines += &format!("link set port{at} master br0 up\n");
        }
        switch.inside(|| configure(&lines))?;
        for (network, own) in ends {
            let mut lines =
                format!("address add {own}/24 dev eth0\nlink set eth0 address {}\n", ethernet(*own));
            lines += "link set eth0 up\n";
            for (_, other) in ends.iter().filter(|(_, other)| other != own) {
                lines += &format!("neigh add {other} lladdr {} dev eth0 nud permanent\n", ethernet(*other));
            }
            network.inside(|| configure(&lines))?;
        }
        Ok(Switch { _network: switch })
    }
}

/// Of a device with this address.
fn ethernet(address: Ipv4Addr) -> String {
    let [a, b, c, d] = address.octets();
    format!("02:00:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

/// A thread that changes its namespace must be nobody else's.
fn in_thread<T: Send>(act: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| match scope.spawn(act).join() {
        Ok(done) => done,
        Err(_) => fail!("a thread in another network broke down"),
    })
}

/// Without the program `ip`, which not every machine has.
fn loopback_up() -> Result<()> {
    // SAFETY: an all-zero ifreq is valid; the kernel reads one, and writes one.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
            *to = *from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
        let done = libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw mut request);
        let error = std::io::Error::last_os_error();
        libc::close(socket);
        if done == 0 { Ok(()) } else { Err(error.into()) }
    }
}

/// Runs lines of `ip -batch` in the calling thread's namespace.
pub fn configure(lines: &str) -> Result<()> {
    let Some(program) = find_program(PROGRAM) else { fail!("{PROGRAM} is not installed") };
    let mut command = Command::new(program);
    command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(lines.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        fail!("{PROGRAM}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}
