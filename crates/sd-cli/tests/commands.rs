//! The other commands: what they print, and one clear line when something is wrong.

mod support;

use serde_json::Value;
use support::{Folder, Manner, errors, listen, sd, stand_in, stdout};

const STATUS: &str = r#"{"version":"0.1.0","pid":42,"clients":[{"pid":7}],"channels":3,"counters":{"connects":5},
    "connections":[{"pid":7,"comm":"redis-server","fd":8,"local":"127.0.0.1:6379","peer":"127.0.0.1:40000",
    "state":"ESTAB","path":"shm","reason":null,"rx_bytes":10,"tx_bytes":20,"rx_queue":5,"tx_queue":0}],
    "listeners":[{"pid":7,"comm":"redis-server","local":"127.0.0.1:6379","backlog":511}]}"#;

#[test]
fn ss_shows_what_the_monitor_says() {
    let folder = Folder::new();
    stand_in(&folder, Manner::Tells(STATUS.to_owned()));
    let table = stdout(&sd(&folder, &["ss"]).output().unwrap());
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 3, "{table}");
    for word in ["State", "Recv-Q", "Send-Q", "Path", "Reason", "Process"] {
        assert!(lines[0].contains(word), "{table}");
    }
    assert!(lines[2].contains("shm") && lines[2].contains("redis-server"), "{table}");
    let json: Value =
        serde_json::from_str(&stdout(&sd(&folder, &["ss", "--json"]).output().unwrap())).unwrap();
    assert_eq!(json["monitor"]["pid"], 42);
    assert_eq!(json["connections"][0]["rx_queue"], 5);
    assert_eq!(json["connections"][0]["reason"], Value::Null);
    assert_eq!(json["listeners"][0]["local"], "127.0.0.1:6379");
}

/// Runs `sd ss` where it must fail, while what it asks is as it was; its one line.
fn ss_failure(folder: &Folder) -> String {
    let output = sd(folder, &["ss"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let lines = errors(&output);
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines[0].clone()
}

#[test]
fn ss_says_in_one_line_why_it_cannot() {
    let folder = Folder::new();
    assert!(ss_failure(&folder).contains("no monitor"));
    std::fs::write(folder.join("monitor.sock"), "").unwrap();
    assert!(ss_failure(&folder).contains("stale"));
    std::fs::remove_file(folder.join("monitor.sock")).unwrap();
    drop(listen(&folder.join("monitor.sock")));
    assert!(ss_failure(&folder).contains("stale"));
    let stuck = Folder::new();
    stand_in(&stuck, Manner::Stuck);
    assert!(ss_failure(&stuck).contains("does not answer"));
    let confused = Folder::new();
    stand_in(&confused, Manner::Confused);
    assert!(ss_failure(&confused).contains("version"));
    let senseless = Folder::new();
    stand_in(&senseless, Manner::Tells("not json".to_owned()));
    assert!(ss_failure(&senseless).contains("JSON"));
}

#[test]
fn mistakes_on_the_command_line_are_one_line() {
    let folder = Folder::new();
    for arguments in [
        &["--no-such-flag"][..],
        &["no-such-command"],
        &["run", "--no-such-flag"],
        &["run"],
        &["ss", "--no-such-flag"],
        &["bench", "nonsense"],
        &["bench", "latency", "--rounds", "0"],
        &[],
    ] {
        let output = sd(&folder, arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(
            errors(&output).len() == 1 && output.stdout.is_empty(),
            "{arguments:?}: {:?}",
            errors(&output)
        );
    }
}

#[test]
fn help_and_version_are_no_failures() {
    let folder = Folder::new();
    for arguments in [&["--help"][..], &["run", "--help"], &["bench", "--help"], &["--version"]] {
        let output = sd(&folder, arguments).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty() && !output.stdout.is_empty());
        assert!(!stdout(&output).contains("doctor-peer"));
    }
}

#[test]
fn completions_and_man_pages_name_every_command() {
    let folder = Folder::new();
    let commands = ["run", "monitor", "ss", "top", "doctor", "bench", "completions", "man"];
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = stdout(&sd(&folder, &["completions", shell]).output().unwrap());
        assert!(commands.iter().all(|command| script.contains(command)), "{shell}");
        assert!(!script.contains("doctor-peer"));
    }
    assert!(stdout(&sd(&folder, &["man"]).output().unwrap()).contains("doctor(1)"));
    let pages = folder.join("man");
    assert!(sd(&folder, &["man", "--dir"]).arg(&pages).status().unwrap().success());
    assert!(commands.iter().all(|command| pages.join(format!("sd-{command}.1")).is_file()));
    assert!(pages.join("sd.1").is_file());
}

/// Copies `sd`, in another process: one that has it open for writing keeps everybody from executing it, and so does a
/// child that another test has just forked.
fn copy_to(path: &std::path::Path) {
    let sd = env!("CARGO_BIN_EXE_sd");
    assert!(std::process::Command::new("cp").arg(sd).arg(path).status().unwrap().success());
}

/// `sd` where nothing else is.
#[test]
fn bench_says_what_is_missing() {
    let folder = Folder::new();
    let alone = folder.join("sd");
    copy_to(&alone);
    let output = std::process::Command::new(&alone).args(["bench", "latency"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let lines = errors(&output);
    assert!(output.stdout.is_empty() && lines.len() == 1, "{lines:?}");
    let missing = folder.join("sd-bench").display().to_string();
    assert!(lines[0].starts_with("sd: sd bench") && lines[0].contains(&missing), "{lines:?}");
}

/// `sd` becomes the program beside it, with its process id and its arguments.
#[test]
fn bench_is_the_program_beside() {
    let folder = Folder::new();
    let (sd, bench) = (folder.join("sd"), folder.join("sd-bench"));
    copy_to(&sd);
    std::os::unix::fs::symlink("/bin/echo", &bench).unwrap();
    let output = std::process::Command::new(&sd).args(["bench", "rate", "--quick"]).output().unwrap();
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("rate --quick\n", Some(0)));
}

#[test]
fn doctor_speaks_json() {
    let folder = Folder::new();
    let output = sd(&folder, &["doctor", "--json"]).output().unwrap();
    let json: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let checks = json["checks"].as_array().unwrap();
    for name in ["library", "monitor", "memfd", "futex", "descriptors", "self-test"] {
        let check = checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no {name}"));
        assert!(["ok", "warn", "fail"].contains(&check["verdict"].as_str().unwrap()));
    }
    let failed = checks.iter().any(|check| check["verdict"] == "fail");
    assert_eq!(json["ok"], !failed);
    assert_eq!(output.status.success(), !failed);
}

/// The library beside `sd`, built now: Cargo does not build it for tests, and one from before speaks another protocol.
fn library() -> std::path::PathBuf {
    let beside = std::path::Path::new(env!("CARGO_BIN_EXE_sd")).with_file_name("libsd.so");
    let products = beside.parent().unwrap();
    let mut cargo = std::process::Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", "sd-preload", "--lib"]);
    cargo.arg("--target-dir").arg(products.parent().unwrap());
    if products.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success());
    beside
}

#[test]
fn the_whole_of_it_works() {
    let library = library();
    let folder = Folder::new();
    let doctor = sd(&folder, &["doctor", "--json"]).env("SD_LIB", &library).output().unwrap();
    let json: Value = serde_json::from_str(&stdout(&doctor)).unwrap();
    for name in ["library", "self-test"] {
        let check = json["checks"].as_array().unwrap().iter().find(|check| check["name"] == name).unwrap();
        assert_eq!(check["verdict"], "ok", "{check}");
    }
    assert!(folder.is_empty());
}
