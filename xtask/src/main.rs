//! The project's own commands: `cargo xtask build|install|demo|test|apps|posix|sharing|across|rdma|cable|hostile|guest|fuzz|miri|port|package|suites|instructions|figures|deny|tidy|ci`.
//!
//! Every process a command starts is ended by its pid, also after an error, a panic or Ctrl-C, and every
//! temporary directory is removed: see `harness::scratch`. Tested by being run: `cargo xtask ci` uses all of it.

mod across;
mod cable;
mod checks;
mod demo;
mod deny;
mod figures;
mod fuzz;
mod gist;
mod guest;
mod hostile;
mod instructions;
mod loads;
mod miri;
mod port;
mod posix;
mod rdma;
mod sharing;
mod steps;
mod tidy;

use clap::{Parser, Subcommand};
use harness::{Result, install, product};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Build, show and check SocksDirect", disable_version_flag = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build everything in release mode
    Build {
        /// Instead what some tests want besides: with AddressSanitizer, and as if of the next version
        #[arg(long, hide = true)]
        others: bool,
    },
    /// Install the programs that demo and test need (Debian, needs root)
    Install {
        /// Also what only `apps --all` needs
        #[arg(long)]
        all: bool,
    },
    /// Measure redis and nginx over the kernel and over SocksDirect, in turn
    Demo(demo::Options),
    /// Run every test: unit, property, loom, POSIX oracle, real applications
    Test {
        /// Leave out the loom models and the slow scenarios
        #[arg(long)]
        fast: bool,
    },
    /// Run real applications and compare what they say and the path they took
    #[command(disable_help_flag = true)]
    Apps(Passed),
    /// Run the POSIX oracle programs on the kernel and on us
    Posix {
        /// Passed on to the oracle runner
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Sharing and failure: deaths at any instruction, hostile peers
    Sharing(sharing::Options),
    /// Measure redis and nginx between two network namespaces, over the kernel and promoted, in turn
    Across(across::Options),
    /// Raw verbs, kernel TCP and us side by side between two emulated guests with RDMA
    Rdma(rdma::Options),
    /// Two networks joined by a cable that loses and delays packets, to try things by hand
    Cable(cable::Options),
    /// Several users on one monitor, and one of them is hostile
    Hostile(hostile::Options),
    /// Run one of the commands in an emulated guest with another kernel: memory cgroups of version 2
    Guest(guest::Options),
    /// Check licences, sources and versions of what we depend on
    Deny,
    /// Fuzz what reads what others wrote, guided by coverage
    Fuzz(fuzz::Options),
    /// Run the tests of protocols and layouts under Miri
    Miri,
    /// Check the library for aarch64, which nothing here runs.
    Port,
    /// Build the Debian package, and try it, its units and the manifests
    #[command(disable_help_flag = true)]
    Package(Passed),
    /// Run the test suites of others on the kernel and on us, and compare them test by test
    #[command(disable_help_flag = true)]
    Suites(Passed),
    /// Measure the paper's tables and figures on this machine and draw them
    Figures(figures::Options),
    /// Count the instructions of single operations and hold them against their budgets
    Instructions(instructions::Options),
    /// Check the rules of layout, dependencies, hooks and words
    Tidy,
    /// Everything a change must pass
    Ci,
}

/// For a program of its own, which knows them.
#[derive(clap::Args)]
struct Passed {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    harness::command("xtask", || run(cli.command))
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Build { others: false } => product::build(),
        Command::Build { others: true } => product::build_others(),
        Command::Install { all } => install::command(all),
        Command::Demo(options) => demo::run(&options),
        Command::Test { fast } => checks::test(fast),
        Command::Apps(passed) => product::become_program("sd-apps", &passed.args),
        Command::Posix { args } => posix::run(&args).map_err(|error| error.to_string().into()),
        Command::Sharing(options) => sharing::run(&options),
        Command::Across(options) => across::run(&options),
        Command::Rdma(options) => rdma::run(&options),
        Command::Cable(options) => cable::run(&options),
        Command::Hostile(options) => hostile::run(&options),
        Command::Guest(options) => guest::run(&options),
        Command::Deny => deny::run(),
        Command::Fuzz(options) => fuzz::run(&options),
        Command::Miri => miri::run(),
        Command::Port => port::run(),
        Command::Package(passed) => product::become_program("sd-packaging", &passed.args),
        Command::Suites(passed) => product::become_program("sd-suites", &passed.args),
        Command::Figures(options) => figures::run(&options),
        Command::Instructions(options) => instructions::run(&options),
        Command::Tidy => tidy::run(),
        Command::Ci => checks::ci(),
    }
}
