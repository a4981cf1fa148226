//! Whose a network namespace is: a tenant may have some of its own, by their files (`sd_keys::hosts`).
//!
//! The kernel has a number for a namespace (SO_NETNS_COOKIE), which only a socket in it tells. So a thread goes there, for which it needs CAP_SYS_ADMIN.
//! That is done when a namespace comes up that is not known, as containers come and go. One to which no file leads is looked for again after a while.
//!
//! # Guarantees
//! * Who is in a namespace of a tenant's own is taken for nobody else, ten seconds after a file leads there at the latest. Where two tenants name it,
//!   its connections stay the kernel's.
//! * However many namespaces users make, files are looked at for a tenth of the time at most.

use crate::hosts::Hosts;
use sd_sys::time::now_ns;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A namespace to which no file leads is looked for again after so long.
const AGAIN_NS: u64 = 10_000_000_000;
/// Files are not looked at again for so long, and for so many times as long as that took; so many of them.
const PAUSE_NS: u64 = 20_000_000;
const PAUSE_FOR_LOOK: u64 = 9;
const FILES_MAX: usize = 4096;
/// So many namespaces are remembered.
const KNOWN_MAX: usize = 1 << 16;
/// Two tenants say that it is theirs. No line has this owner, and no tenant's name this number ([`sd_keys::hosts::tenant_id`]).
const DISPUTED: u32 = u32::MAX;

/// See the module.
#[derive(Default)]
pub(crate) struct Namespaces {
    /// By the kernel's number: the owner, or 0, and when that was found.
    known: HashMap<u64, (u32, u64)>,
    /// Files are not looked at before.
    looks_at: u64,
}

impl Namespaces {
    /// The tenant whose own namespace that is; 0: it is nobody's own. `None`: it is not known yet, and not looked for now.
    pub(crate) fn owner(&mut self, netns: u64, hosts: &Hosts, now: u64) -> Option<u32> {
        if netns == 0 || hosts.namespaces().next().is_none() {
            return Some(0);
        }
        match self.known.get(&netns).copied() {
            Some((owner, at)) if owner != 0 || now - at < AGAIN_NS => return Some(owner),
            known if now < self.looks_at => return known.map(|(owner, _)| owner),
            _ => {}
        }
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        let began = now_ns();
        let found = look(hosts);
        self.looks_at = now + PAUSE_NS.max(PAUSE_FOR_LOOK * (now_ns() - began));
        for (number, owner) in found {
            let place = self.known.entry(number).or_insert((0, now));
            *place = (if place.0 == 0 || place.0 == owner { owner } else { DISPUTED }, now);
        }
        Some(self.known.entry(netns).and_modify(|known| known.1 = now).or_insert((0, now)).0)
    }

    /// Another file holds.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
    }
}

/// The namespaces to which files lead, and whose these are.
fn look(hosts: &Hosts) -> Vec<(u64, u32)> {
    let files: Vec<(u32, PathBuf)> = hosts
        .namespaces()
        .flat_map(|(owner, path)| paths(path).into_iter().map(move |path| (owner, path)))
        .take(FILES_MAX)
        .collect();
    let number = |(owner, path): &(u32, PathBuf)| match number_of(path) {
        Ok(number) => Some((number, *owner)),
        Err(error) => {
            tracing::debug!("engine: {} leads to no network namespace: {error}", path.display());
            None
        }
    };
    // Who goes into another namespace does nothing else any more.
    let went = || files.iter().filter_map(number).collect();
    std::thread::scope(|scope| scope.spawn(went).join()).unwrap_or_default()
}

/// The files that a tenant's line names.
fn paths(path: &str) -> Vec<PathBuf> {
    let Some(start) = path.strip_suffix('*') else { return vec![path.into()] };
    let Some((folder, name)) = start.rsplit_once('/') else { return Vec::new() };
    let folder = if folder.is_empty() { Path::new("/") } else { Path::new(folder) };
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let fits = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|it| it.starts_with(name))
    };
    entries.map(|entry| entry.path()).filter(fits).take(FILES_MAX).collect()
}

/// The calling thread goes there.
fn number_of(path: &Path) -> std::io::Result<u64> {
    // What is no file is not waited for.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let error = |errno: sd_sys::Errno| std::io::Error::from_raw_os_error(errno.0);
    // SAFETY: no pointers. Of the calling thread alone another namespace becomes the current one.
    sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_setns, file.as_raw_fd(), libc::CLONE_NEWNET) })
        .map_err(error)?;
    sd_sys::fd::netns().map_err(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(namespaces: &str) -> Hosts {
        let text = format!("listen 10.0.0.1:7077\n{namespaces}");
        Hosts::parse(&text, Path::new("/nowhere")).unwrap()
    }

    fn own() -> u64 {
        sd_sys::fd::netns().unwrap()
    }

    #[test]
    fn a_namespace_is_found_by_its_file() {
        if sd_sys::fd::geteuid() != 0 {
            return;
        }
        /// Longer than any look takes, and than the pause behind it.
        const STEP_NS: u64 = AGAIN_NS / 2;
        let blue = sd_keys::hosts::tenant_id("blue");
        let (mut all, now) = (Namespaces::default(), 1 << 40);
        assert_eq!(all.owner(own(), &hosts(""), now), Some(0), "no tenant has any");
        let theirs = hosts("tenant blue netns=/proc/self/ns/ne*");
        assert_eq!(all.owner(own(), &theirs, now), Some(blue));
        let other = 1 << 60;
        assert_eq!(all.owner(other, &theirs, now + 1), None, "too soon");
        let now = now + STEP_NS;
        assert_eq!(all.owner(other, &theirs, now), Some(0), "another");
        assert_eq!(all.owner(0, &theirs, now), Some(0), "the kernel does not tell");
        let now = now + AGAIN_NS;
        assert_eq!(all.owner(2 << 60, &theirs, now - 1), Some(0));
        assert_eq!(all.owner(other, &theirs, now), Some(0), "as it was, until files are looked at again");
        all.forget();
        let (now, both) =
            (now + STEP_NS, "netns=/proc/self/ns/net\ntenant red netns=/proc/thread-self/ns/net");
        assert_eq!(all.owner(own(), &hosts(&format!("tenant blue {both}")), now), Some(DISPUTED));
        all.forget();
        let (now, nowhere) = (now + STEP_NS, hosts("tenant blue netns=/nowhere/* netns=/proc/self/status"));
        assert_eq!(all.owner(own(), &nowhere, now), Some(0));
        assert_eq!(all.owner(own(), &theirs, now + AGAIN_NS), Some(blue), "it is looked for again");
    }
}
