//! The benchmark measures what it says, and leaves nothing behind.

use sd_cli::scratch::Scratch;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// Command and library beside `sd-bench`, built now: Cargo does not build them for these tests, and those from before speak
/// another protocol.
fn built() -> &'static Path {
    static PRODUCTS: OnceLock<PathBuf> = OnceLock::new();
    PRODUCTS.get_or_init(|| {
        let products = Path::new(env!("CARGO_BIN_EXE_sd-bench")).parent().unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "sd-preload", "--package", "sd-cli", "--lib", "--bins"]);
        cargo.arg("--target-dir").arg(products.parent().unwrap());
        if products.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success());
        products.to_owned()
    })
}

/// `sd bench` with these arguments and the library that was built, in a directory of the test's own.
fn bench(folder: &Scratch, arguments: &[&str]) -> Command {
    let mut command = Command::new(built().join("sd"));
    command.arg("bench").args(arguments).env("SD_LIB", built().join("libsd.so")).env("TMPDIR", folder.path());
    command.env_remove("SD_MONITOR").env_remove("LD_PRELOAD").stdin(Stdio::null());
    command
}

fn is_empty(folder: &Scratch) -> bool {
    std::fs::read_dir(folder.path()).unwrap().next().is_none()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Standard error as lines.
fn errors(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stderr).lines().map(str::to_owned).collect()
}

#[test]
fn bench_measures_the_kernel_and_the_bare_ring_and_leaves_nothing_behind() {
    let folder = Scratch::new("bench-test").unwrap();
    for (what, systems, lines) in [
        ("latency", "tcp,unix,pipe,ring,ring-doorbell,cacheline", 6),
        ("rate", "tcp,unix,pipe,ring", 4),
        ("bandwidth", "tcp,ring", 6),
        ("connect", "tcp,unix", 5),
        ("cost", "tcp,unix", 9),
        ("exec", "tcp", 6),
    ] {
        let arguments = [what, "--quick", "--rounds", "1", "--json", "--systems", systems];
        let output = bench(&folder, &arguments).output().unwrap();
        assert_eq!(errors(&output), Vec::<String>::new(), "{what}");
        let rows: Vec<Value> =
            stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(rows.len(), lines, "{what}: {}", stdout(&output));
        for row in &rows {
            assert_eq!(row["bench"], what);
            assert!(row["median"].is_number() && row["unit"].is_string() && row["rounds"] == 1, "{row}");
        }
        let tcp = rows.iter().find(|row| row["system"] == "tcp").unwrap();
        assert_eq!(tcp["ratio_to_tcp"], 1.0);
    }
    assert!(is_empty(&folder));
}

#[test]
fn bench_without_the_library_measures_the_rest_and_fails() {
    let folder = Scratch::new("bench-test").unwrap();
    let arguments = ["latency", "--quick", "--rounds", "1", "--json", "--systems", "socksdirect,ring"];
    let output = bench(&folder, &arguments).env("SD_LIB", "/no/libsd.so").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stdout(&output).lines().count(), 1);
    assert!(errors(&output)[0].contains("/no/libsd.so"), "{:?}", errors(&output));
}

#[test]
fn shared_memory_is_measured_beside_the_kernel() {
    let folder = Scratch::new("bench-test").unwrap();
    for what in ["latency", "rate", "bandwidth", "connect", "cost"] {
        let arguments = [what, "--quick", "--rounds", "1", "--json", "--systems", "socksdirect,tcp"];
        let output = bench(&folder, &arguments).output().unwrap();
        assert_eq!(errors(&output), Vec::<String>::new(), "{what}");
        let rows = stdout(&output);
        let first: Value = serde_json::from_str(rows.lines().next().unwrap()).unwrap();
        assert_eq!((first["system"].as_str(), first["path"].as_str()), (Some("socksdirect"), Some("shm")));
        assert!(first["ratio_to_tcp"].is_number(), "{first}");
    }
    assert!(is_empty(&folder));
}

#[test]
fn its_own_command_line_is_that_of_sd_bench() {
    let output = Command::new(env!("CARGO_BIN_EXE_sd-bench")).arg("nonsense").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(errors(&output).len() == 1 && errors(&output)[0].ends_with("--help)"), "{output:?}");
}
