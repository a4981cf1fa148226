//! `cargo xtask sharing`: what happens to sockets when processes die or lie.
//!
//! | part | what |
//! |---|---|
//! | `killed-in` | a process is stepped through an operation, instruction by instruction, and killed anywhere in it |
//! | `filters`, `short-of-processes` | a seccomp filter that was there before refuses, or kills for, what the library calls; a cgroup has no room for a process |
//! | `soak` | connections are handed from process to process by fork, exec and SCM_RIGHTS, and killed at any time |
//! | `short-of` | memory, addresses or descriptors are not to be had, from the start or from some moment on |
//! | `closed-past-libc` | a program closes the library's descriptors, control connection and all, by an instruction of its own |
//! | `suspended`, `stopped` | everything is stopped for a while, as when a host sleeps; the monitor alone; one process in the middle of a send |
//! | `many` | more processes than there are large pieces of the range of ports; more connections than a channel has slots |
//! | `first-contact` | clients that try until somebody listens: all of them are accelerated; also after a restart of the monitor, of a server that was there before it, and of one that forks before it accepts |
//! | `policy` | the same servers under a policy, while the monitor is started again and again: no connection fails |
//! | `pump-` | what carries connections between two processes is stopped, or killed, or its monitor is: bytes are delayed, or both ends reset, and every one is accounted for |
//! | `stolen` | a stranger takes the descriptors of connections by pidfd_getfd |
//! | `other-version`, `next-version` | the monitor is replaced, under load, by one of another version: an unknown one, and a real one with programs of its own |
//! | `hostile` | a process writes anything anywhere in the segments that it shares with a server |
//! | `promoted` | all connections begin as the kernel's, and are moved to shared memory while they carry data |
//! | `demoted`, `wandering` | and back to the kernel's, at bytes that chance chooses, and again; the second so often that each step meets each other |
//! | `handed-over` | a promoted connection goes on in a program without the library, or in a process that gives rights up, and no process copies its bytes |
//! | `short-lived` | who is done after a few messages is never registered; the connection of who lives is moved to shared memory |
//! | `hands-on` | a server that hands on each connection to a child leaves its monitor; its children's connections are moved all the same if they last |
//! | `migrated` | a server moves to another network namespace with its connections: shared memory, kernel, shared memory |
//! | `migrated-between-hosts` | the same to another host and back: from shared memory to the engines' road, and to shared memory again |
//! | `detach-refused` | a server that cannot let go of its connections serves on |
//! | `across` | the same between two network namespaces: by a cable, a bridge, a published port; not where a proxy is between, not where the policy says stay, and not for another tenant with the same addresses; `rootless-across`: all of it by a user without rights, in a user namespace |
//! | `young` | between namespaces, a connection that has not lasted yet has no entry; a duplicate and a child make it one |
//! | `before-monitor` | connections that were made before their monitor, or while it was down, are moved when it comes |
//! | `roam` | both ends of connections are handed on and killed, while these move between kernel and shared memory, and the monitor dies and comes back (`--soak SECONDS`) |
//! | `watched` | `sd top` and `sd trace` show what programs do, while they do it; `sd ss` shows what road each connection takes, and why |
//! | `liars` | a process tells one lie about its connection and dies |
//!
//! The programs are those of `tests/sharing`. Places and values are chosen by a seed, which is printed with a failure
//! and can be given again with `--seed`.

pub(crate) mod across;
mod brief;
pub(crate) mod checked;
mod closing;
mod crash;
mod demote;
mod filters;
mod first;
pub(crate) mod group;
mod handed;
mod hands_on;
mod hostile;
mod liars;
mod many;
mod migrated;
pub(crate) mod migrated_between;
mod pool;
pub(crate) mod promote;
mod pumped;
mod roads;
mod roam;
mod servers;
mod shortage;
mod soak;
mod suspend;
mod tenants;
mod theft;
mod upgrade;
mod watched;
mod young;

use harness::again::Tally;
use harness::lab::{Lab, Side};
use harness::process::Proc;
use harness::{Result, fail, product};
use servers::Server;
use std::process::Command;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Deaths per operation
    #[arg(long, default_value_t = 40)]
    deaths: u64,
    /// Hostile processes, one after the other
    #[arg(long, default_value_t = 12)]
    vandals: u64,
    /// What they do: `chance`, or one of the attacks of tests/sharing/src/attacks.rs
    #[arg(long, default_value = "everything")]
    attack: String,
    /// Seconds of connections that wander from process to process
    #[arg(long, default_value_t = 20)]
    soak: u64,
    /// How often a connection goes to shared memory and back
    #[arg(long, default_value_t = 1000)]
    wanderings: u64,
    /// What chance is made of
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Over Linux alone, to see that what is expected is right
    #[arg(long)]
    kernel: bool,
    /// With AddressSanitizer in library, monitor and programs (for `--only hostile` and the like, not for `killed-in`)
    #[arg(long)]
    asan: bool,
    /// Run only the parts whose name contains this
    #[arg(long, default_value = "")]
    only: String,
}

/// One check in a lab of its own.
type Part<'a> = (String, Check<'a>);
type Check<'a> = Box<dyn Fn(&mut Lab) -> Result<String> + 'a>;

pub(crate) fn run(options: &Options) -> Result<()> {
    if options.asan {
        return again_with_asan();
    }
    if !product::sd().exists() || !program().exists() {
        product::build()?;
    }
    let parts = parts(options);
    let (mut tally, is_whole) = (Tally::default(), options.only.is_empty());
    for (name, check) in parts.iter().filter(|(name, _)| name.contains(&options.only)) {
        tally.run(name, is_whole, || {
            let done = Lab::from_the_first_byte(options.kernel).and_then(|mut lab| {
                let note = check(&mut lab)?;
                lab.finish().map(|()| note)
            });
            harness::scratch::reap_orphans();
            done.map_err(|error| format!("seed {}: {error}", options.seed).into())
        });
    }
    tally.finish("sharing")
}

/// All of them, in their order.
fn parts(options: &Options) -> Vec<Part<'_>> {
    let mut parts: Vec<Part<'_>> = Vec::new();
    for play in crash::PLAYS {
        let check = |lab: &mut Lab| crash::run(lab, play, options.deaths, options.seed);
        parts.push((format!("killed-in-{}", play.op), Box::new(check)));
    }
    for (name, want) in shortage::WANTS {
        let check = |lab: &mut Lab| shortage::from_the_start(lab, *want);
        parts.push((format!("short-of-{name}"), Box::new(check)));
    }
    parts.push(("short-of-mappings".to_owned(), Box::new(shortage::unforeseen)));
    for (name, of_monitor) in [("server-runs-short", false), ("monitor-runs-short", true)] {
        let check = move |lab: &mut Lab| shortage::while_running(lab, of_monitor);
        parts.push((name.to_owned(), Box::new(check)));
    }
    parts.push(("short-of-memory".to_owned(), Box::new(group::run)));
    parts.push(("short-of-host-memory".to_owned(), Box::new(group::of_the_host)));
    parts.push(("memory-shown".to_owned(), Box::new(group::shown)));
    parts.push(("closed-past-libc".to_owned(), Box::new(closing::run)));
    parts.push(("short-of-processes".to_owned(), Box::new(filters::no_processes)));
    parts.push(("filters".to_owned(), Box::new(filters::run)));
    parts.push(("many-processes".to_owned(), Box::new(many::processes)));
    parts.push(("many-connections".to_owned(), Box::new(many::connections)));
    parts.push(("first-contact".to_owned(), Box::new(many::first_contacts)));
    for (name, server) in [("echo", Server::Echo), ("nginx", Server::Nginx), ("prefork", Server::Prefork)] {
        let restarts = move |lab: &mut Lab| first::monitor_restarts(lab, server);
        parts.push((format!("first-contact-monitor-restarts-{name}"), Box::new(restarts)));
        let before = move |lab: &mut Lab| first::server_before_monitor(lab, server);
        parts.push((format!("first-contact-server-before-monitor-{name}"), Box::new(before)));
        let late = move |lab: &mut Lab| first::workers_come_late(lab, server);
        parts.push((format!("first-contact-workers-come-late-{name}"), Box::new(late)));
        let policy = move |lab: &mut Lab| first::policy(lab, server);
        parts.push((format!("policy-{name}"), Box::new(policy)));
    }
    for (name, server) in [
        ("threads", Server::Threads { is_registered_early: false }),
        ("registered-early", Server::Threads { is_registered_early: true }),
        ("duplicate", Server::Duplicate),
        ("node", Server::Node),
    ] {
        let before = move |lab: &mut Lab| first::server_before_monitor(lab, server);
        parts.push((format!("first-contact-server-before-monitor-{name}"), Box::new(before)));
    }
    parts
        .push(("first-contact-instance-before-monitor".to_owned(), Box::new(first::instance_before_monitor)));
    parts.push(("first-contact-relatives-before-monitor".to_owned(), Box::new(first::relatives)));
    parts.extend(pumped::PARTS.map(|(name, part)| (name.to_owned(), Box::new(part) as _)));
    parts.push(("stolen-descriptors".to_owned(), Box::new(theft::run)));
    parts.extend(watched::PARTS.map(|(name, part)| (name.to_owned(), Box::new(part) as _)));
    parts.extend(promote::parts(options.seed, options.wanderings));
    parts.extend(handed::parts());
    parts.extend(brief::parts().chain(hands_on::parts()).chain(young::parts()));
    parts.extend(between_namespaces(options));
    parts.extend(pool::parts(options.seed));
    parts.push(("other-version".to_owned(), Box::new(upgrade::run)));
    parts.push(("next-version".to_owned(), Box::new(upgrade::both_ways)));
    parts.push(("liars".to_owned(), Box::new(liars::run)));
    parts.push(("eaten-wake-ups".to_owned(), Box::new(liars::eaten_wake_ups)));
    let check = |lab: &mut Lab| hostile::run(lab, options.vandals, options.seed, &options.attack);
    parts.push(("hostile-peers".to_owned(), Box::new(check)));
    let check = |lab: &mut Lab| soak::run(lab, options.soak, options.seed, 0);
    parts.push(("soak".to_owned(), Box::new(check)));
    let check = |lab: &mut Lab| soak::run(lab, options.soak.div_ceil(4), options.seed, 4);
    parts.push(("suspended-soak".to_owned(), Box::new(check)));
    parts.extend(roam::parts(options));
    parts.extend(suspend::PARTS.map(|(name, part)| (name.to_owned(), Box::new(part) as _)));
    let check = |lab: &mut Lab| suspend::in_a_send(lab, options.deaths, options.seed);
    parts.push(("stopped-in-a-send".to_owned(), Box::new(check)));
    parts
}

/// Connections between network namespaces.
fn between_namespaces(options: &Options) -> Vec<Part<'_>> {
    let mut parts: Vec<Part<'_>> = across::parts(options.seed).into();
    parts.push(("migrated".to_owned(), Box::new(migrated::run)));
    parts.push(("migrated-between-hosts".to_owned(), Box::new(migrated_between::run)));
    parts.push(("detach-refused".to_owned(), Box::new(migrated::refused)));
    parts.extend(tenants::parts(options.seed));
    let check = |lab: &mut Lab| match lab.is_oracle() {
        true => Ok("there is no monitor".to_owned()),
        false => across::rootless(options.seed),
    };
    parts.push(("rootless-across".to_owned(), Box::new(check)));
    parts
}

/// The same command with other products.
fn again_with_asan() -> Result<()> {
    let target = product::build_with_asan()?;
    let args = std::env::args().skip(1).filter(|arg| arg != "--asan");
    let status =
        Command::new(std::env::current_exe()?).args(args).env("CARGO_TARGET_DIR", target).status()?;
    if !status.success() {
        fail!("with AddressSanitizer: {status}");
    }
    Ok(())
}

/// The programs that are run and killed.
fn program() -> std::path::PathBuf {
    product::target().join("release/sd-sharing")
}

/// Starts one of them.
fn start(lab: &Lab, side: Side, args: &[&str]) -> Result<Proc> {
    Proc::start(&mut lab.command(side, &program().to_string_lossy(), args)?, args[0], lab.path())
}

/// A server that was just started, and the port that it says.
fn served(mut server: Proc) -> Result<(Proc, String)> {
    server.wait_for_text("\n", Duration::from_secs(10))?;
    let port = server.stdout_so_far().trim().trim_start_matches("port ").to_owned();
    Ok((server, port))
}
