//! `cargo xtask hostile`: several users on one monitor of root's, and one of them is hostile.
//!
//! Each test has a monitor of its own, run by root, whose directory everybody can reach, and three users that share it:
//! alice, a client; bob, who has servers; mallory, who has no library and speaks the control messages by hand. They are
//! real users of the kernel's, by number. The question is always: would the kernel have let mallory do that? At the end
//! of each test the monitor must have given back what the users held, and must end when asked to.
//!
//! The tests are named after the findings of a review of the first version that could be shared; each of them failed
//! there. The programs are those of `tests/hostile`. Where this process is not root it runs itself in a user namespace;
//! where that has no other users, the tests are skipped.

mod authority;
mod holdups;
mod honest;
mod memory;
mod privileges;
mod roads;
mod world;

use harness::report::Count;
use harness::{Result, fail, product};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;
use world::World;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run only the tests whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    /// Another `sd`, beside which its libsd.so is; to see what an older one does
    #[arg(long)]
    sd: Option<PathBuf>,
    /// List the names of the tests
    #[arg(long)]
    list: bool,
}

/// A check, in a world of its own; what it says when it passes.
type Test = (&'static str, fn(&mut World) -> Result<String>);

/// Tests that fail, with the reason; see there.
const KNOWN: &str = include_str!("../../../tests/hostile/known-failures.txt");

/// Makes the root of a user namespace.
const ROOT: &str = include_str!("../../../tests/hostile/root.sh");

pub(crate) fn run(options: &Options) -> Result<()> {
    let tests = [authority::TESTS, holdups::TESTS, memory::TESTS, privileges::TESTS, roads::TESTS].concat();
    if options.list {
        tests.iter().for_each(|(name, _)| println!("{name}"));
        return Ok(());
    }
    if !nix::unistd::geteuid().is_root() {
        return again_as_root(tests.len());
    }
    if !product::sd().exists() || !world::program().exists() {
        product::build()?;
    }
    let sd = options.sd.clone().unwrap_or_else(product::sd);
    let known = known(&tests)?;
    let mut count = Count::default();
    for (name, test) in tests.iter().filter(|(name, _)| name.contains(&options.only)) {
        let start = Instant::now();
        let done = World::new(&sd).and_then(|mut world| {
            let note = test(&mut world)?;
            world.finish().map(|left| format!("{note}; {left}"))
        });
        let seconds = start.elapsed().as_secs_f64();
        let is_as_known = done.is_ok() != known.contains_key(name);
        count.add(Count::one(is_as_known));
        match (done, known.get(name)) {
            (Ok(note), None) => println!("ok    {name:<28} {seconds:>5.1} s  {note}"),
            (Ok(_), Some(_)) => {
                println!("FAIL  {name:<28} {seconds:>5.1} s  it passes: take it off the known")
            }
            (Err(error), None) => println!("FAIL  {name:<28} {seconds:>5.1} s  {error}"),
            (Err(error), Some(why)) => println!("known {name:<28} {seconds:>5.1} s  {why}: {error}"),
        }
    }
    println!("{}", count.line());
    if count.failed > 0 {
        fail!("hostile: {} tests failed", count.failed);
    }
    Ok(())
}

/// Names and reasons.
fn known(tests: &[Test]) -> Result<BTreeMap<&'static str, &'static str>> {
    let lines = KNOWN.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let known: BTreeMap<_, _> = lines.filter_map(|line| line.split_once(": ")).collect();
    if let Some(stranger) = known.keys().find(|known| tests.iter().all(|(name, _)| name != *known)) {
        fail!("known-failures.txt: there is no test {stranger}");
    }
    Ok(known)
}

/// In a user namespace that has the users of /etc/subuid.
fn again_as_root(tests: usize) -> Result<()> {
    let within = |command: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--map-root-user", "--map-auto", "--mount", "--fork", "--kill-child", "--"]);
        unshare.args(["sh", "-c", ROOT, "sh"]).args(command);
        unshare.env("TMPDIR", "/tmp").env_remove("XDG_RUNTIME_DIR").current_dir("/");
        unshare
    };
    let user = (world::User::Alice as u32).to_string();
    let other = ["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups", "true"];
    let can = within(&other).output();
    if !can.as_ref().is_ok_and(|output| output.status.success()) {
        let why =
            can.map_or_else(|error| error.to_string(), |it| String::from_utf8_lossy(&it.stderr).into_owned());
        println!(
            "skipped, none of it: several users are wanted, so root, or a user namespace that has 65,536 of them (newuidmap, and a line for this user in /etc/subuid and /etc/subgid). Here: {}",
            why.trim()
        );
        println!("{}", Count { passed: 0, failed: 0, skipped: tests }.line());
        return Ok(());
    }
    println!("not root: in a user namespace of its own");
    let program = std::env::current_exe()?;
    let status = within(&[&program.to_string_lossy()]).args(std::env::args().skip(1)).status()?;
    if !status.success() {
        fail!("in a user namespace: {status}");
    }
    Ok(())
}
