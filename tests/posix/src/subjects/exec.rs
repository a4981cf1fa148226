//! exec: sockets given to the next program.

use std::ffi::CString;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("exec/inherited_stream", inherited_stream),
    solo("exec/inherited_listener", inherited_listener),
    solo("exec/inetd", inetd),
    solo("exec/cloexec", cloexec),
    solo("exec/shell_redirect", shell_redirect),
    solo("exec/spawned_program_on_socket", spawned_program_on_socket),
    solo("exec/stranger_reads", stranger_reads),
    solo("exec/stranger_writes", stranger_writes),
    solo("exec/starter_reads_late", starter_reads_late),
    solo("exec/stranger_accepts", stranger_accepts),
    solo("exec/stranger_alone", stranger_alone),
];

/// As [`exec_helper`], in an environment in which the program does not load the library.
pub(super) fn exec_stranger(what: &str, fds: &[i32]) -> i32 {
    let environment = [c"SD_MONITOR=/nonexistent".as_ptr(), std::ptr::null()];
    exec_in(what, fds, environment.as_ptr())
}

/// Replaces this process by this program's helper, with descriptors that it inherits.
pub(crate) fn exec_helper(what: &str, fds: &[i32]) -> i32 {
    // SAFETY: subjects change their environment before they have threads, if at all.
    exec_in(what, fds, unsafe { super::spawn::environ })
}

fn exec_in(what: &str, fds: &[i32], environment: *const *const libc::c_char) -> i32 {
    let words = ["helper".to_owned(), what.to_owned()].into_iter().chain(fds.iter().map(i32::to_string));
    let words: Vec<CString> = words.map(|word| CString::new(word).expect("no NUL")).collect();
    let mut pointers = vec![c"sd-posix".as_ptr()];
    pointers.extend(words.iter().map(|word| word.as_ptr()));
    pointers.push(std::ptr::null());
    show("execve", call!(libc::execve(c"/proc/self/exe".as_ptr(), pointers.as_ptr(), environment)));
    127
}

/// Sends a word and waits for the answer. Prints nothing, for the child prints at the same time.
pub(super) fn ask(fd: i32, word: &str) -> String {
    send(fd, word.as_bytes(), 0);
    let mut buffer = [0; 32];
    let got = recv(fd, &mut buffer, 0);
    text(&buffer[..got.count()])
}

fn inherited_stream() {
    let pair = connected();
    let child = fork_child(|| {
        close(pair.client);
        exec_helper("upper", &[pair.server])
    });
    close(pair.server);
    let answers = ["first", "second"].map(|word| ask(pair.client, word));
    shutdown(pair.client, libc::SHUT_WR);
    say!("child: {}", wait_child(child));
    say!("answers {answers:?}");
    await_readable(pair.client);
    show_recv("client", pair.client, 32, 0);
}

fn inherited_listener() {
    let (listening, addr) = listener();
    let child = fork_child(|| exec_helper("accept", &[listening]));
    close(listening);
    let client = dial(&addr);
    say!("child: {}", wait_child(child));
    await_events(client, libc::POLLRDHUP);
    show_recv("client", client, 32, 0);
    show_recv("client", client, 32, 0);
}

fn inetd() {
    let pair = connected();
    let child = fork_child(|| {
        dup2(pair.server, 0);
        close(pair.server);
        close(pair.client);
        exec_helper("upper", &[0])
    });
    close(pair.server);
    let answer = ask(pair.client, "on standard input");
    close(pair.client);
    say!("child: {}", wait_child(child));
    say!("answer {answer}");
}

fn cloexec() {
    let pair = connected();
    let kept = dup(pair.server).fd();
    fcntl(pair.server, libc::F_SETFD, libc::FD_CLOEXEC);
    let child = fork_child(|| exec_helper("describe", &[pair.client, pair.server, kept]));
    say!("child: {}", wait_child(child));
    show_send("parent", pair.server, b"x", 0);
}

fn run_shell(command: &str) -> i32 {
    let command = CString::new(command).expect("no NUL");
    // SAFETY: a C string; subjects run this with one thread.
    unsafe { libc::system(command.as_ptr()) }
}

/// `system` with a redirection to an inherited socket: the shell and echo write to it.
fn shell_redirect() {
    let pair = connected();
    let low = dup2(pair.server, 9).fd();
    say!("system: {}", run_shell(&format!("echo from the shell >&{low}; cat /proc/self/comm >&{low}")));
    await_bytes(pair.client, 19);
    show_recv("client", pair.client, 64, 0);
    send(pair.client, b"a line\n", 0);
    say!("system: {}", run_shell(&format!("read word <&{low}; test \"$word\" = 'a line'")));
    close(low);
    close(pair.server);
    await_events(pair.client, libc::POLLRDHUP);
    show_recv("client", pair.client, 64, 0);
}

fn spawned_program_on_socket() {
    let pair = connected();
    let child = fork_child(|| {
        take_as_streams(&pair);
        let arguments = [c"cat".as_ptr(), std::ptr::null()];
        call!(libc::execvp(c"cat".as_ptr(), arguments.as_ptr()));
        127
    });
    close(pair.server);
    let client = pair.client;
    let writer = std::thread::spawn(move || {
        let sent = crate::bulk::send_pattern(client, 1_000_000, &[50_000]);
        shutdown(client, libc::SHUT_WR);
        sent
    });
    crate::bulk::receive_pattern(pair.client, u64::MAX, &[65_536]).show("back from cat");
    say!("sent {}", writer.join().unwrap_or(0));
    say!("cat: {}", wait_child(child));
}

/// The program does not load the library, and its starter waits for it with a copy of the connection.
fn stranger_reads() {
    let pair = connected();
    let child = fork_child(|| {
        close(pair.client);
        exec_stranger("count", &[pair.server])
    });
    let client = pair.client;
    let writer = std::thread::spawn(move || {
        let sent = crate::bulk::send_pattern(client, 6_000_000, &[50_000]);
        shutdown(client, libc::SHUT_WR);
        sent
    });
    say!("child: {}", wait_child(child));
    say!("sent {}", writer.join().unwrap_or(0));
}

/// The program does not load the library and reads nothing; its starter reads, but takes its time.
fn starter_reads_late() {
    let pair = connected();
    let child = fork_child(|| {
        close(pair.client);
        exec_stranger("late", &[pair.server])
    });
    send(pair.client, b"early", 0);
    pause(200);
    send(pair.client, b" and not", 0);
    show_recv("starter", pair.server, 5, 0);
    say!("child: {}", wait_child(child));
    show_recv("starter", pair.server, 32, 0);
    show_recv("client", pair.client, 32, 0);
    send(pair.client, b"and after it", 0);
    show_recv("starter", pair.server, 32, 0);
}

/// The program does not load the library, and its starter reads what comes meanwhile.
fn stranger_writes() {
    let pair = connected();
    let child = fork_child(|| {
        close(pair.client);
        exec_stranger("late", &[pair.server])
    });
    let client = pair.client;
    let writer = std::thread::spawn(move || crate::bulk::send_pattern(client, 6_000_000, &[50_000]));
    let got = crate::bulk::receive_pattern(pair.server, 6_000_000, &[65_536]);
    say!("starter: received {} bytes, intact {}", got.bytes, got.intact);
    say!("sent {}", writer.join().unwrap_or(0));
    say!("child: {}", wait_child(child));
    show_recv("client", pair.client, 32, 0);
}

/// The program does not load the library, and is the only one that has the connection: its end is the connection's. The option is one that the
/// kernel alone knows; servers that execute a program for each connection ask for it.
fn stranger_alone() {
    const SO_ORIGINAL_DST: i32 = 80;
    let pair = connected();
    let child = fork_child(|| {
        close(pair.client);
        get_bytes(pair.server, libc::SOL_IP, SO_ORIGINAL_DST, &mut [0; 16]);
        exec_stranger("once", &[pair.server])
    });
    close(pair.server);
    send(pair.client, b"question", 0);
    show_recv("client", pair.client, 32, 0);
    say!("child: {}", wait_child(child));
    show_recv("client", pair.client, 32, 0);
}

/// The program does not load the library, and its starter waits for connections as well, but accepts none.
fn stranger_accepts() {
    const CLIENTS: i32 = 3;
    let (listener, addr) = listener();
    let instance = epoll();
    epoll_add(instance, listener, libc::EPOLLIN | libc::EPOLLET, 1);
    let child = fork_child(|| exec_stranger("greet", &[listener, CLIENTS]));
    // Until it accepts.
    pause(200);
    for _ in 0..CLIENTS {
        let client = dial(&addr);
        show_recv("client", client, 32, 0);
        close(client);
    }
    say!("child: {}", wait_child(child));
    let own = connect_to(listener, &addr);
    say!("starter: {}", ask_once(&own));
}

/// A word through a connection of this process.
fn ask_once(pair: &Connected) -> String {
    send(pair.client, b"and now", 0);
    let mut buffer = [0; 32];
    let got = recv(pair.server, &mut buffer, 0);
    text(&buffer[..got.count()])
}
