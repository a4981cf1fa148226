//! `cargo xtask test` and `cargo xtask ci`: every check, in order, with its time; at the end, once more, what went
//! wrong, and one closing line.

use crate::gist::Gist;
use harness::report::Count;
use harness::{Result, install, product, scratch};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

/// A step's name, what it counted, how long it took, and what of its output is shown again.
struct Step {
    name: String,
    count: Count,
    seconds: f64,
    again: Vec<String>,
}

#[derive(Default)]
struct Steps {
    steps: Vec<Step>,
}

/// What a step's command has said.
struct Said {
    is_ok: bool,
    count: Count,
    gist: Gist,
}

impl Steps {
    /// A command whose closing lines are counted. A failure that no line counts is one.
    fn tests(&mut self, name: &str, command: &mut Command) {
        self.step(name, command, |said| {
            let is_silent = said.count == Count::default();
            let is_uncounted = is_silent || (!said.is_ok && said.count.failed == 0);
            Count { failed: said.count.failed + usize::from(is_uncounted), ..said.count }
        });
    }

    /// A command that passes or fails as a whole.
    fn command(&mut self, name: &str, command: &mut Command) {
        self.step(name, command, |said| Count::one(said.is_ok));
    }

    /// Runs a step, whose failure is counted and does not stop the others.
    fn step(&mut self, name: &str, command: &mut Command, count: fn(&Said) -> Count) {
        println!("\n==> {name}");
        let start = Instant::now();
        let (count, again) = match said(command) {
            Ok(said) => {
                let count = count(&said);
                (count, said.gist.lines(count.failed == 0))
            }
            Err(error) => (Count::one(false), vec![error.to_string()]),
        };
        let seconds = start.elapsed().as_secs_f64();
        self.steps.push(Step { name: name.to_owned(), count, seconds, again });
    }

    /// Prints the times, once more what went wrong, and the closing line.
    fn finish(self) -> Result<()> {
        println!("\n==> summary");
        let mut total = Count::default();
        for step in &self.steps {
            println!("{:<16} {:>7.1} s  {}", step.name, step.seconds, part(step.count));
            total.add(step.count);
        }
        let seconds: f64 = self.steps.iter().map(|step| step.seconds).sum();
        println!("{:<16} {seconds:>7.1} s", "together");
        for step in self.steps.iter().filter(|step| !step.again.is_empty()) {
            println!("\n==> {}, once more: {}", step.name, part(step.count));
            step.again.iter().for_each(|line| println!("{line}"));
        }
        println!("\n{}", total.line());
        if total.failed > 0 {
            scratch::clean();
            std::process::exit(1);
        }
        Ok(())
    }
}

/// A count that is only a part: the closing line of all comes last and stands alone.
fn part(count: Count) -> String {
    count.line().replace(',', ";")
}

/// Runs a command, passes both of its outputs on as they come, and adds its closing lines up.
fn said(command: &mut Command) -> Result<Said> {
    let (read, write) = std::io::pipe()?;
    let mut child = command.stdin(Stdio::null()).stdout(write.try_clone()?).stderr(write).spawn()?;
    // It holds the other end, and the reader would wait for that too.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (mut count, mut gist) = (Count::default(), Gist::default());
    for line in BufReader::new(read).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        gist.add(&line);
        match Count::parse(&line) {
            Some(closing) => {
                count.add(closing);
                println!("  {}", line.trim().replace(',', ";"));
            }
            None => println!("{line}"),
        }
    }
    Ok(Said { is_ok: child.wait()?.success(), count, gist })
}

/// Subjects about what a pump carries.
const PUMPED: &str = "stream/,close/,ends/,shutdown/,urgent/,backlog/,connect/,siblings/,signals/,epoll_edge/,fork_served/,\
    idle_sleeper/poll_many,idle_sleeper/more_bytes,idle_busy/memory_goes";

/// Subjects about what is in the way when a connection changes its road.
const PROMOTED: &str = "stream/,close/,ends/,shutdown/,nonblocking/,tokens/,epoll_once/,epoll_oneshot/,errnos/vector_flags,\
    odd/positions,cancel/,privileges/threads,fork_served/";

/// This program again.
fn ourselves(args: &[&str]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(args);
    Ok(command)
}

pub(crate) fn test(is_fast: bool) -> Result<()> {
    let mut steps = Steps::default();
    test_steps(&mut steps, is_fast)?;
    steps.finish()
}

fn test_steps(steps: &mut Steps, is_fast: bool) -> Result<()> {
    let missing = install::missing();
    if !missing.is_empty()
        && let Err(error) = install::run(&missing)
    {
        // Scenarios without their program are counted as skipped.
        println!("not everything could be installed: {error}");
    }
    steps.command("build", &mut ourselves(&["build"])?);
    // The fuzz targets (control messages, a live monitor) run for so long each.
    let fuzz_seconds = if is_fast { "1" } else { "60" };
    let mut tests = product::cargo(&["test", "--workspace", "--no-fail-fast"]);
    steps.tests("cargo test", tests.env("SD_FUZZ_SECONDS", fuzz_seconds));
    if !is_fast {
        steps.tests("loom", &mut loom());
        steps.tests("models", &mut models());
    }
    steps.tests("posix", &mut ourselves(&["posix"])?);
    // The whole is for who changes links: `cargo xtask posix --pump`.
    let through_pump = ["posix", "--pump", "--only", PUMPED];
    steps.tests("posix, pump", &mut ourselves(&through_pump)?);
    // Likewise; the whole takes minutes.
    let promoted = ["posix", "--promote", "--only", PROMOTED];
    steps.tests("posix, promoted", &mut ourselves(&promoted)?);
    let deaths = if is_fast { "3" } else { "8" };
    let sharing = ["sharing", "--deaths", deaths, "--vandals", "6", "--soak", "8"];
    steps.tests("sharing", &mut ourselves(&sharing)?);
    if !is_fast {
        let asan = ["sharing", "--asan", "--only", "hostile", "--vandals", "4"];
        steps.tests("asan", &mut ourselves(&asan)?);
        steps.tests("miri", &mut ourselves(&["miri"])?);
    }
    let seconds = if is_fast { "0" } else { "60" };
    steps.tests("fuzz", &mut ourselves(&["fuzz", "--seconds", seconds])?);
    steps.tests("hostile", &mut ourselves(&["hostile"])?);
    steps.tests("suites", &mut ourselves(&["suites", "--fast", "--no-build", "--no-install"])?);
    steps.tests("figures", &mut ourselves(&["figures", "--quick", "--no-build", "--no-install"])?);
    steps.tests("instructions", &mut ourselves(&["instructions", "--no-build"])?);
    let mut apps = ourselves(&["apps", "--no-build", "--no-install"])?;
    if is_fast {
        apps.arg("--fast");
    }
    steps.tests("apps", &mut apps);
    Ok(())
}

/// All states of the token's protocol, for three threads, and of a connection that changes its road.
fn models() -> Command {
    product::cargo(&[
        "test",
        "--release",
        "--package",
        "sd-ring",
        "--test",
        "token_model",
        "--test",
        "road_model",
    ])
}

/// The ring's tests again, with every interleaving explored. A directory of its own keeps the usual build warm.
fn loom() -> Command {
    let mut command = product::cargo(&["test", "--release", "--package", "sd-ring"]);
    command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", product::target().join("loom"));
    command
}

pub(crate) fn ci() -> Result<()> {
    let mut steps = Steps::default();
    steps.command("format", &mut product::cargo(&["fmt", "--all", "--check"]));
    let clippy = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    steps.command("clippy", &mut product::cargo(&clippy));
    // The program and the library have the same name: at once they would remove each other's pages.
    for (name, which) in
        [("doc", ["--workspace", "--exclude=sd-cli"]), ("doc of sd", ["--package", "sd-cli"])]
    {
        let mut doc = product::cargo(&["doc", "--no-deps", "--document-private-items"]);
        steps.command(name, doc.args(which).env("RUSTDOCFLAGS", "-Dwarnings"));
    }
    steps.tests("port", &mut ourselves(&["port"])?);
    test_steps(&mut steps, false)?;
    steps.tests("package", &mut ourselves(&["package", "--fast", "--no-build"])?);
    steps.tests("deny", &mut ourselves(&["deny"])?);
    steps.command("tidy", &mut ourselves(&["tidy"])?);
    steps.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(script: &str) -> Step {
        let mut steps = Steps::default();
        steps.tests("a step", Command::new("sh").args(["-c", script]));
        steps.steps.remove(0)
    }

    #[test]
    fn both_outputs_are_heard_and_every_failure_counts() {
        let counted = step("echo '3 passed, 1 failed'; echo 'FAIL what' >&2; exit 1");
        assert_eq!(counted.count, Count { passed: 3, failed: 1, skipped: 0 });
        assert_eq!(counted.again[0], "FAIL what");
        let passed = step("echo '3 passed, 0 failed'");
        assert_eq!((passed.count.failed, passed.again.len()), (0, 0));
        assert_eq!(step("echo '3 passed, 0 failed'; exit 1").count.failed, 1);
        assert_eq!(step("echo nothing").count.failed, 1);
    }
}
