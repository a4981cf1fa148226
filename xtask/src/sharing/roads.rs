//! What `sd ss` says of the road of a connection that the kernel has made: since when, how often and why it changed, and what it waits for;
//! and `sd trace` of its change. Between two network namespaces, where all connections begin so.

use super::across::{Joint, Networks, SERVER, started};
use super::served;
use harness::lab::{Lab, Side};
use harness::process::Proc;
use harness::{Result, fail, product};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);
/// Until a connection that is busy enough is moved: a machine may be too slow for that for a while.
const TRIES: usize = 200;

/// A server, and a client that is told what to send.
struct Talk {
    server: Proc,
    client: Proc,
    orders: ChildStdin,
    told: usize,
    port: String,
}

impl Talk {
    fn begin(lab: &Lab, networks: &Networks, server: Side) -> Result<Talk> {
        let server = started(lab, server, &networks.server, &["steered", "serve"], Stdio::null())?;
        let (server, port) = served(server)?;
        let to = format!("{SERVER}:{port}");
        let mut client = started(lab, Side::Sd, &networks.client, &["steered", &to], Stdio::piped())?;
        client.wait_for_text("connected", PATIENCE)?;
        let orders = client.stdin()?;
        Ok(Talk { server, client, orders, told: 0, port })
    }

    /// Sends so many bytes, with a pause after each, and has all of them back.
    fn say(&mut self, count: usize, pause_ms: u64) -> Result<()> {
        use std::io::Write;
        writeln!(self.orders, "{count} {pause_ms}")?;
        self.told += 1;
        self.client.wait_for_text(&"done\n".repeat(self.told), PATIENCE)
    }

    fn end(self) {
        self.client.kill();
        self.server.kill();
    }

    /// The client's end, and the server's, as `sd ss` tells them.
    fn ends(&self, lab: &Lab) -> Result<[Option<Value>; 2]> {
        let document: Value = serde_json::from_str(&ss(lab, &["--json"])?)?;
        let all = document["connections"].as_array().cloned().unwrap_or_default();
        let named = format!("{SERVER}:{}", self.port);
        let of = |name: &str| all.iter().find(|end| end[name] == named.as_str()).cloned();
        Ok([of("peer"), of("local")])
    }

    /// Is busy until both ends are over shared memory.
    fn until_moved(&mut self, lab: &Lab) -> Result<()> {
        for _ in 0..TRIES {
            self.say(100, 0)?;
            if self.ends(lab)?.iter().flatten().filter(|end| end["path"] == "shm").count() == 2 {
                return Ok(());
            }
        }
        fail!("it was not moved: {:?}", self.ends(lab)?);
    }

    fn client_end(&self, lab: &Lab) -> Result<Value> {
        let [client, _] = self.ends(lab)?;
        client.ok_or_else(|| "the client's end is not shown".into())
    }

    fn server_end(&self, lab: &Lab) -> Result<Value> {
        let [_, server] = self.ends(lab)?;
        server.ok_or_else(|| "the server's end is not shown".into())
    }
}

fn ss(lab: &Lab, args: &[&str]) -> Result<String> {
    let output = Command::new(product::sd()).arg("ss").args(args).env("SD_MONITOR", lab.socket()).output()?;
    if !output.status.success() {
        fail!("sd ss ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The clock by which the monitor tells times.
fn clock_ns(lab: &Lab) -> Result<u64> {
    let document: Value = serde_json::from_str(&ss(lab, &["--json"])?)?;
    document["monitor"]["clock_ns"].as_u64().ok_or_else(|| "the monitor tells no time".into())
}

/// An end that is the kernel's waits for this.
fn waits(end: &Value, what: &str) -> Result<()> {
    let is_so = end["path"] == "kernel" && end["awaits"].as_str().is_some_and(|text| text.starts_with(what));
    if !is_so || end["road_changes"] != 0 || end["road_since_ns"].is_null() {
        fail!("{what:?} was expected of {end}");
    }
    Ok(())
}

/// For root.
pub(super) fn run(lab: &mut Lab) -> Result<String> {
    if !nix::unistd::geteuid().is_root() {
        return Ok("skipped: only root makes network namespaces".to_owned());
    }
    if lab.is_oracle() {
        return Ok("there is no monitor to ask".to_owned());
    }
    let networks = Networks::new(Joint::Cable)?;
    lab.kill_monitor();
    lab.start_monitor_with(&["--promote=earned"])?;
    let note = is_moved(lab, &networks)?;
    stays(lab, &networks, Side::Kernel, "the other end has not offered it")?;
    lab.kill_monitor();
    lab.set_policy("stay\n")?;
    lab.start_monitor_with(&["--promote=earned"])?;
    stays(lab, &networks, Side::Sd, "refused: policy")?;
    Ok(note)
}

/// Few messages, slow ones, many.
fn is_moved(lab: &Lab, networks: &Networks) -> Result<String> {
    let mut talk = Talk::begin(lab, networks, Side::Sd)?;
    talk.say(3, 0)?;
    let end = talk.server_end(lab)?;
    // It has no entry yet.
    if !end["reason"].as_str().is_some_and(|reason| reason.starts_with("it has not lasted yet")) {
        fail!("six calls moved bytes: {end}");
    }
    talk.say(20, 20)?;
    waits(&talk.server_end(lab)?, "too slow")?;
    if !ss(lab, &[])?.contains("not moved: too slow (") {
        fail!("sd ss without --json does not say it");
    }
    let began = clock_ns(lab)?;
    let mut tracer = trace(lab, &talk)?;
    talk.until_moved(lab)?;
    let now = clock_ns(lab)?;
    for end in talk.ends(lab)?.iter().flatten() {
        let since = end["road_since_ns"].as_u64().unwrap_or_default();
        let is_told = end["road_changes"] == 1 && end["road_moved"] == "promoted" && end["awaits"].is_null();
        if !is_told || !(began..=now).contains(&since) {
            fail!("not what happened from {began} to {now}: {end}");
        }
    }
    if let Ok(tracer) = &mut tracer {
        // Both changes between two looks would be told as one.
        tracer.wait_for_text(r#""from":"kernel""#, PATIENCE)?;
    }
    goes_back(lab, &mut talk, &[], 2)?;
    let back = clock_ns(lab)?;
    talk.until_moved(lab)?;
    goes_back(lab, &mut talk, &["--at-once"], 4)?;
    let note = match tracer {
        Ok(tracer) => {
            traced(tracer, &talk, [began, now, back]).map(|()| "both changes were traced".to_owned())?
        }
        Err(why) => format!("not traced: {why}"),
    };
    talk.end();
    Ok(note)
}

/// The client's end is asked to go back, and the server's follows.
fn goes_back(lab: &Lab, talk: &mut Talk, how: &[&str], changes: u64) -> Result<()> {
    let mut command = Command::new(product::sd());
    let pid = talk.client.pid().to_string();
    let output = command
        .args(["demote", "--timeout", "0", &pid])
        .args(how)
        .env("SD_MONITOR", lab.socket())
        .output()?;
    if !output.status.success() {
        fail!("sd demote: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let mut ends = [None, None];
    for _ in 0..TRIES {
        // Few enough that it is not moved again.
        talk.say(1, 0)?;
        ends = talk.ends(lab)?;
        if ends.iter().flatten().all(|end| end["path"] == "kernel") {
            break;
        }
    }
    let [client, server] = &ends;
    for (end, why) in [(client, "asked for"), (server, "the other end went to the kernel")] {
        let end = end.as_ref().ok_or("an end is not shown any more")?;
        let is_open = end["state"] == "ESTABLISHED";
        if !is_open || end["path"] != "kernel" || end["road_changes"] != changes || end["road_moved"] != why {
            fail!("not moved back since {why:?}: {end}");
        }
    }
    if !ss(lab, &[])?.contains("was moved back: asked for") {
        fail!("sd ss without --json does not say it: {}", ss(lab, &[])?);
    }
    Ok(())
}

/// A busy connection that is not moved says why.
fn stays(lab: &Lab, networks: &Networks, server: Side, why: &str) -> Result<()> {
    let mut talk = Talk::begin(lab, networks, server)?;
    let mut said = Ok(());
    for _ in 0..TRIES {
        talk.say(100, 0)?;
        said = talk.client_end(lab).and_then(|end| waits(&end, why));
        if said.is_ok() {
            break;
        }
    }
    talk.end();
    said
}

/// Looks at the server until it is ended, from a moment on at which the connection is the kernel's. An error's text: it cannot.
fn trace(lab: &Lab, talk: &Talk) -> Result<std::result::Result<Proc, String>> {
    let mut command = Command::new(product::sd());
    command.args(["trace", "--json", &talk.server.pid().to_string()]).env("SD_MONITOR", lab.socket());
    let mut tracer = Proc::start(command.stdin(Stdio::null()), "trace", lab.path())?;
    let has_begun = tracer.wait_for_text(r#""road":"kernel""#, PATIENCE);
    let errors = tracer.stderr_so_far();
    if errors.contains("no probe can be set") {
        return Ok(Err(errors.trim().to_owned()));
    }
    has_begun?;
    Ok(Ok(tracer))
}

/// Both changes were told, each with the time at which it was.
fn traced(mut tracer: Proc, talk: &Talk, times: [u64; 3]) -> Result<()> {
    tracer.wait_for_text(r#""from":"shm""#, PATIENCE)?;
    tracer.signal(Signal::SIGINT);
    let text = tracer.wait(PATIENCE)?.ok()?.text();
    let events: Vec<Value> = text.lines().map(serde_json::from_str).collect::<std::result::Result<_, _>>()?;
    let local = format!("{SERVER}:{}", talk.port);
    let roads: Vec<&Value> = events.iter().filter(|event| event["local"] == local.as_str()).collect();
    for (from, to, began, end) in
        [("kernel", "shm", times[0], times[1]), ("shm", "kernel", times[1], times[2])]
    {
        let change = roads.iter().find(|event| event["road"] == to && event["from"] == from);
        let at = change.and_then(|change| change["at_ns"].as_u64());
        if !at.is_some_and(|at| (began..=end).contains(&at)) {
            fail!("the change to {to} from {began} to {end} was not told: {text}");
        }
    }
    Ok(())
}
