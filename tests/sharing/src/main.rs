//! Programs that `cargo xtask sharing` runs, kills and watches. Plain users of sockets: of SocksDirect
//! only the layout of segments is linked in, for hostile ones.
//!
//! | command | role |
//! |---|---|
//! | `observer` | accepts, reads to the end, and says what came and how it ended |
//! | `victim OP PORT FILE` | does one operation between two stops, so that it can be killed at any instruction |
//! | `vandal PID SEED KIND FILE PIDS...` | a hostile peer: writes anything anywhere in the segments that a process shares with others |
//! | `scribbler PORT SEED` | that process |
//! | `wanderer PORT FILE ID` | a connection that is handed from process to process by fork, exec and SCM_RIGHTS |
//! | `roamer PLACE PATH MOVES SEED STEPS` | an end of a connection both ends of which are, and which carries bytes both ways meanwhile |
//! | `other-monitor PATH` | what a monitor of another version is to a client |
//! | `thief PID FD PORT` | takes a descriptor of another process and does harm to it |
//! | `liar PORT LIE` | a hostile peer: tells one lie about its connection, and dies |
//! | `sink` | a server that reads, in threads |
//! | `brief PORT WAY` | a client that is done soon, or lives |
//! | `echo-in-children [WAY]` | an echo server with a process for each connection |
//! | `echo [PORT [ADDRESS]]` | an echo server on epoll |
//! | `young PLACE PORT WAY` | a client of a server in another network namespace, which does something else next, or goes on |
//! | `chat PORT COUNT [MS]` | a client of it that checks every byte, with a pause after each answer |
//! | `crowd PORT COUNT` | processes with a connection each |
//! | `herd PATH PORT COUNT` | processes that wait until a monitor serves PATH, then connect until somebody listens, and stay |
//! | `dial PORT MS` | connections one after the other, for so long, each used once |
//! | `waves PORT COUNT TIMES` | many connections at a time, again and again |
//! | `late-client COUNT` | tries until its server, `late-server COUNT`, listens, again and again; all connections stay |
//! | `stalled COUNT BYTES WORKERS WAY AGAIN` | servers that offer so much to each of their readers, who read late |
//! | `closing-end PORT` | a client that does so once, and leaves nowhere to give them back to |
//! | `closing-echo EVERY`, `closing-chat PORT COUNT EVERY THREADS` | an echo server, and a client, that close the library's descriptors past libc |
//! | `confined FILTER ROLE...` | executes one of these under a seccomp filter, see `confined.rs` |
//! | `bursts PLACE SEED COUNT` | an end of connections that are closed behind a lot of bytes |
//! | `crossing PLACE WAY SEED BYTES` | an end of a connection that carries known bytes both ways, and checks them |
//! | `steered serve`, `steered ADDRESS:PORT` | a server, and a client that sends as much as its standard input says, and hands its connection over |
//! | `migrant ADDRESS`, `migrant ADDRESS:PORT SEED` | a server that is moved to another network namespace, and a client that checks every byte |
//! | `eater PORT` | a hostile peer: reads the eventfds that wake others, until it is killed |

mod attacks;
mod brief;
mod closer;
mod confined;
mod crossing;
mod echo;
mod late;
mod leaver;
mod liar;
mod many;
mod migrant;
mod note;
mod observer;
mod other_monitor;
mod patient;
mod pattern;
mod roamer;
mod scribbler;
mod stalled;
mod steered;
mod thief;
mod vandal;
mod victim;
mod wanderer;
mod young;

use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        ["observer"] => observer::run(),
        ["victim", op, port, file] => victim::run(op, number(port) as u16, file),
        ["scribbler", port, seed] => scribbler::run(number(port) as u16, number(seed)),
        ["vandal", pid, seed, kind, file, strangers @ ..] => {
            let strangers: Vec<u32> = strangers.iter().map(|pid| number(pid) as u32).collect();
            vandal::run(number(pid) as u32, number(seed), kind, file, &strangers)
        }
        ["wanderer", port, file, id] => wanderer::start(number(port) as u16, file, number(id)),
        ["go-on", fd, file, sent, seed] => {
            wanderer::go_on(number(fd) as i32, file, number(sent) as usize, number(seed))
        }
        ["roamer", place, path, moves, seed, steps] => {
            roamer::start(place, path, moves, number(seed), number(steps))
        }
        ["roam-on", words @ ..] => roamer::go_on(words),
        ["other-monitor", path] => other_monitor::serve(path),
        ["thief", pid, fd, port] => thief::run(number(pid) as i32, number(fd) as i32, number(port) as u16),
        ["liar", port, lie] => liar::run(number(port) as u16, lie),
        ["sink"] => liar::sink(),
        ["stalled", count, offer, workers, way, again] => {
            let [count, offer, workers] = [count, offer, workers].map(|word| number(word) as usize);
            stalled::run(count, offer, workers, way, !again.is_empty())
        }
        ["confined", filter, role @ ..] => confined::execute(filter, role),
        ["brief", port, way] => brief::run(number(port) as u16, way),
        ["echo-in-children", way @ ..] => brief::serve_in_children(way.first().copied().unwrap_or_default()),
        ["echo", at @ ..] => echo::serve(at.first().map_or(0, |port| number(port) as u16), at.get(1)),
        ["young", place, here, way] => young::run(place, number(here) as u16, way),
        ["chat", port, count] => echo::chat(number(port) as u16, number(count), Duration::ZERO),
        ["chat", port, count, pause] => {
            echo::chat(number(port) as u16, number(count), Duration::from_millis(number(pause)))
        }
        ["closing-echo", every] => closer::serve(number(every)),
        ["closing-chat", port, count, every, threads] => {
            let [count, every, threads] = [count, every, threads].map(|word| number(word) as usize);
            closer::chat(number(port) as u16, count, every, threads)
        }
        ["closing-end", port] => closer::end(number(port) as u16),
        ["patient", known, new, turns] => {
            patient::run(number(known) as u16, number(new) as u16, number(turns))
        }
        ["leaver", port, way, file] => leaver::run(number(port) as u16, way, file),
        ["crowd", port, count] => many::crowd(number(port) as u16, number(count)),
        ["herd", path, port, count] => many::herd(path, number(port) as u16, number(count)),
        ["dial", port, time] => many::dial(number(port) as u16, Duration::from_millis(number(time))),
        ["waves", port, count, times] => many::waves(number(port) as u16, number(count), number(times)),
        ["late-client", count] => late::connect(number(count)),
        ["late-server", count] => late::serve(number(count)),
        ["bursts", place, seed, count] => crossing::bursts(place, number(seed), number(count)),
        ["crossing", place, way, seed, bytes] => {
            crossing::run(place, way, number(seed), number(bytes) as usize)
        }
        ["steered", place] => steered::run(place),
        ["steered-on", how, number_of] => steered::go_on(how, number(number_of) as i32),
        ["migrant", words @ ..] => migrant::run(words),
        ["eater", port] => liar::eat(number(port) as u16),
        _ => Err(std::io::Error::other("see the head of tests/sharing/src/main.rs")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sd-sharing: {error}");
            ExitCode::FAILURE
        }
    }
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or(0)
}
