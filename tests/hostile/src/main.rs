//! Programs that `cargo xtask hostile` runs: honest ones, which know nothing of SocksDirect, and attackers, which speak
//! the control messages by hand and have no library. An attacker says `ready` when its attack stands, and lasts until it
//! is ended, unless its line says otherwise.
//!
//! | honest | role |
//! |---|---|
//! | `serve PORT WORD [STYLE]` | a server that answers each line with that word and the line; see `honest` |
//! | `contact PORT LINE [MS]` | a client's first connection: the answer, and how long it took |
//! | `crowd PORT COUNT` | that many connections, made one after the other, and the answer on each |
//! | `became PORT UID` | a client that makes a socket, then becomes another user |
//! | `privsep-serve WAY PORT UID`, `privsep-talk PORT` | a server with a child that gives its privileges up, and its client |
//! | `receiver PATH` | is sent descriptors, and says how long that took |
//! | `echo-passed PATH` | is sent connections, and echoes them |
//! | `pace PORT MS` | one connection that asks every millisecond: how long it had to wait |
//! | `reach IP PORT LINE` | the same, to another address |
//! | `swallow PORT`, `bulk PORT COUNT MIB` | a server that drops what comes, or sends it back, and its client |
//! | `sleep` | somebody else's process |
//!
//! | attacker | what it tries |
//! |---|---|
//! | `signal PID SIGNAL` | the monitor is to send a signal to a stranger; ends |
//! | `squat PORT WAY` | has a listener registered that the kernel does not have any more |
//! | `matrix UID PORT PIDS...` | each request with each descriptor about each stranger; begins as root, becomes that user; ends |
//! | `eventfd` | the monitor is to write to an eventfd that has no room |
//! | `wakes PORT` | so is a server |
//! | `names PORT` | asks for a port by every name of it; ends |
//! | `nobody PORT` | asks for a port in messages whose sender the kernel has not noted; ends |
//! | `syn PORT FROM TO` | a connection from a port of its choice, to a listener of its choice |
//! | `flood PORT COUNT`, `synflood PORT COUNT` | channels to a server, empty or full |
//! | `charge PORT COUNT WAY` | messages that were never written, so that who reads them pays for their memory |
//! | `squat-directory UID` | the directory in which a user's library may look for the monitor |
//! | `keeper PATH WAY` | passes a connection whose keeper it pretends to be |
//! | `spray FIRST LAST` | connects to every port, to be first where somebody else is meant |
//! | `eat-channels N`, `eat-answers N`, `eat-forks N`, `eat-clients N`, `fat N` | what a client can make the monitor hold and look at |
//! | `bind-block PORT` | a connection that there never was |
//! | `plant PROGRAM` | becomes a set-user-id program that finds an image of ours |
//! | `hang WAY` | the monitor is to close what takes long to close |
//! | `words PORT WAY` | an end of a promoted connection that writes into the other end's word; has the library |
//! | `lazy PORT COUNT` | an end that has its peer send again through the kernel what it never reads; has the library |
//! | `hold WAY UID` | the monitor is to want a lock that the attacker has; begins as root, and becomes that user |
mod bridge;
mod charge;
mod client;
mod eat;
mod eventfd;
mod fuse;
mod hang;
mod hold;
mod honest;
mod matrix;
mod places;
mod policy;
mod privsep;
mod roads;
mod secure;
mod signal;
mod squat;
mod supply;
mod syn;
mod wakes;

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
        ["swallow", port] => charge::swallow(number(port) as u16),
        ["late", port, count] => charge::late(number(port) as u16, number(count)),
        ["burst", port] => charge::burst(number(port) as u16),
        ["bulk", port, count, mib] => charge::bulk(number(port) as u16, number(count), number(mib)),
        ["charge", port, count, way] => charge::run(number(port) as u16, number(count), way),
        ["sleep"] => {
            std::thread::sleep(std::time::Duration::from_secs(60));
            Ok(())
        }
        ["signal", pid, signal] => signal::run(number(pid) as i32, number(signal) as u16),
        ["squat", port, way] => squat::run(number(port) as u16, way),
        ["reach", ip, port, line] => honest::reach(ip, number(port) as u16, line),
        ["matrix", user, port, victims @ ..] => {
            let victims: Vec<i32> = victims.iter().map(|pid| number(pid) as i32).collect();
            matrix::run(number(user) as u32, &victims, number(port) as u16)
        }
        ["eventfd"] => eventfd::run(),
        ["wakes", port] => wakes::run(number(port) as u16),
        ["crowd", port, count] => honest::crowd(number(port) as u16, number(count)),
        ["became", port, user] => policy::became(number(port) as u16, number(user) as u32),
        ["names", port] => policy::names(number(port) as u16),
        ["nobody", port] => policy::nobody(number(port) as u16),
        ["privsep-serve", way, port, user] => privsep::serve(way, number(port) as u16, number(user) as u32),
        ["privsep-talk", port] => privsep::talk(number(port) as u16),
        ["syn", port, from, to] => syn::run(number(port) as u16, number(from) as u16, number(to) as u16),
        ["flood", port, count] => syn::flood(number(port) as u16, number(count), false),
        ["synflood", port, count] => syn::flood(number(port) as u16, number(count), true),
        ["squat-directory", user] => places::squat_directory(number(user) as u32),
        ["receiver", path] => places::receiver(path),
        ["keeper", path, way] => places::keeper(path, way),
        ["echo-passed", path] => bridge::echo(path),
        ["spray", first, last] => bridge::spray(number(first) as u16, number(last) as u16),
        ["eat-channels", count] => eat::channels(number(count)),
        ["eat-answers", count] => eat::answers(number(count)),
        ["eat-forks", count] => eat::forks(number(count) as u32),
        ["eat-clients", count] => eat::clients(number(count)),
        ["fat", count] => eat::fat(number(count)),
        ["bind-block", port] => eat::bind_block(number(port) as u16),
        ["plant", program] => secure::plant(program),
        ["secure"] => secure::look(),
        ["words", port, way] => roads::words(number(port) as u16, way),
        ["lazy", port, count] => roads::lazy(number(port) as u16, number(count)),
        ["hang", way] => hang::run(way),
        ["hold", way, user] => hold::run(way, number(user) as u32),
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

/// Root's process is a user's from now on.
fn become_user(user: u32) -> io::Result<()> {
    // SAFETY: no pointers but a null one, of no groups.
    let left = unsafe {
        libc::setgroups(0, std::ptr::null()) == 0 && libc::setgid(user) == 0 && libc::setuid(user) == 0
    };
    // Its own /proc was root's otherwise.
    // SAFETY: no pointers.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) };
    if left { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The attack stands; it lasts until somebody ends it.
fn stand() -> io::Result<()> {
    println!("ready");
    loop {
        std::thread::park();
    }
}
