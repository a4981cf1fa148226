//! Redis: server, command line, benchmark, with us on both sides, on one, on none.

use super::{Scenario, files};
use harness::lab::{Lab, Side};
use harness::process::{Proc, free_port};
use harness::{Result, fail};
use std::io::Write;
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("redis-sd-server-sd-client", PROGRAMS, |lab| all(lab, Side::Sd, Side::Sd)),
    Scenario::new("redis-sd-server-kernel-client", PROGRAMS, |lab| all(lab, Side::Sd, Side::Kernel)),
    Scenario::new("redis-kernel-server-sd-client", PROGRAMS, |lab| all(lab, Side::Kernel, Side::Sd)),
    Scenario::new("redis-kernel-server-kernel-client", PROGRAMS, |lab| all(lab, Side::Kernel, Side::Kernel)),
    Scenario::new("redis-pubsub", PROGRAMS, publish),
    Scenario::new("redis-listener-shown", PROGRAMS, listener_shown).ours(),
];

pub(super) const PROGRAMS: &[&str] = &["redis-server", "redis-cli", "redis-benchmark"];
const LIMIT: Duration = Duration::from_secs(30);
const VALUE_BYTES: [usize; 9] = [1, 2, 100, 4096, 65_536, 100_000, 1 << 20, 5_000_001, 16 << 20];

pub(crate) struct Redis {
    pub(crate) server: Proc,
    port: String,
    /// Where its clients are: nothing, or a folder and `/`.
    folder: String,
}

impl Redis {
    pub(crate) fn start(lab: &Lab, side: Side) -> Result<Redis> {
        Redis::start_on(lab, side, free_port()?)
    }

    pub(crate) fn start_on(lab: &Lab, side: Side, port: u16) -> Result<Redis> {
        Redis::start_with(lab, side, port, &["--save", "", "--appendonly", "no"])
    }

    pub(crate) fn start_with(lab: &Lab, side: Side, port: u16, extra: &[&str]) -> Result<Redis> {
        Redis::start_of(lab, side, port, extra, [""; 2])
    }

    /// The folders of the server and of its clients.
    fn start_of(lab: &Lab, side: Side, port: u16, extra: &[&str], folders: [&str; 2]) -> Result<Redis> {
        let text = port.to_string();
        let mut args = vec!["--port", &text, "--bind", "127.0.0.1"];
        args.extend(extra);
        let server = lab.serve(side, port, &format!("{}redis-server", folders[0]), &args)?;
        Ok(Redis { server, port: text, folder: folders[1].to_owned() })
    }

    fn program(&self, name: &str) -> String {
        format!("{}{name}", self.folder)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port.parse().unwrap_or(0)
    }

    /// What redis-cli prints, less its line end.
    pub(crate) fn cli(&self, lab: &Lab, side: Side, args: &[&str]) -> Result<String> {
        let mut all = vec!["-p", self.port.as_str()];
        all.extend(args);
        let output = lab.run(side, &self.program("redis-cli"), &all, LIMIT)?;
        if !output.stderr.is_empty() {
            fail!("redis-cli {args:?} wrote to standard error: {:?}", output.stderr);
        }
        Ok(output.text().trim_end_matches('\n').to_owned())
    }

    pub(crate) fn expect(&self, lab: &Lab, side: Side, args: &[&str], wanted: &str) -> Result<()> {
        let got = self.cli(lab, side, args)?;
        if got != wanted {
            fail!("redis-cli {args:?}: got {got:?}, wanted {wanted:?}");
        }
        Ok(())
    }

    pub(crate) fn start_benchmark(&self, lab: &Lab, side: Side, args: &[&str]) -> Result<Proc> {
        let mut all = vec!["-h", "127.0.0.1", "-p", self.port.as_str(), "--csv"];
        all.extend(args);
        lab.start(side, &self.program("redis-benchmark"), &all)
    }

    /// Runs redis-benchmark to its end; it must report every one of `tests` and no error.
    pub(crate) fn benchmark(&self, lab: &Lab, side: Side, tests: usize, args: &[&str]) -> Result<()> {
        let output = self.start_benchmark(lab, side, args)?.wait(LIMIT)?.ok()?;
        let text = output.text();
        let reported =
            text.lines().filter(|line| line.starts_with('"') && !line.contains("\"test\"")).count();
        if reported != tests || text.contains("rror") || output.stderr.contains("rror") {
            fail!("redis-benchmark {args:?}: wanted {tests} results: {text:?} {:?}", output.stderr);
        }
        Ok(())
    }

    pub(crate) fn stop(self) -> Result<()> {
        self.server.terminate(Duration::from_secs(5))?.ok()?;
        Ok(())
    }
}

fn all(lab: &mut Lab, server: Side, client: Side) -> Result<()> {
    all_of(lab, server, client, [""; 2])
}

/// The server and its clients are in these folders, whose names end with `/`.
pub(super) fn all_of(lab: &Lab, server: Side, client: Side, folders: [&str; 2]) -> Result<()> {
    let quiet = ["--save", "", "--appendonly", "no"];
    let redis = Redis::start_of(lab, server, free_port()?, &quiet, folders)?;
    let watch = lab.watch(redis.port());
    redis.expect(lab, client, &["PING"], "PONG")?;
    for len in VALUE_BYTES {
        round_trip(lab, client, &redis, len)?;
    }
    redis.benchmark(lab, client, 2, &["-t", "set,get", "-c", "50", "-n", "40000"])?;
    redis.benchmark(lab, client, 2, &["-t", "set,get", "-c", "1", "-n", "5000"])?;
    redis.benchmark(lab, client, 2, &["-t", "set,get", "-P", "16", "-n", "100000"])?;
    redis.benchmark(lab, client, 2, &["-t", "set,get", "-d", "200000", "-c", "8", "-n", "2000"])?;
    redis.benchmark(lab, client, 2, &["-t", "set,get", "--threads", "2", "-c", "20", "-n", "20000"])?;
    pipe(lab, client, &redis)?;
    lab.check(watch, server, client)?;
    redis.expect(lab, client, &["DBSIZE"], &(VALUE_BYTES.len() + 20_001).to_string())?;
    redis.stop()
}

/// A binary-safe value of this size comes back as it went.
fn round_trip(lab: &Lab, client: Side, redis: &Redis, len: usize) -> Result<()> {
    // Bytes that are no line ends, since redis-cli takes one off the end of its input.
    let value: Vec<u8> = files::bytes(len).into_iter().map(|byte| byte | 0x40).collect();
    let path = lab.path().join(format!("value-{len}"));
    std::fs::write(&path, &value)?;
    let key = format!("value:{len}");
    let set = ["-p", &redis.port, "-x", "SET", &key];
    let said = lab.run_with_input(client, &path, &redis.program("redis-cli"), &set, LIMIT)?.text();
    if said.trim() != "OK" {
        fail!("SET of {len} bytes: {said:?}");
    }
    let got = lab.run(client, &redis.program("redis-cli"), &["-p", &redis.port, "GET", &key], LIMIT)?.stdout;
    let got = got.strip_suffix(b"\n").unwrap_or(&got);
    files::require_same(&format!("GET of {len} bytes"), got, &value)
}

/// Twenty thousand commands at once through `redis-cli --pipe`.
fn pipe(lab: &Lab, client: Side, redis: &Redis) -> Result<()> {
    let path = lab.path().join("commands");
    let mut commands = std::io::BufWriter::new(std::fs::File::create(&path)?);
    for index in 0..20_000 {
        let key = format!("pipe:{index}");
        write!(commands, "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n$5\r\n{index:05}\r\n", key.len())?;
    }
    commands.flush()?;
    let args = ["-p", &redis.port, "--pipe"];
    let said = lab.run_with_input(client, &path, &redis.program("redis-cli"), &args, LIMIT)?.text();
    if !said.contains("errors: 0, replies: 20000") {
        fail!("redis-cli --pipe: {said:?}");
    }
    redis.expect(lab, client, &["GET", "pipe:19999"], "19999")
}

/// Two subscribers, one with us and one without, get every message in order.
fn publish(lab: &mut Lab) -> Result<()> {
    const MESSAGES: usize = 500;
    let redis = Redis::start(lab, Side::Sd)?;
    let watch = lab.watch(redis.port());
    let subscribers = [Side::Sd, Side::Kernel].map(|side| {
        let mut subscriber = lab.start(side, "redis-cli", &["-p", &redis.port, "SUBSCRIBE", "news"])?;
        subscriber.wait_for_text("subscribe\nnews\n1", LIMIT)?;
        Result::Ok(subscriber)
    });
    let path = lab.path().join("news");
    let text: String = (0..MESSAGES).map(|index| format!("PUBLISH news message-{index}\n")).collect();
    std::fs::write(&path, text)?;
    let said = lab.run_with_input(Side::Sd, &path, "redis-cli", &["-p", &redis.port], LIMIT)?.text();
    if said.lines().filter(|line| *line == "2").count() != MESSAGES {
        fail!("not every message reached both subscribers: {:?}", harness::process::tail(&said, 200));
    }
    // All took a few milliseconds, and the subscribers are still there.
    watch.iter().for_each(harness::ss::Watch::look);
    for subscriber in subscribers {
        let mut subscriber = subscriber?;
        subscriber.wait_for_text(&format!("message-{}\n", MESSAGES - 1), LIMIT)?;
        let text = subscriber.stdout_so_far();
        let got: Vec<&str> = text.lines().filter(|line| line.starts_with("message-")).collect();
        let wanted: Vec<String> = (0..MESSAGES).map(|index| format!("message-{index}")).collect();
        if got != wanted {
            fail!("a subscriber got {} messages, not {MESSAGES} in order", got.len());
        }
    }
    lab.check_program(watch, "redis-cli")?;
    redis.stop()
}

fn listener_shown(lab: &mut Lab) -> Result<()> {
    let redis = Redis::start(lab, Side::Sd)?;
    let wanted = format!("127.0.0.1:{}", redis.port);
    let listeners = lab.snapshot()?.listeners;
    if !listeners.contains(&wanted) {
        fail!("sd ss shows no listener {wanted}, but {listeners:?}");
    }
    redis.stop()
}
