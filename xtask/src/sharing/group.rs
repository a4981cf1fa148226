//! Memory within a cgroup: readers that stall, and much more offered to them than the group may have. Over Linux alone that
//! works, and so it has to with rings, which are memory of the group of who sends.

use super::program;
use crate::lab::{Lab, Side};
use crate::process::Proc;
use crate::{Result, fail};
use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const READERS: &str = "100";
const OFFER: &str = "8388608";
const MIB: [u64; 3] = [64, 32, 16];

/// A memory cgroup of its own, which is removed in the end.
struct Group {
    place: PathBuf,
    limit: &'static str,
    most: &'static str,
}

impl Group {
    /// `None` where this may not be, or there is no controller for memory.
    fn new() -> Option<Group> {
        let versions = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"),
            ("/sys/fs/cgroup", "memory.max", "memory.peak"),
        ];
        versions.into_iter().find_map(|(mount, limit, most)| {
            let place = PathBuf::from(mount).join(format!("sd-sharing-{}", std::process::id()));
            fs::create_dir(&place).ok()?;
            let group = Group { place, limit, most };
            group.place.join(limit).exists().then_some(group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel takes a moment to see that the last process is gone.
        for _ in 0..100 {
            if fs::remove_dir(&self.place).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The part: each limit in turn.
pub(super) fn run(lab: &mut Lab) -> Result<String> {
    let Some(group) = Group::new() else {
        return Ok("skipped: no memory cgroup can be made here".to_owned());
    };
    let mut notes = Vec::new();
    for mib in MIB {
        fs::write(group.place.join(group.limit), format!("{mib}M"))?;
        let mut entry = fs::OpenOptions::new().write(true).open(group.place.join("cgroup.procs"))?;
        let mut command =
            lab.command(Side::Sd, &program().to_string_lossy(), &["stalled", READERS, OFFER])?;
        // SAFETY: a write of one byte; zero is who writes.
        unsafe { command.pre_exec(move || entry.write_all(b"0")) };
        let ended = Proc::start(&mut command, "stalled", lab.path())?.wait(LIMIT)?;
        if !ended.status.success() {
            fail!("{mib} MiB for {READERS} readers: {}: {}", ended.status, ended.stderr.trim());
        }
        let most = fs::read_to_string(group.place.join(group.most)).unwrap_or_default();
        let most = most.trim().parse::<u64>().map_or(0, |bytes| bytes >> 20);
        notes.push(format!(
            "{mib} MiB: {}, at most {most} MiB so far",
            String::from_utf8_lossy(&ended.stdout).trim()
        ));
    }
    Ok(notes.join("; "))
}
