//! `cargo xtask test` and `cargo xtask ci`: every check, in order, with its time and one closing line.

use crate::report::Count;
use crate::{Result, fail, install, product, scratch};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

/// A step's name, what it counted, and how long it took.
struct Step {
    name: String,
    count: Count,
    seconds: f64,
}

#[derive(Default)]
struct Steps {
    steps: Vec<Step>,
}

impl Steps {
    /// Runs a step whose failure is counted and does not stop the others.
    fn run(&mut self, name: &str, step: impl FnOnce() -> Result<Count>) {
        println!("\n==> {name}");
        let start = Instant::now();
        let count = step().unwrap_or_else(|error| {
            println!("{name}: {error}");
            Count::one(false)
        });
        let seconds = start.elapsed().as_secs_f64();
        self.steps.push(Step { name: name.to_owned(), count, seconds });
    }

    /// A command that passes or fails as a whole.
    fn command(&mut self, name: &str, command: &mut Command) {
        self.run(name, || Ok(Count::one(command.status()?.success())));
    }

    /// Prints the times and the closing line.
    fn finish(self) -> Result<()> {
        println!("\n==> summary");
        let mut total = Count::default();
        for step in &self.steps {
            println!("{:<16} {:>7.1} s  {}", step.name, step.seconds, step.count.line().replace(',', ";"));
            total.add(step.count);
        }
        let seconds: f64 = self.steps.iter().map(|step| step.seconds).sum();
        println!("{:<16} {seconds:>7.1} s\n\n{}", "together", total.line());
        if total.failed > 0 {
            scratch::clean();
            std::process::exit(1);
        }
        Ok(())
    }
}

/// Passes a runner's output on and adds its closing lines up. A failure that no line counts is counted as one.
fn counted(command: &mut Command) -> Result<Count> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut total = Count::default();
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines() {
            let line = line?;
            match Count::parse(&line) {
                Some(count) => {
                    total.add(count);
                    // The closing line of all comes last and stands alone; this one is only a part.
                    println!("  {}", line.trim().replace(',', ";"));
                }
                None => println!("{line}"),
            }
        }
    }
    if !child.wait()?.success() && total.failed == 0 {
        total.failed = 1;
    }
    if total == Count::default() {
        fail!("no test ran");
    }
    Ok(total)
}

/// This program again, as a step with a count of its own.
fn ourselves(args: &[&str]) -> Result<Count> {
    counted(Command::new(std::env::current_exe()?).args(args))
}

pub(crate) fn test(is_fast: bool) -> Result<()> {
    let mut steps = Steps::default();
    test_steps(&mut steps, is_fast);
    steps.finish()
}

fn test_steps(steps: &mut Steps, is_fast: bool) {
    let missing = install::missing();
    if !missing.is_empty()
        && let Err(error) = install::run(&missing)
    {
        // Scenarios without their program are counted as skipped.
        println!("not everything could be installed: {error}");
    }
    steps.run("build", || product::build().map(|()| Count::one(true)));
    // The fuzz targets (control messages, a live monitor) run for so long each.
    let fuzz_seconds = if is_fast { "1" } else { "60" };
    steps.run("cargo test", || {
        counted(product::cargo(&["test", "--workspace"]).env("SD_FUZZ_SECONDS", fuzz_seconds))
    });
    if !is_fast {
        steps.run("loom", loom);
        steps.run("token model", token_model);
    }
    steps.run("posix", || ourselves(&["posix"]));
    let deaths = if is_fast { "3" } else { "8" };
    steps.run("sharing", || ourselves(&["sharing", "--deaths", deaths, "--vandals", "6", "--soak", "8"]));
    steps.run("suites", || ourselves(&["suites", "--fast", "--no-build", "--no-install"]));
    steps.run("figures", || ourselves(&["figures", "--quick", "--no-build", "--no-install"]));
    steps.run("instructions", || ourselves(&["instructions", "--no-build"]));
    let mut args = vec!["apps", "--no-build", "--no-install"];
    if is_fast {
        args.push("--fast");
    }
    steps.run("apps", || ourselves(&args));
}

/// All states of the token's protocol, for three threads.
fn token_model() -> Result<Count> {
    counted(&mut product::cargo(&["test", "--release", "--package", "sd-ring", "--test", "token_model"]))
}

/// The ring's tests again, with every interleaving explored. A directory of its own keeps the usual build warm.
fn loom() -> Result<Count> {
    let mut command = product::cargo(&["test", "--release", "--package", "sd-ring"]);
    command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", product::target().join("loom"));
    counted(&mut command)
}

pub(crate) fn ci() -> Result<()> {
    let mut steps = Steps::default();
    steps.command("format", &mut product::cargo(&["fmt", "--all", "--check"]));
    let clippy = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    steps.command("clippy", &mut product::cargo(&clippy));
    let mut doc = product::cargo(&["doc", "--workspace", "--no-deps", "--document-private-items"]);
    steps.command("doc", doc.env("RUSTDOCFLAGS", "-Dwarnings"));
    test_steps(&mut steps, false);
    steps.run("tidy", || ourselves_ok(&["tidy"]));
    steps.finish()
}

fn ourselves_ok(args: &[&str]) -> Result<Count> {
    let status = Command::new(std::env::current_exe()?).args(args).stdin(Stdio::null()).status()?;
    Ok(Count::one(status.success()))
}
