//! The program that the subjects are.

use super::suite::Suite;
use super::{aarch64, glibc, musl};
use harness::Result;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Program {
    /// As `cargo xtask build` makes it.
    Usual,
    /// Of musl's.
    Musl,
    /// Of musl's, and static: all its system calls are instructions of its own.
    Static,
    /// Of glibc's, and static.
    StaticGlibc,
    /// For that processor.
    Aarch64,
}

impl Program {
    pub(super) fn of(word: &str) -> Option<Program> {
        Some(match word {
            "--musl" => Program::Musl,
            "--static" => Program::Static,
            "--static-glibc" => Program::StaticGlibc,
            "--aarch64" => Program::Aarch64,
            _ => return None,
        })
    }

    /// Builds it where it is not the one that `cargo xtask build` makes; nothing where it cannot be built.
    pub(super) fn build(self) -> Option<Result<Option<Suite>>> {
        match self {
            Program::Usual => None,
            Program::Musl => Some(musl::build()),
            Program::Static => Some(musl::build_static()),
            Program::StaticGlibc => Some(glibc::build_static().map(Some)),
            Program::Aarch64 => Some(aarch64::build()),
        }
    }

    /// The list of subjects that may differ there.
    pub(super) fn differences(self) -> Option<&'static str> {
        match self {
            Program::Usual => None,
            Program::Musl => Some("musl-failures.txt"),
            Program::Static => Some("static-failures.txt"),
            Program::StaticGlibc => Some("static-glibc-failures.txt"),
            Program::Aarch64 => Some("aarch64-failures.txt"),
        }
    }
}
