//! What every HTTP server must do: files of all sizes come whole, loads meet no error, restarts lose no request.

use super::{files, python, web};
use harness::lab::{Lab, Side};
use harness::process::Proc;
use harness::{Result, fail, until};
use std::path::Path;
use std::process::ChildStdin;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(40);
const FILE_BYTES: [usize; 7] = [0, 1, 1000, 16_384, 65_537, 1_000_000, LATE_BYTES];
/// More than all buffers on the way hold, so that the connection is there until `sd ss` has shown it.
const LATE_BYTES: usize = 30_000_000;

/// Puts files into `root` and downloads them below `url`.
pub(crate) fn files(lab: &Lab, client: Side, root: &Path, url: &str) -> Result<()> {
    for len in FILE_BYTES {
        let data = files::bytes(len);
        let path = root.join(format!("{len}.bin"));
        if !path.exists() {
            std::fs::write(&path, &data)?;
        }
        let fetch = if len == LATE_BYTES { web::download_late } else { web::download };
        fetch(lab, client, &format!("{url}/{len}.bin"), &data)?;
    }
    Ok(())
}

/// Uploads with PUT or POST; returns what the server answers.
pub(crate) fn upload(lab: &Lab, client: Side, method: &str, url: &str, data: &[u8]) -> Result<Vec<u8>> {
    let path = lab.path().join("upload");
    std::fs::write(&path, data)?;
    let file = format!("@{}", path.display());
    let args = ["-sS", "--fail", "--max-time", "30", "-X", method, "--data-binary", &file, url];
    let output = lab.run(client, "curl", &args, LIMIT)?;
    if !output.stderr.is_empty() {
        fail!("curl {url} wrote to standard error: {:?}", output.stderr);
    }
    Ok(output.stdout)
}

/// wrk with kept connections, or one for each request; its rate.
pub(crate) fn wrk(lab: &Lab, client: Side, url: &str, connections: u32, is_short: bool) -> Result<f64> {
    let connections = format!("-c{connections}");
    // Its own limit of two seconds is what a server that makes one process a second may take with the first answer.
    let mut args = vec!["-t2", connections.as_str(), "-d2s", "--timeout", "8s"];
    if is_short {
        args.extend(["-H", "Connection: close"]);
    }
    args.push(url);
    web::require_clean(&lab.run(client, "wrk", &args, LIMIT)?)
}

/// ab, 20 connections at a time; its rate.
pub(crate) fn ab(lab: &Lab, client: Side, url: &str, requests: u32, is_kept: bool) -> Result<f64> {
    let count = requests.to_string();
    let mut args = vec!["-q", "-c", "20", "-n", count.as_str()];
    if is_kept {
        args.push("-k");
    }
    args.push(url);
    let text = lab.run(client, "ab", &args, LIMIT)?.text();
    let has_failed = !text.contains("Failed requests:        0") || text.contains("Non-2xx");
    if has_failed || !text.contains(&format!("Complete requests:      {count}")) {
        fail!("ab {args:?}: {text:?}");
    }
    let line = text.lines().find_map(|line| line.strip_prefix("Requests per second:"));
    match line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()) {
        Some(rate) => Ok(rate),
        None => fail!("ab gave no rate: {text:?}"),
    }
}

/// Requests over new connections, four at a time, that must all succeed whatever happens meanwhile.
pub(crate) struct Steady {
    process: Proc,
    input: ChildStdin,
}

impl Steady {
    pub(crate) fn start(lab: &Lab, client: Side, port: u16, path: &str, len: usize) -> Result<Steady> {
        let args = [port.to_string(), path.to_owned(), len.to_string(), "4".to_owned()];
        let mut process = python::start(lab, client, "steady.py", &args)?;
        let input = process.stdin()?;
        process.wait_for_text("ready", LIMIT)?;
        Ok(Steady { process, input })
    }

    pub(crate) fn finish(self) -> Result<()> {
        drop(self.input);
        let text = self.process.wait(LIMIT)?.ok()?.text();
        let Some((_, said)) = text.split_once("ready\n") else { fail!("steady.py printed {text:?}") };
        if !said.contains(" requests, 0 errors") || said.starts_with("0 ") {
            fail!("requests failed: {said:?}");
        }
        Ok(())
    }
}

/// Looks until it is so; after a quarter of a minute that is an error.
pub(crate) fn wait_for(is_so: impl FnMut() -> bool, what: &str) -> Result<()> {
    until(what, Duration::from_secs(15), is_so)
}
