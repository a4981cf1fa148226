//! Builds the library (a cdylib, which Cargo does not build for tests) and runs programs with and without it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// target/debug or target/release, with libsd.so and the examples built.
pub(crate) fn products() -> &'static Path {
    static PRODUCTS: OnceLock<PathBuf> = OnceLock::new();
    PRODUCTS.get_or_init(|| {
        let here = std::env::current_exe().unwrap();
        let products = here.ancestors().nth(2).unwrap().to_owned();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", env!("CARGO_PKG_NAME"), "--lib", "--examples"]);
        cargo.arg("--target-dir").arg(products.parent().unwrap());
        if products.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success());
        products
    })
}

pub(crate) fn library() -> PathBuf {
    products().join("libsd.so")
}

/// The program's output, alone or with the library and no monitor.
#[allow(dead_code, reason = "not every test file uses it")]
pub(crate) fn run(command: &[&str], with_library: bool) -> Output {
    let mut run = Command::new(command[0]);
    run.args(&command[1..]).stdin(Stdio::null());
    run.env_remove("LD_PRELOAD").env("SD_MONITOR", "/nonexistent/monitor.sock");
    if with_library {
        run.env("LD_PRELOAD", library());
    }
    run.output().unwrap_or_else(|error| panic!("{}: {error}", command[0]))
}
