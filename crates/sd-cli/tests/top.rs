//! `sd top`: for scripts, and on a terminal.

mod support;

use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::Stdio;
use support::{Folder, Manner, errors, sd, stand_in, stdout};

const STATUS: &str = r#"{"version":"0.1.0","pid":42,"clients":[{"pid":7,"comm":"redis-server"}],
    "connections":[{"pid":7,"comm":"redis-server","fd":8,"local":"127.0.0.1:6379","peer":"127.0.0.1:40000",
    "state":"ESTABLISHED","path":"shm","reason":null,"rx_bytes":10,"tx_bytes":20,"rx_queue":5,"tx_queue":0}]}"#;

#[test]
fn scripts_get_a_document_per_line() {
    let folder = Folder::new();
    stand_in(&folder, Manner::Tells(STATUS.to_owned()));
    let arguments = ["top", "--json", "--interval", "0.05", "--count", "2"];
    let text = stdout(&sd(&folder, &arguments).output().unwrap());
    let documents: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(documents.len(), 2, "{text}");
    let connection = &documents[1]["connections"][0];
    assert_eq!((&connection["rx_bytes_per_second"], &connection["rx_queue"]), (&0.0.into(), &5.into()));
    assert_eq!(documents[1]["processes"][0]["shm"], 1);
}

#[test]
fn without_a_terminal_there_are_tables() {
    let folder = Folder::new();
    stand_in(&folder, Manner::Tells(STATUS.to_owned()));
    let arguments = ["top", "--interval", "0.05", "--count", "1", "--sort", "queue"];
    let text = stdout(&sd(&folder, &arguments).output().unwrap());
    assert!(text.contains("Recv/s") && text.contains("redis-server,pid=7,fd=8"), "{text}");
    let text = stdout(&sd(&folder, &arguments).arg("--processes").output().unwrap());
    assert!(text.contains("Sleeps/s") && !text.contains("fd=8"), "{text}");
}

#[test]
fn without_a_monitor_there_is_one_line() {
    let folder = Folder::new();
    for arguments in [&["top", "--json"][..], &["top"]] {
        let output = sd(&folder, arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(output.stdout.is_empty() && errors(&output).len() == 1, "{:?}", errors(&output));
    }
    let output = sd(&folder, &["top", "--interval", "0"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

/// Both ends of a new terminal.
fn terminal() -> (File, OwnedFd) {
    let (mut main, mut other) = (0, 0);
    let size = libc::winsize { ws_row: 24, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: two descriptors are written, which nobody else has; the rest is read or null.
    unsafe {
        let name = std::ptr::null_mut();
        assert_eq!(libc::openpty(&raw mut main, &raw mut other, name, std::ptr::null(), &raw const size), 0);
        (File::from_raw_fd(main), OwnedFd::from_raw_fd(other))
    }
}

/// Runs it on a terminal, ends it in a way, and returns all that it has written there.
fn on_terminal(end: impl FnOnce(&mut File, u32)) -> String {
    let folder = Folder::new();
    stand_in(&folder, Manner::Tells(STATUS.to_owned()));
    let (mut main, other) = terminal();
    let mut writer = main.try_clone().unwrap();
    let mut command = sd(&folder, &["top", "--interval", "0.1"]);
    let (input, output) = (other.try_clone().unwrap(), other);
    command.env("TERM", "xterm").stdin(Stdio::from(input)).stdout(Stdio::from(output));
    let mut child = command.spawn().unwrap();
    // The terminal ends when its last descriptor is closed.
    drop(command);
    let mut text = String::new();
    let mut read = |text: &mut String| {
        let mut bytes = [0; 4096];
        // EIO: nobody has the other end.
        let got = main.read(&mut bytes).unwrap_or(0);
        text.push_str(&String::from_utf8_lossy(&bytes[..got]));
        got != 0
    };
    while !text.contains("redis-server") {
        assert!(read(&mut text), "{text:?}");
    }
    end(&mut writer, child.id());
    while read(&mut text) {}
    assert_eq!(child.wait().unwrap().code(), Some(0), "{text:?}");
    text
}

#[test]
fn a_key_ends_it_and_the_terminal_is_as_it_was() {
    let text = on_terminal(|keys, _| keys.write_all(b"spq").unwrap());
    assert!(text.contains("\x1b[?1049h") && text.contains("q quit"), "{text:?}");
    assert!(text.trim_end().contains("\x1b[?1049l"), "{text:?}");
}

#[test]
fn a_signal_does_so_too() {
    let text = on_terminal(|_, pid| {
        // SAFETY: no pointers; the child was not waited for, so the number is its.
        assert_eq!(unsafe { libc::kill(pid as i32, libc::SIGTERM) }, 0);
    });
    assert!(text.contains("\x1b[?1049l"), "{text:?}");
}
