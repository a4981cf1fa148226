//! What is different inside of a container: namespaces, and what was mounted into them.

use super::{Check, read};
use sd_cli::client::Silence;
use serde_json::Value;
use std::path::Path;

/// The first PID namespace of a machine always has this number (`PROC_PID_INIT_INO`).
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

pub(super) fn checks(answer: &Result<Value, Silence>) -> Vec<Check> {
    vec![user(), monitor_elsewhere(answer), loopback()]
}

/// Whether this is a container, as far as that can be seen.
pub(super) fn is_inside() -> bool {
    let marks = ["/.dockerenv", "/run/.containerenv"];
    let has_own_pids =
        || std::fs::read_link("/proc/self/ns/pid").is_ok_and(|to| to.as_os_str() != FIRST_PID_NAMESPACE);
    marks.iter().any(|mark| Path::new(mark).exists())
        || std::env::var_os("container").is_some()
        || has_own_pids()
}

/// Whether something was mounted at just this place (proc_pid_mountinfo(5)).
pub(super) fn is_mounted_at(path: &Path) -> bool {
    let text = read("/proc/self/mountinfo");
    text.lines().any(|line| line.split(' ').nth(4).is_some_and(|at| Path::new(at) == path))
}

/// Whom this user is for a monitor outside.
fn user() -> Check {
    let name = "user namespace";
    let user = sd_sys::fd::geteuid();
    let map = read("/proc/self/uid_map");
    match outside(&map, user) {
        Some(outside) if map.split_whitespace().eq(["0", "0", "4294967295"]) => {
            Check::ok(name, format!("the first one; user {outside}"))
        }
        Some(outside) => {
            Check::ok(name, format!("one of its own: user {user} is user {outside} of the one around it"))
        }
        None => Check::fail(
            name,
            format!("this user has no number here, and is shown as {user}"),
            "map the user into this user namespace (newuidmap, or runAsUser of the container)",
        ),
    }
}

/// What the user is called in the namespace around this one (user_namespaces(7)).
fn outside(map: &str, user: u32) -> Option<u64> {
    map.lines().find_map(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let mut next = || numbers.next()?.ok();
        let (first, out, count) = (next()?, next()?, next()?);
        let step = u64::from(user).checked_sub(first).filter(|step| *step < count)?;
        Some(out + step)
    })
}

fn monitor_elsewhere(answer: &Result<Value, Silence>) -> Check {
    let name = "monitor's network";
    let theirs = answer.as_ref().ok().and_then(|status| status["netns"].as_u64());
    match (theirs, sd_sys::fd::netns()) {
        (Some(theirs), Ok(own)) if theirs != own => Check::warn(
            name,
            format!("the monitor is in network namespace {theirs}, this is {own}"),
            "programs of one namespace reach each other over shared memory, those of two begin over the kernel",
        ),
        (Some(_), Ok(_)) => Check::ok(name, "the monitor is in this network namespace"),
        _ => Check::ok(name, "not known, without a monitor"),
    }
}

/// A network namespace begins with its loopback interface down, and then nothing in there can be reached.
fn loopback() -> Check {
    let name = "loopback";
    match is_up(c"lo") {
        Ok(true) => Check::ok(name, "lo is up"),
        Ok(false) => Check::fail(name, "lo is down in this network namespace", "ip link set lo up"),
        Err(error) => {
            Check::warn(name, format!("there is no lo: {error}"), "programs cannot reach 127.0.0.1")
        }
    }
}

fn is_up(interface: &std::ffi::CStr) -> std::io::Result<bool> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: a request of zeros is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(interface.to_bytes()) {
        *to = *from as libc::c_char;
    }
    // SAFETY: the request is valid, and the kernel writes within it.
    let done = unsafe {
        libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&socket), libc::SIOCGIFFLAGS, &raw mut request)
    };
    if done != 0 {
        return Err(sd_cli::failure::last_os_error());
    }
    // SAFETY: SIOCGIFFLAGS fills this member.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(i32::from(flags) & libc::IFF_UP != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_outside() {
        assert_eq!(outside("0 0 4294967295", 7), Some(7));
        assert_eq!(outside("0 1000 1\n1 100000 65536", 0), Some(1000));
        assert_eq!(outside("0 1000 1\n1 100000 65536", 3), Some(100_002));
        assert_eq!(outside("0 1000 1", 65534), None);
        assert_eq!(outside("", 0), None);
    }
}
