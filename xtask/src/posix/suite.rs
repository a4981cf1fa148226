//! The program that the subjects are, and how it is started on each side.

use super::{Mode, Place, Subject};
use harness::{Result, fail, product};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Variables that say how the two sides of a pair are started.
const PREFIXES: [&str; 2] = ["SD_POSIX_SERVER_PREFIX", "SD_POSIX_CLIENT_PREFIX"];

/// See the module.
pub(super) struct Suite {
    program: PathBuf,
    emulation: Option<Emulation>,
}

/// A program of another processor's.
struct Emulation {
    /// What runs programs.
    emulator: Vec<String>,
    /// The same with our library: `sd run` preloads into what it starts, which is the emulator.
    accelerated: Vec<String>,
}

impl Suite {
    /// One of this machine's.
    pub(super) fn of(program: PathBuf) -> Suite {
        Suite { program, emulation: None }
    }

    /// Builds one of this machine's for a target, with these flags of the compiler.
    pub(super) fn build(target: &str, folder: &Path, flags: &str) -> Result<Suite> {
        let mut cargo =
            product::cargo(&["build", "--quiet", "--release", "-p", "sd-posix", "--target", target]);
        let cargo = cargo.arg("--target-dir").arg(folder).env("RUSTFLAGS", flags);
        // It is not measured.
        cargo.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
        if !cargo.status()?.success() {
            fail!("the subjects cannot be built for {target} with {flags}");
        }
        Ok(Suite::of(folder.join(target).join("release/sd-posix")))
    }

    /// One that is run by this emulator, or with the library by that command.
    pub(super) fn emulated(program: PathBuf, emulator: Vec<String>, accelerated: Vec<String>) -> Suite {
        Suite { program, emulation: Some(Emulation { emulator, accelerated }) }
    }

    /// The program over the kernel.
    pub(super) fn plain(&self) -> Command {
        self.behind(self.emulation.as_ref().map_or(&[], |emulation| &emulation.emulator))
    }

    fn behind(&self, words: &[String]) -> Command {
        let Some((first, others)) = words.split_first() else { return Command::new(&self.program) };
        let mut command = Command::new(first);
        command.args(others).arg(&self.program);
        command
    }

    /// Runs one subject.
    pub(super) fn command(&self, place: &Place, subject: &Subject, mode: Mode) -> Result<Command> {
        let run = [place.sd.display().to_string(), "run".to_owned(), "--".to_owned()];
        let mut command = match &self.emulation {
            Some(emulation) if mode == Mode::Both && !subject.pair => self.behind(&emulation.accelerated),
            None if mode == Mode::Both && place.between.is_none() => self.behind(&run),
            _ => self.plain(),
        };
        command.args(["run", &subject.name]).process_group(0).stdin(Stdio::null());
        for name in ["LD_PRELOAD", "SD_MONITOR"].iter().chain(&PREFIXES) {
            command.env_remove(name);
        }
        // Subjects wait for memory to be given back.
        command.env("SD_IDLE_SECONDS", "1");
        if let Some(between) = &place.between {
            between.adapt(place, &mut command, mode)?;
            return Ok(command);
        }
        if mode != Mode::Kernel {
            command.env("SD_MONITOR", &place.socket);
        }
        match (&self.emulation, mode) {
            // A program that the emulator runs cannot execute one of its own kind.
            (Some(emulation), _) if subject.pair => {
                let words = if mode == Mode::Both { &emulation.accelerated } else { &emulation.emulator };
                command.envs(PREFIXES.map(|name| (name, words.join(" "))));
            }
            (_, Mode::Server) => _ = command.env(PREFIXES[0], run.join(" ")),
            (_, Mode::Client) => _ = command.env(PREFIXES[1], run.join(" ")),
            (_, Mode::Kernel | Mode::Both) => {}
        }
        Ok(command)
    }
}
