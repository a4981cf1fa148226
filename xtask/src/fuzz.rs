//! `cargo xtask fuzz`: the targets of `tests/fuzz`, built with coverage, for some time each.
//!
//! The corpora are run first, so that what was found once stays found; `--seconds 0` does nothing else. An input that
//! ends the process is kept in `target/fuzz`, and is put into the corpus together with the repair.

use harness::report::Count;
use harness::{Result, fail, product};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// In the order of what they cost.
const TARGETS: [&str; 8] = ["messages", "policy", "hosts", "handshake", "ring", "engine", "views", "image"];
/// It has threads, and is asked how soon it answers: it runs alone.
const MONITOR: [&str; 1] = ["monitor"];
/// Crates whose code is counted.
const COUNTED: [&str; 9] =
    ["sd-ring", "sd-shm", "sd-proto", "sd-socket", "sd-monitor", "sd-sys", "sd-link", "sd-keys", "sd-engine"];

#[derive(clap::Args)]
pub(crate) struct Options {
    /// For so long each, in processor time
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Only the targets whose name contains one of these, separated by commas
    #[arg(long, default_value = "")]
    only: String,
    /// What chance is made of
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write the corpora anew: the smallest inputs that reach all that was reached
    #[arg(long)]
    write: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let program = build()?;
    let mut count = Count::default();
    count.add(fuzz_all(&program, &TARGETS, 2, options));
    count.add(fuzz_all(&program, &MONITOR, 1, options));
    println!("{}", count.line());
    if count.failed > 0 {
        fail!("fuzz: {} targets failed", count.failed);
    }
    Ok(())
}

/// Runs `targets`, `jobs` at a time.
fn fuzz_all(program: &Path, targets: &[&str], jobs: usize, options: &Options) -> Count {
    let waiting =
        Mutex::new(targets.iter().filter(|name| options.only.split(',').any(|only| name.contains(only))));
    let count = Mutex::new(Count::default());
    let next = || lock(&waiting).next();
    let work = || {
        while let Some(name) = next() {
            let start = Instant::now();
            let done = fuzz(program, name, options);
            let seconds = start.elapsed().as_secs_f64();
            lock(&count).add(Count::one(done.is_ok()));
            match done {
                Ok(said) => println!("ok   {name:<10} {seconds:>6.1} s  {said}"),
                Err(error) => println!("FAIL {name:<10} {seconds:>6.1} s  seed {}: {error}", options.seed),
            }
        }
    };
    std::thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(work))));
    count.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn fuzz(program: &Path, name: &str, options: &Options) -> Result<String> {
    let folder = product::target().join("fuzz");
    let last = folder.join(format!("{name}.last"));
    let corpus = product::root().join(format!("tests/fuzz/corpus/{name}.txt"));
    let mut command = Command::new("timeout");
    // Beside other work a second of its time takes some seconds.
    command.args(["--kill-after=5", &(options.seconds * 10 + 120).to_string()]).arg(program);
    command.args([name, &options.seconds.to_string()]).arg(corpus).arg(&last).arg(options.seed.to_string());
    if options.write {
        command.arg("write");
    }
    let output = command.output()?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().replace('\n', "; "));
    }
    let kept = keep(&last, &folder, name)?;
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    fail!("{}: {}; the input is {kept}", output.status, harness::process::tail(&words, 400))
}

/// The input under way, as a line of the corpus.
fn keep(last: &Path, folder: &Path, name: &str) -> Result<String> {
    let bytes = std::fs::read(last)?;
    let (len, input) = bytes.split_first_chunk::<8>().ok_or("the last input is lost")?;
    let input = input.get(..u64::from_ne_bytes(*len) as usize).unwrap_or(input);
    let line: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = folder.join(format!("{name}.failure.txt"));
    std::fs::write(&path, line + "\n")?;
    Ok(path.display().to_string())
}

/// The program with a counter at each edge of our crates, by a pass that every stable compiler has. The flag that gives it
/// to some crates only is not stable, so the compiler is told to take it; see ADR 37 and 50.
fn build() -> Result<PathBuf> {
    let folder = product::target().join("fuzz");
    let triple = "x86_64-unknown-linux-gnu";
    let mut command = product::cargo(&["build", "--release", "-Zprofile-rustflags", "--target", triple]);
    command.arg("--target-dir").arg(&folder).args(["-p", "sd-fuzz"]);
    for name in COUNTED {
        let flags = r#"["-Cpasses=sancov-module", "-Cllvm-args=-sanitizer-coverage-level=3", "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters"]"#;
        command.arg("--config").arg(format!("profile.release.package.{name}.rustflags={flags}"));
    }
    command.env("RUSTC_BOOTSTRAP", "1").env("CARGO_PROFILE_RELEASE_LTO", "off");
    command.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16").env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "2");
    command.env("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true");
    if !command.status()?.success() {
        fail!("the build with coverage failed");
    }
    Ok(folder.join(triple).join("release/sd-fuzz"))
}
