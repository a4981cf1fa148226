//! What the kernel and the C library must be able to do.

use super::{Check, read};
use sd_cli::failure::os_error;
use sd_sys::Errno;
use sd_sys::futex::Scope;
use std::sync::atomic::AtomicU32;

/// SO_NETNS_COOKIE came with it, the youngest of what we need.
const KERNEL_MIN: (u32, u32) = (5, 14);
/// `__libc_single_threaded` came with it.
const GLIBC_MIN: (u32, u32) = (2, 34);

pub(super) fn checks() -> Vec<Check> {
    vec![kernel(), glibc(), memfd(), futex(), eventfd(), pidfd(), namespace(), confinement()]
}

fn kernel() -> Check {
    let release = read("/proc/sys/kernel/osrelease");
    version("kernel", "Linux", &release, KERNEL_MIN)
}

fn glibc() -> Check {
    // SAFETY: returns a static C string.
    let text = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    version("C library", "glibc", &text.to_string_lossy(), GLIBC_MIN)
}

fn version(name: &'static str, what: &str, text: &str, min: (u32, u32)) -> Check {
    match major_minor(text) {
        Some(found) if found >= min => Check::ok(name, format!("{what} {text}")),
        Some(_) => Check::fail(
            name,
            format!("{what} {text}"),
            format!("{what} {}.{} or later is needed", min.0, min.1),
        ),
        None => Check::warn(
            name,
            format!("{what} version {text:?} is not understood"),
            "see whether the self-test passes",
        ),
    }
}

fn major_minor(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn memfd() -> Check {
    let name = "memfd";
    let fd = match sd_sys::mem::memfd_sealed(c"sd-doctor", 4096) {
        Ok(fd) => fd,
        Err(error) => {
            let advice = "a seccomp filter or a full memory cgroup forbids sealed shared memory";
            return Check::fail(name, os_error(error).to_string(), advice);
        }
    };
    let shrinks = sd_sys::mem::ftruncate(fd.raw(), 0).is_ok();
    let mapped = sd_sys::mem::map_shared(fd.raw(), 4096, true);
    match (shrinks, mapped) {
        (true, _) => {
            Check::fail(name, "a sealed segment can be shrunk", "this kernel's memfd seals do not hold")
        }
        (_, Err(error)) => Check::fail(name, os_error(error).to_string(), "raise RLIMIT_AS"),
        (false, Ok(page)) => {
            // SAFETY: the fresh mapping from above, used by nobody.
            unsafe { sd_sys::mem::unmap(page, 4096) };
            Check::ok(name, "sealed shared memory works")
        }
    }
}

fn futex() -> Check {
    let word = AtomicU32::new(0);
    let differs = sd_sys::futex::wait(&word, 1, None, Scope::Shared);
    let times_out = sd_sys::futex::wait(&word, 0, Some(1000), Scope::Shared);
    if differs == Err(Errno::EAGAIN) && times_out == Err(Errno::ETIMEDOUT) {
        Check::ok("futex", "shared futexes work")
    } else {
        Check::fail(
            "futex",
            format!("wait gave {differs:?} and {times_out:?}"),
            "a seccomp filter forbids futex(2)",
        )
    }
}

fn eventfd() -> Check {
    let fd = match sd_sys::fd::eventfd(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) {
        Ok(fd) => fd,
        Err(error) => {
            return Check::fail("eventfd", os_error(error).to_string(), "a seccomp filter forbids it");
        }
    };
    match wakes_epoll(fd.raw()) {
        Ok(true) => Check::ok("eventfd", "wakes epoll"),
        _ => Check::fail("eventfd", "does not wake epoll", "this kernel cannot be used"),
    }
}

/// Whether each signal is an edge, behind the one that says that it is watched.
fn wakes_epoll(eventfd: i32) -> sd_sys::Result<bool> {
    let epoll = sd_sys::fd::epoll_create()?;
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: room for one event.
    let mut has_news = || unsafe { sd_sys::fd::epoll_pwait(epoll.raw(), &mut event, 1, 0, std::ptr::null()) };
    sd_sys::fd::epoll_ctl(epoll.raw(), libc::EPOLL_CTL_ADD, eventfd, sd_sys::fd::EVENTFD_EDGE, 0)?;
    let (first, second) = (has_news()?, has_news()?);
    sd_sys::fd::eventfd_signal(eventfd);
    Ok((first, second, has_news()?) == (1, 0, 1))
}

fn pidfd() -> Check {
    match sd_sys::fd::pidfd_open(sd_sys::fd::getpid()) {
        Ok(_) => Check::ok("pidfd", "the monitor sees processes end"),
        Err(error) => {
            Check::fail("pidfd", os_error(error).to_string(), "a seccomp filter forbids pidfd_open(2)")
        }
    }
}

fn namespace() -> Check {
    let name = "network namespace";
    match sd_sys::fd::netns() {
        Ok(cookie) => Check::ok(name, format!("SO_NETNS_COOKIE works: this is namespace {cookie}")),
        Err(error) => Check::fail(
            name,
            format!("SO_NETNS_COOKIE: {}", os_error(error)),
            "Linux 5.14 or later is needed, to keep namespaces apart",
        ),
    }
}

/// What may be forbidden to us, or to the programs we are loaded into.
fn confinement() -> Check {
    let status = read("/proc/self/status");
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map_or("", str::trim);
    let traced = field("TracerPid:") != "0" && !field("TracerPid:").is_empty();
    let filtered = field("Seccomp:") == "2";
    let name = "confinement";
    match (traced, filtered) {
        (true, _) => Check::warn(
            name,
            format!("process {} traces this one", field("TracerPid:")),
            "works, but a tracer's stops show in every latency",
        ),
        (_, true) if !sd_sys::filters::let_us_work() => Check::fail(
            name,
            "a seccomp filter kills for calls that the library makes, so it does nothing in programs under this filter",
            "let the filter refuse with an error instead of killing (SystemCallErrorNumber=EPERM), or allow what is needed",
        ),
        (_, true) => Check::warn(
            name,
            "a seccomp filter is in force",
            "if the lines around this one are ok, it allows what is needed",
        ),
        _ => Check::ok(name, "no seccomp filter, no tracer; setuid and static programs use the kernel path"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(major_minor("6.18.44-fc-v669"), Some((6, 18)));
        assert_eq!(major_minor("2.36"), Some((2, 36)));
        assert_eq!(major_minor("six"), None);
        assert_eq!(version("x", "Linux", "4.19.0", KERNEL_MIN).verdict, super::super::Verdict::Fail);
    }
}
