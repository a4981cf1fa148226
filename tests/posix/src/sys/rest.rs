//! Time that passes until the others of a subject have done what they were about to do.
//!
//! On a busy machine no number of milliseconds is surely enough for another thread to reach the call that it is to wait
//! in. So a sleep of a subject also lasts until all its other threads and processes, which are those of its process
//! group, sleep in the kernel, are stopped, or have ended.

use std::fs;
use std::time::{Duration, Instant};

/// For so long at most, beyond the time asked for: some subjects have threads that never rest.
const TIMEOUT: Duration = Duration::from_millis(300);

/// Sleeps for so long, and until the others rest.
pub(crate) fn sleep(milliseconds: u64) {
    pause(milliseconds);
    let end = Instant::now() + TIMEOUT;
    // Twice: a lock of somebody's makes others sleep for a moment.
    while !(others_rest() && {
        pause(1);
        others_rest()
    }) && Instant::now() < end
    {
        pause(1);
    }
}

/// Sleeps for so long and no longer.
pub(crate) fn pause(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

fn others_rest() -> bool {
    // SAFETY: neither call has preconditions.
    let (group, own) = unsafe { (libc::getpgrp(), libc::gettid()) };
    rest(group, group, own)
}

/// Whether no thread of a process of the group runs, nor of its descendants, but for this one.
fn rest(process: i32, group: i32, own: i32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let mut tasks = tasks.filter_map(|task| task.file_name().to_str()?.parse::<i32>().ok());
    tasks.all(|task| {
        let folder = format!("/proc/{process}/task/{task}");
        let Ok(stat) = fs::read_to_string(format!("{folder}/stat")) else { return true };
        // The name, in brackets, may hold anything; state, parent and group follow.
        let mut words = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let runs = matches!(words.next(), Some("R" | "D"));
        let is_ours = words.nth(1).and_then(|word| word.parse().ok()) == Some(group);
        let children = fs::read_to_string(format!("{folder}/children")).unwrap_or_default();
        let mut children = children.split_whitespace().filter_map(|word| word.parse().ok());
        !is_ours || (task == own || !runs) && children.all(|child| rest(child, group, own))
    })
}
