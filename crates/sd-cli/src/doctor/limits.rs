//! Limits that a user or an administrator has set: descriptors, memory, mappings, processors.

use super::{Check, read};
use std::path::Path;

/// Address space for one channel and one slab, with tables of the process's own.
const MAPPING_BYTES: u64 = (sd_shm::channel::SEGMENT_LEN + sd_shm::slab::LEN + sd_shm::slab::LEN / 8) as u64;
const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

pub(super) fn checks() -> Vec<Check> {
    vec![descriptors(), memory(), sizes(), overcommit(), huge_pages(), mappings(), processors()]
}

fn limit(resource: libc::__rlimit_resource_t) -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes one rlimit.
    unsafe { libc::getrlimit(resource, &mut limit) };
    limit
}

fn descriptors() -> Check {
    let name = "descriptors";
    let libc::rlimit { rlim_cur: soft, rlim_max: hard } = limit(libc::RLIMIT_NOFILE);
    let text = format!("RLIMIT_NOFILE is {soft} of at most {hard}");
    match soft {
        0..64 => Check::fail(name, text, "ulimit -n 1024; below 64 connections go to the kernel"),
        64..1024 => Check::warn(name, text, "ulimit -n 1024 or more, if programs have many connections"),
        _ => Check::ok(name, text),
    }
}

/// A memfd is not bound by the size of /dev/shm, but by memory and by the memory cgroup.
fn memory() -> Check {
    let name = "shared memory";
    let meminfo = read("/proc/meminfo");
    let available = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available =
        available.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10;
    let cgroup = cgroup_left();
    let left = cgroup.map_or(available, |left| left.min(available));
    let bound =
        if cgroup.is_some_and(|left| left < available) { "the memory cgroup leaves" } else { "there are" };
    let text =
        format!("{bound} {} MiB (memfd segments count there, /dev/shm's size does not matter)", left / MIB);
    match left / MIB {
        0..16 => {
            Check::fail(name, text, "free memory or raise the cgroup's limit; connections go to the kernel")
        }
        16..256 => {
            Check::warn(name, text, "busy connections take up to 4 MiB each; free memory or raise the limit")
        }
        _ => Check::ok(name, text),
    }
}

/// What the memory cgroup has left, if it has a limit; version 2 or 1.
fn cgroup_left() -> Option<u64> {
    let groups = read("/proc/self/cgroup");
    groups
        .lines()
        .filter_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?.trim_start_matches('/'));
            let number = |file: std::path::PathBuf| read(file.to_str()?).parse::<u64>().ok();
            let (root, max, used) = match controllers {
                "" => (Path::new("/sys/fs/cgroup"), "memory.max", "memory.current"),
                "memory" => {
                    (Path::new("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes")
                }
                _ => return None,
            };
            // Inside a container the path may be the host's; the root is then the container's own.
            let folder =
                [root.join(path), root.to_owned()].into_iter().find(|folder| folder.join(max).exists())?;
            let max = number(folder.join(max)).filter(|max| *max < u64::MAX / 4)?;
            Some(max.saturating_sub(number(folder.join(used))?))
        })
        .min()
}

/// Limits that stop large sparse segments from being made or mapped.
fn sizes() -> Check {
    let name = "size limits";
    let (space, file) = (limit(libc::RLIMIT_AS).rlim_cur, limit(libc::RLIMIT_FSIZE).rlim_cur);
    let needed = MAPPING_BYTES.div_ceil(GIB);
    if space < MAPPING_BYTES * 2 {
        let text = format!("RLIMIT_AS is {} KiB", space / 1024);
        return Check::fail(
            name,
            text,
            format!("ulimit -v unlimited; {needed} GiB of addresses are needed per peer"),
        );
    }
    if file < MAPPING_BYTES {
        let text = format!("RLIMIT_FSIZE is {} KiB", file / 1024);
        return Check::fail(name, text, "ulimit -f unlimited; it bounds shared memory segments as well");
    }
    Check::ok(name, "RLIMIT_AS and RLIMIT_FSIZE leave room for segments")
}

fn overcommit() -> Check {
    let name = "overcommit";
    match read("/proc/sys/vm/overcommit_memory").as_str() {
        "2" => Check::fail(
            name,
            "vm.overcommit_memory is 2: a page of a segment could be refused when it is touched (SIGBUS)",
            "vm.overcommit_memory=0 or 1; with 2 connections go to the kernel",
        ),
        mode => Check::ok(name, format!("vm.overcommit_memory is {mode}")),
    }
}

fn huge_pages() -> Check {
    let name = "huge pages";
    let text = read("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let mode = text.split(['[', ']']).nth(1).unwrap_or("never");
    match mode {
        "always" | "force" | "within_size" => Check::warn(
            name,
            format!("shared memory gets huge pages ({mode}): each connection takes megabytes"),
            "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
        ),
        mode => Check::ok(name, format!("shared memory gets small pages ({mode})")),
    }
}

fn mappings() -> Check {
    let name = "mappings";
    let text = read("/proc/sys/vm/max_map_count");
    match text.parse::<u64>() {
        Ok(max) if max < 65530 => Check::warn(
            name,
            format!("vm.max_map_count is {max}"),
            "vm.max_map_count=65530; each peer process takes a few mappings",
        ),
        Ok(max) => Check::ok(name, format!("vm.max_map_count is {max}")),
        Err(_) => Check::warn(name, "vm.max_map_count cannot be read", "mount /proc"),
    }
}

fn processors() -> Check {
    let name = "processors";
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    match cpus {
        1 => Check::warn(
            name,
            "one processor may be used",
            "both ends of a connection share it, so that each message costs a switch between them",
        ),
        n => Check::ok(name, format!("{n} may be used")),
    }
}
