//! `sd detach` and `sd attach`: before a checkpoint a process lets go of all that it shares; without one it goes on (ADR 86).

use sd_cli::cli::DetachOptions;
use sd_cli::client::{self, InTheWay};
use sd_cli::failure::{Failure, Result, print};
use sd_cli::place;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// So often it is looked whether they have done it.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Returns when all are no clients of the monitor's any more.
pub(crate) fn main(options: &DetachOptions) -> Result<()> {
    let socket = place::socket(options.socket.as_deref());
    let until = Instant::now() + Duration::from_secs(options.timeout);
    let mut left = asked(&socket, &options.pids, true)?;
    let clients: Vec<u32> = left.iter().map(|(pid, _)| *pid).collect();
    while !left.is_empty() && Instant::now() < until {
        std::thread::sleep(LOOK_EVERY);
        let pids: Vec<u32> = left.iter().map(|(pid, _)| *pid).collect();
        left = asked(&socket, &pids, false)?;
    }
    // The monitor knows them no more before they have let go of everything.
    while left.is_empty() && clients.iter().any(|pid| !has_let_go(*pid)) && Instant::now() < until {
        std::thread::sleep(LOOK_EVERY);
    }
    if let Some(pid) = clients.iter().find(|pid| left.is_empty() && !has_let_go(**pid)) {
        return Err(Failure::new(format!("{pid} is not detached yet: it has begun to, and was too slow")));
    }
    match left.first() {
        None => print(&format!("{} detached\n", options.pids.len())),
        Some((pid, what)) => Err(Failure::new(format!("{pid} is not detached: {}", reason(*pid, *what)))),
    }
}

/// Those that are still there, and what stands in their way.
fn asked(socket: &Path, pids: &[u32], tell: bool) -> Result<Vec<(u32, InTheWay)>> {
    let mut left = Vec::new();
    for &pid in pids {
        let found = client::detach(socket, pid, tell)
            .map_err(|silence| Failure::new(format!("{}: {silence}", socket.display())))?;
        left.extend(found.map(|what| (pid, what)));
    }
    Ok(left)
}

fn reason(pid: u32, what: InTheWay) -> String {
    match what {
        InTheWay { shared: 1.., .. } => format!(
            "{} of its connections were born in shared memory, and have none of the kernel's to go back to (sd monitor --promote=all begins with those)",
            what.shared
        ),
        InTheWay { relatives: 1.., .. } => format!("{} other processes share its sockets, by fork", what.relatives),
        _ if has_threads(pid) => "it has several threads".to_owned(),
        InTheWay { promoted: 1.., .. } => format!("{} of its connections have not gone back yet", what.promoted),
        _ => "it makes no call in which it could: it computes, is stopped, or waits elsewhere than in epoll_wait".to_owned(),
    }
}

fn has_threads(pid: u32) -> bool {
    fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|tasks| tasks.count() > 1)
}

/// Tells processes that were detached that they may go on. Who may open their descriptors may do that.
pub(crate) fn attach(pids: &[u32]) -> Result<()> {
    for &pid in pids {
        let told = tell(pid).map_err(|error| Failure::new(format!("process {pid}: {error}")))?;
        if !told {
            return Err(Failure::new(format!("process {pid} is not detached")));
        }
    }
    print(&format!("{} told\n", pids.len()))
}

/// Whether a process has made the file that says so, as the last thing that it does; who may not look, or has it gone meanwhile, waits for nothing.
fn has_let_go(pid: u32) -> bool {
    file(pid).is_ok_and(|found| found.is_some()) || fs::read_dir(format!("/proc/{pid}/fd")).is_err()
}

/// The byte in the file that a detached process keeps.
fn tell(pid: u32) -> io::Result<bool> {
    let Some(path) = file(pid)? else { return Ok(false) };
    File::options().write(true).open(path)?.write_all_at(&[1], 0)?;
    Ok(true)
}

fn file(pid: u32) -> io::Result<Option<PathBuf>> {
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let path = entry?.path();
        if fs::read_link(&path).is_ok_and(|to| to.as_os_str() == "/memfd:sd-detached (deleted)") {
            return Ok(Some(path));
        }
    }
    Ok(None)
}
