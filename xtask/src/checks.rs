//! `cargo xtask test` and `cargo xtask ci`: every check, in order.

use crate::steps::{Judged, Planned, Steps};
use harness::{Result, install, product};
use std::process::Command;

/// Subjects about what a pump carries.
const PUMPED: &str = "stream/,close/,ends/,shutdown/,urgent/,backlog/,connect/,siblings/,signals/,epoll_edge/,fork_served/,\
    idle_sleeper/poll_many,idle_sleeper/more_bytes,idle_busy/memory_goes";

/// Where a program's libc makes a difference.
const MUSL: &str = "stream/,message/,cancel/,clone/,exec/,fork/,offspring/,spawn/,pass/,signals/,handlers/,stdio/,poll/,select/,epoll_once/,\
    privileges/,siblings/other,no_forks/,threads/,others/,descriptor/";

/// Where it matters that there is none: threads, signals, forks, what rights are given up by, and each kind of call once.
const STATIC: &str = "stacks/,cancel/,clone/,fork/,offspring/,handlers/,signals/,privileges/,exec/,confine/,threads/,pass/,pair/,poll/,select/,raw/,no_forks/,odd/";

/// Where the library's file is executed for the program: each way to execute one, what is passed on, threads, signals.
const NO_PTRACE: &str = "exec/,spawn/,fork/,clone/,pair/,stacks/,handlers/";

/// What glibc does otherwise than musl: cancellation, posix_spawn(3), setuid(2) of all threads, select(3).
const STATIC_GLIBC: &str =
    "cancel/,clone/,offspring/,spawn/,privileges/,threads/,pass/,select/,raw/,other_names/,pair/";

/// Where its processor does: threads, signals, sleeps, forks, and bytes. The emulator takes a second to start.
const AARCH64: &str = "waiting/,epoll/,handlers/b,handlers/i,handlers/m,handlers/r,handlers/t,signals/,fork_epoll/,tokens/holder_st,stream/p,stream/l,pair/e,pair/h,raw/r";

/// Subjects about what is in the way when a connection changes its road.
const PROMOTED: &str = "stream/,close/,ends/,shutdown/,nonblocking/,tokens/,epoll_once/,epoll_oneshot/,errnos/vector_flags,\
    odd/positions,cancel/,privileges/threads,fork_served/";

/// Subjects with a host for each of their two roles, about bytes, ends and deaths; and those that are moved back as well.
const BETWEEN: &str = "pair/e,pair/half,pair/server_closes,pair/poll,pair/urgent,servers/,load/up,load/both,load/fill,load/http,\
    failure/killed,failure/server_killed,failure/unread,failure/aborted";
const BETWEEN_MOVED: &str = "servers/epoll_server,servers/poll_server,servers/select_server,pair/half";

/// This program again.
fn ourselves(args: &[&str]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(args);
    Ok(command)
}

pub(crate) fn test(is_fast: bool) -> Result<()> {
    let mut steps = Steps::default();
    if !is_fast {
        steps.beside(computing()?);
    }
    test_steps(&mut steps, is_fast)?;
    steps.finish()
}

/// Fuzz targets that only compute. `monitor` has threads, and is asked how soon it answers.
const PURE_TARGETS: &str = "messages,policy,ring,engine,views,image";

/// What of the tests only computes: it runs beside the others, in the order in which they want it.
fn computing() -> Result<Vec<Planned>> {
    let whole = |name, command| (name, Judged::Whole, command);
    let counted = |name, command| (name, Judged::ByCounts, command);
    let pure = ["fuzz", "--seconds", "60", "--only", PURE_TARGETS];
    Ok(vec![
        whole("other builds", ourselves(&["build", "--others"])?),
        counted("loom", loom()),
        counted("models", models()),
        counted("miri", ourselves(&["miri"])?),
        counted("fuzz", ourselves(&pure)?),
        counted("flood", flood()),
    ])
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
    // A live monitor is under fire for so long.
    let fire_seconds = if is_fast { "1" } else { "60" };
    let mut tests = product::cargo(&["test", "--workspace", "--no-fail-fast"]);
    steps.tests("cargo test", tests.env("SD_FIRE_SECONDS", fire_seconds));
    steps.tests("posix", &mut ourselves(&["posix"])?);
    // The whole is for who changes links: `cargo xtask posix --pump`.
    let through_pump = ["posix", "--pump", "--only", PUMPED];
    steps.tests("posix, pump", &mut ourselves(&through_pump)?);
    // Likewise; the whole takes minutes.
    let promoted = ["posix", "--promote", "--only", PROMOTED];
    steps.tests("posix, promoted", &mut ourselves(&promoted)?);
    for between in [
        &["posix", "--between", "--only", BETWEEN][..],
        &["posix", "--between", "--demote", "--only", BETWEEN_MOVED],
    ] {
        steps.tests("posix, between", &mut ourselves(between)?);
    }
    // Likewise; the whole takes three minutes.
    steps.tests("posix, musl", &mut ourselves(&["posix", "--musl", "--only", MUSL])?);
    // Likewise; the whole takes five.
    steps.tests("posix, static", &mut ourselves(&["posix", "--static", "--only", STATIC])?);
    let static_glibc = ["posix", "--static-glibc", "--only", STATIC_GLIBC];
    steps.tests("posix, static, glibc", &mut ourselves(&static_glibc)?);
    let no_ptrace = ["posix", "--static", "--no-ptrace", "--only", NO_PTRACE];
    steps.tests("posix, no ptrace", &mut ourselves(&no_ptrace)?);
    // The whole is not for an emulator.
    steps.tests("posix, aarch64", &mut ourselves(&["posix", "--aarch64", "--only", AARCH64])?);
    let deaths = if is_fast { "3" } else { "8" };
    let sharing = ["sharing", "--deaths", deaths, "--vandals", "6", "--soak", "8"];
    steps.tests("sharing", &mut ourselves(&sharing)?);
    if !is_fast {
        let asan = ["sharing", "--asan", "--only", "hostile", "--vandals", "4"];
        steps.tests("asan", &mut ourselves(&asan)?);
    }
    let fuzz: &[&str] = match is_fast {
        true => &["fuzz", "--seconds", "0"],
        false => &["fuzz", "--seconds", "60", "--only", "monitor"],
    };
    steps.tests("fuzz, monitor", &mut ourselves(fuzz)?);
    steps.tests("hostile", &mut ourselves(&["hostile"])?);
    steps.tests("suites", &mut ourselves(&["suites", "--fast", "--no-build", "--no-install"])?);
    steps.tests("figures", &mut ourselves(&["figures", "--quick", "--no-build", "--no-install"])?);
    // Whether each road works, and what wants an RDMA device; the whole is part of `figures`.
    steps.tests("rdma", &mut ourselves(&["rdma", "--one", "--quick", "--no-build"])?);
    steps.tests("instructions", &mut ourselves(&["instructions", "--no-build"])?);
    let mut apps = ourselves(&["apps", "--no-build", "--no-install"])?;
    if is_fast {
        apps.arg("--fast");
    }
    steps.tests("apps", &mut apps);
    if !is_fast {
        let first_byte = ["apps", "--first-byte", "--fast", "--no-build", "--no-install"];
        steps.tests("apps, first byte", &mut ourselves(&first_byte)?);
    }
    Ok(())
}

/// Of what runs beside the others: who needs the usual directories must not wait until it has built.
fn aside(mut command: Command) -> Command {
    command.env("CARGO_TARGET_DIR", product::target().join("aside"));
    command
}

/// All states of the token's protocol, for three threads, and of a connection that changes its road.
fn models() -> Command {
    let tests = ["--test", "token_model", "--test", "road_model"];
    let mut command = product::cargo(&["test", "--release", "--package", "sd-ring"]);
    command.args(tests);
    aside(command)
}

/// The ring's tests again, with every interleaving explored. A directory of its own keeps the usual build warm.
fn loom() -> Command {
    let mut command = product::cargo(&["test", "--release", "--package", "sd-ring"]);
    command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", product::target().join("loom"));
    command
}

/// Random bytes for the control messages, with all checks that a build without optimization has.
fn flood() -> Command {
    let mut command =
        product::cargo(&["test", "--package", "sd-proto", "--test", "messages", "a_flood_of_random_bytes"]);
    command.env("SD_FUZZ_SECONDS", "60");
    aside(command)
}

pub(crate) fn ci() -> Result<()> {
    let mut steps = Steps::default();
    steps.command("format", &mut product::cargo(&["fmt", "--all", "--check"]));
    let mut planned = linting();
    planned.extend(computing()?);
    steps.beside(planned);
    test_steps(&mut steps, false)?;
    steps.tests("port", &mut ourselves(&["port"])?);
    steps.tests("package", &mut ourselves(&["package", "--no-build"])?);
    steps.tests("deny", &mut ourselves(&["deny"])?);
    steps.command("tidy", &mut ourselves(&["tidy"])?);
    steps.finish()
}

/// What compilers say of the code.
fn linting() -> Vec<Planned> {
    let clippy = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    let mut planned = vec![("clippy", Judged::Whole, aside(product::cargo(&clippy)))];
    if let Some(command) = product::freestanding_with("clippy", &["--", "-D", "warnings"]) {
        planned.push(("clippy, no libc", Judged::Whole, aside(command)));
    }
    // The program and the library have the same name: at once they would remove each other's pages.
    for (name, which) in
        [("doc", ["--workspace", "--exclude=sd-cli"]), ("doc of sd", ["--package", "sd-cli"])]
    {
        let mut doc = product::cargo(&["doc", "--no-deps", "--document-private-items"]);
        doc.args(which).env("RUSTDOCFLAGS", "-Dwarnings");
        planned.push((name, Judged::Whole, aside(doc)));
    }
    planned
}
