//! Programs that subjects start by exec, with descriptors that they inherit.

use std::process::ExitCode;

use crate::sys::*;

pub(crate) fn run(what: &str, arguments: &[&str]) -> ExitCode {
    alarm(9);
    let fds: Vec<i32> = arguments.iter().filter_map(|word| word.parse().ok()).collect();
    match (what, fds.as_slice()) {
        // Prints each byte string that comes, and answers it in upper case, until the stream ends.
        ("upper", [fd]) => upper(*fd),
        // Says of each descriptor whether it is open, and what it is.
        ("describe", fds) => {
            for fd in fds {
                say!("helper: {} {}", descriptor_flags(*fd), file_type(*fd));
            }
        }
        // Accepts one connection from an inherited listener and sends it a greeting.
        ("accept", [fd]) => {
            let accepted = show_fd("helper: accept", accept(*fd));
            show_send("helper", accepted, b"hello from exec", 0);
        }
        _ => return ExitCode::from(2),
    }
    ExitCode::SUCCESS
}

fn upper(fd: i32) {
    loop {
        let mut buffer = [0; 256];
        let result = read(fd, &mut buffer);
        show_bytes("helper: read", result, &buffer);
        if result.value <= 0 {
            return;
        }
        let answer = buffer[..result.count()].to_ascii_uppercase();
        show("helper: write", write(fd, &answer));
    }
}
