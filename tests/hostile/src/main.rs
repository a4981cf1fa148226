//! Programs that `cargo xtask hostile` runs: honest ones, which know nothing of SocksDirect, and attackers, which speak
//! the control messages by hand and have no library. An attacker says `ready` when its attack stands, and lasts until it
//! is ended, unless its line says otherwise.
//!
//! | honest | role |
//! |---|---|
//! | `serve PORT WORD [STYLE]` | a server that answers each line with that word and the line; see `honest` |
//! | `contact PORT LINE [MS]` | a client's first connection: the answer, and how long it took |
//! | `pace PORT MS` | one connection that asks every millisecond: how long it had to wait |
//! | `sleep` | somebody else's process |
//!
//! | attacker | what it tries |
//! |---|---|
//! | `signal PID SIGNAL` | the monitor is to send a signal to a stranger; ends |
//! | `squat PORT WAY` | has a listener registered that the kernel does not have any more |
//! | `flood PORT COUNT` | a server is to take so many channels |
//! | `syn-flood PORT CHANNELS MS` | a server's backlog is to take all connections of so many channels |
//! | `hang WAY` | the monitor is to close what takes long to close |
mod client;
mod flood;
mod hang;
mod honest;
mod signal;
mod squat;

use std::io;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["serve", port, word] => honest::serve(number(port) as u16, word, "threads"),
        ["serve", port, word, style] => honest::serve(number(port) as u16, word, style),
        ["contact", port, line] => honest::contact(number(port) as u16, line, 5000),
        ["contact", port, line, ms] => honest::contact(number(port) as u16, line, number(ms)),
        ["pace", port, ms] => honest::pace(number(port) as u16, number(ms)),
        ["sleep"] => {
            std::thread::sleep(std::time::Duration::from_secs(60));
            Ok(())
        }
        ["signal", pid, signal] => signal::run(number(pid) as i32, number(signal) as u16),
        ["squat", port, way] => squat::run(number(port) as u16, way),
        ["flood", port, count] => flood::channels(number(port) as u16, number(count)),
        ["syn-flood", port, channels, ms] => {
            flood::requests(number(port) as u16, number(channels), number(ms))
        }
        ["hang", way] => hang::run(way),
        _ => Err(io::Error::other("see the head of tests/hostile/src/main.rs")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sd-hostile: {error}");
            ExitCode::FAILURE
        }
    }
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or(0)
}

/// The attack stands; it lasts until somebody ends it.
fn stand() -> io::Result<()> {
    println!("ready");
    loop {
        std::thread::park();
    }
}
