//! exec: what the next program can do with the sockets it was given, and what a failed exec leaves.

use std::ffi::CString;

use super::exec::{ask, exec_helper};
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("exec/epoll_in_the_new_image", epoll_in_the_new_image),
    solo("exec/names", names),
    solo("exec/shared_with_the_starter", shared_with_the_starter),
    solo("exec/queued_data", queued_data),
    solo("exec/other_sockets_are_closed", other_sockets_are_closed),
    solo("exec/waiting_connections", waiting_connections),
    solo("exec/new_sockets", new_sockets),
    solo("exec/unconnected", unconnected),
    solo("exec/chain", chain),
    solo("exec/fork_afterwards", fork_afterwards),
    solo("exec/in_a_thread", in_a_thread),
    solo("exec/failed", failed),
    solo("exec/failed_in_a_child", failed_in_a_child),
    solo("exec/empty_environment", empty_environment),
    solo("exec/script", script),
    solo("exec/fexecve", fexecve),
    solo("exec/standard_streams", standard_streams),
    solo("exec/killed", killed),
    solo("exec/edges_of_room", edges_of_room),
    solo("exec/vdso_is_the_kernels", vdso_is_the_kernels),
];

/// The sleeps make the new image wait in epoll for each word, and the end.
fn epoll_in_the_new_image() {
    let pair = connected();
    let child = fork_child(|| {
        close(pair.client);
        exec_helper("epoll", &[pair.server])
    });
    close(pair.server);
    let mut answers = Vec::new();
    for word in ["first", "second"] {
        sleep(100);
        answers.push(ask(pair.client, word));
    }
    sleep(100);
    shutdown(pair.client, libc::SHUT_WR);
    say!("child: {}", wait_child(child));
    say!("answers {answers:?}");
    show_recv("client", pair.client, 32, 0);
}

fn names() {
    let (listening, addr) = listener();
    let pair = connect_to(listening, &addr);
    let ports = [getsockname(pair.client).1.port(), getsockname(pair.server).1.port()].map(i32::from);
    let child = fork_child(|| exec_helper("names", &[pair.server, ports[1], ports[0]]));
    say!("child: {}", wait_child(child));
    let child = fork_child(|| exec_helper("names", &[pair.client, ports[0], ports[1]]));
    say!("child: {}", wait_child(child));
}

/// Both use the socket in turn; the stream is one.
fn shared_with_the_starter() {
    let pair = connected();
    for round in 0..3 {
        send(pair.client, b"for the child", 0);
        let child = fork_child(|| exec_helper("once", &[pair.server]));
        say!("child: {}", wait_child(child));
        show_recv("client", pair.client, 32, 0);
        show_send("client", pair.client, format!("for the starter {round}").as_bytes(), 0);
        show_recv("starter", pair.server, 32, 0);
        show_send("starter", pair.server, b"answer", 0);
        show_recv("client", pair.client, 32, 0);
    }
}

/// What was sent before exec, half-closed, and more than the first buffers hold.
fn queued_data() {
    let pair = connected();
    let sent = crate::bulk::send_pattern(pair.client, 50_000, &[10_000]);
    shutdown(pair.client, libc::SHUT_WR);
    let child = fork_child(|| {
        close(pair.client);
        exec_helper("count", &[pair.server])
    });
    close(pair.server);
    say!("sent {sent}, child: {}", wait_child(child));
    await_events(pair.client, libc::POLLRDHUP);
    show_recv("client", pair.client, 32, 0);
}

/// Of two connections of a registered process one is close-on-exec.
fn other_sockets_are_closed() {
    let (listening, addr) = listener();
    let [kept, closed] = [dial(&addr), dial(&addr)];
    let child = fork_child(|| {
        let [first, second] = [accept(listening).fd(), accept(listening).fd()];
        fcntl(second, libc::F_SETFD, libc::FD_CLOEXEC);
        exec_helper("once", &[first])
    });
    await_events(closed, libc::POLLRDHUP);
    show_recv("closed", closed, 32, 0);
    send(kept, b"still there", 0);
    say!("child: {}", wait_child(child));
    show_recv("kept", kept, 32, 0);
}

/// Connections that wait for accept at the time of the exec, and later ones.
fn waiting_connections() {
    let (listening, addr) = listener();
    let child = fork_child(|| {
        let mut ready = [pollfd(listening, libc::POLLIN)];
        poll(&mut ready, 2000);
        exec_helper("greet", &[listening, 3])
    });
    close(listening);
    let clients = [dial(&addr), dial(&addr), dial(&addr)];
    for client in clients {
        await_events(client, libc::POLLRDHUP);
        show_recv("client", client, 32, 0);
    }
    say!("child: {}", wait_child(child));
}

/// The new image makes connections of its own beside the one it was given.
fn new_sockets() {
    let pair = connected();
    let (listening, addr) = listener();
    let child = fork_child(|| exec_helper("dial", &[pair.server, i32::from(addr.port())]));
    let accepted = accept(listening).fd();
    let mut word = [0; 16];
    let got = recv(accepted, &mut word, 0).count();
    send(accepted, &word[..got], 0);
    say!("child: {}", wait_child(child));
    say!("word {}", text(&word[..got]));
    show_recv("client", pair.client, 32, 0);
}

/// A socket that is not connected yet is its own in both.
fn unconnected() {
    let (listening, addr) = listener();
    let (fresh, other) = (tcp(), tcp());
    let child = fork_child(|| exec_helper("connect", &[fresh, i32::from(addr.port())]));
    let accepted = accept(listening).fd();
    say!("child: {}", wait_child(child));
    show_recv("accepted", accepted, 32, 0);
    show("other: connect", connect(other, &addr));
}

fn chain() {
    let pair = connected();
    let child = fork_child(|| {
        close(pair.client);
        exec_helper("again", &[pair.server, 3])
    });
    close(pair.server);
    let answer = ask(pair.client, "through four images");
    shutdown(pair.client, libc::SHUT_WR);
    say!("child: {}", wait_child(child));
    say!("answer {answer}");
}

fn fork_afterwards() {
    let pair = connected();
    let child = fork_child(|| {
        close(pair.client);
        exec_helper("forks", &[pair.server])
    });
    close(pair.server);
    send(pair.client, b"for the grandchild", 0);
    say!("child: {}", wait_child(child));
    show_recv("client", pair.client, 32, 0);
    await_events(pair.client, libc::POLLRDHUP);
    show_recv("client", pair.client, 32, 0);
}

fn in_a_thread() {
    let pair = connected();
    let child = fork_child(|| {
        close(pair.client);
        let _ = std::thread::spawn(move || exec_helper("upper", &[pair.server])).join();
        1
    });
    close(pair.server);
    let answer = ask(pair.client, "from a thread");
    shutdown(pair.client, libc::SHUT_WR);
    say!("child: {}", wait_child(child));
    say!("answer {answer}");
}

fn try_exec(path: &str) {
    let path = CString::new(path).expect("no NUL");
    let argv = [path.as_ptr(), std::ptr::null()];
    show("execv", call!(libc::execv(path.as_ptr(), argv.as_ptr())));
    show("execvp", call!(libc::execvp(path.as_ptr(), argv.as_ptr())));
}

/// An argument that no kernel takes: E2BIG.
fn too_long() {
    let word = CString::new(vec![b'x'; 4 << 20]).expect("no NUL");
    let argv = [c"true".as_ptr(), word.as_ptr(), std::ptr::null()];
    show("too long", call!(libc::execv(c"/bin/true".as_ptr(), argv.as_ptr())));
}

fn exercise_failures() {
    let (listening, addr) = listener();
    let pair = connect_to(listening, &addr);
    send(pair.client, b"sent before", 0);
    try_exec("/nonexistent");
    try_exec("no-such-program");
    try_exec("/tmp");
    too_long();
    show_recv("server", pair.server, 32, 0);
    show_send("server", pair.server, b"answer", 0);
    show_recv("client", pair.client, 32, 0);
    let client = dial(&addr);
    let accepted = accept(listening).fd();
    show_send("new connection", client, b"x", 0);
    show_recv("new connection", accepted, 8, 0);
}

fn failed() {
    exercise_failures();
}

fn failed_in_a_child() {
    let pair = connected();
    let child = fork_child(|| {
        try_exec("/nonexistent");
        too_long();
        let mut buffer = [0; 32];
        let got = recv(pair.server, &mut buffer, 0).count();
        send(pair.server, &buffer[..got], 0);
        0
    });
    send(pair.client, b"for the child", 0);
    say!("child: {}", wait_child(child));
    show_recv("client", pair.client, 32, 0);
    show_send("server", pair.server, b"from the starter", 0);
    show_recv("client", pair.client, 32, 0);
}

/// `env -i`: the program after it does not load what its starter did.
fn empty_environment() {
    let pair = connected();
    let child = fork_child(|| {
        take_as_streams(&pair);
        let argv = [c"env".as_ptr(), c"-i".as_ptr(), c"/bin/cat".as_ptr(), std::ptr::null()];
        call!(libc::execvp(c"env".as_ptr(), argv.as_ptr()));
        127
    });
    close(pair.server);
    let client = pair.client;
    let writer = std::thread::spawn(move || {
        let sent = crate::bulk::send_pattern(client, 300_000, &[50_000]);
        shutdown(client, libc::SHUT_WR);
        sent
    });
    crate::bulk::receive_pattern(pair.client, u64::MAX, &[65_536]).show("back from cat");
    say!("sent {}", writer.join().unwrap_or(0));
    say!("cat: {}", wait_child(child));
}

fn script() {
    let pair = connected();
    let path = std::env::temp_dir().join(format!("sd-posix-script-{}", getpid()));
    std::fs::write(&path, "#!/bin/sh\nread word <&9\necho \"script: $word\" >&9\n").expect("a script");
    let path = CString::new(path.to_str().expect("UTF-8")).expect("no NUL");
    call!(libc::chmod(path.as_ptr(), 0o700));
    let child = fork_child(|| {
        dup2(pair.server, 9);
        let argv = [path.as_ptr(), std::ptr::null()];
        show("execv", call!(libc::execv(path.as_ptr(), argv.as_ptr())));
        127
    });
    send(pair.client, b"a line\n", 0);
    say!("script: {}", wait_child(child));
    call!(libc::unlink(path.as_ptr()));
    show_recv("client", pair.client, 32, 0);
}

fn fexecve() {
    let pair = connected();
    let child = fork_child(|| {
        let fd = call!(libc::open(c"/proc/self/exe".as_ptr(), libc::O_RDONLY)).fd();
        let number = CString::new(pair.server.to_string()).expect("no NUL");
        let words = [c"sd-posix", c"helper", c"once", &number];
        let argv: Vec<_> = words.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect();
        show("fexecve", call!(libc::fexecve(fd, argv.as_ptr(), super::spawn::environ)));
        127
    });
    send(pair.client, b"by descriptor", 0);
    say!("child: {}", wait_child(child));
    show_recv("client", pair.client, 32, 0);
}

/// Programs that use stdio on what exec gave them: the shell's redirections, as inetd has them.
fn standard_streams() {
    let pair = connected();
    let child = fork_child(|| {
        for standard in 0..3 {
            dup2(pair.server, standard);
        }
        close(pair.client);
        close(pair.server);
        let argv = [c"sed".as_ptr(), c"-u".as_ptr(), c"s/^/> /".as_ptr(), std::ptr::null()];
        call!(libc::execvp(c"sed".as_ptr(), argv.as_ptr()));
        127
    });
    close(pair.server);
    let answers = ["one\n", "two\n"].map(|word| ask(pair.client, word));
    shutdown(pair.client, libc::SHUT_WR);
    say!("sed: {}", wait_child(child));
    say!("answers {answers:?}");
    show_recv("client", pair.client, 32, 0);
}

/// The new image is killed: queued bytes come, then the end.
fn killed() {
    let pair = connected();
    let child = fork_child(|| {
        close(pair.client);
        exec_helper("hold", &[pair.server])
    });
    close(pair.server);
    let answer = ask(pair.client, "hold this");
    kill(child, libc::SIGKILL);
    say!("child: {}", wait_child(child));
    say!("answer {answer}");
    await_events(pair.client, libc::POLLRDHUP);
    show_recv("client", pair.client, 32, 0);
}

/// The new image writes much more than there is room for, and waits for edges; the starter has the socket too, and reads the other end.
fn edges_of_room() {
    const MEGABYTES: usize = 64;
    let pair = connected();
    let set = epoll();
    set_nonblocking(pair.server, true);
    for (fd, data) in [(pair.client, 1), (pair.server, 2)] {
        epoll_add(set, fd, libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLET, data);
    }
    let child = fork_child(|| exec_helper("fill", &[pair.client, MEGABYTES as i32]));
    let (mut got, mut buffer) = (0, vec![0; 1 << 16]);
    while got < MEGABYTES << 20 {
        match recv(pair.server, &mut buffer, 0) {
            some if some.value > 0 => got += some.count(),
            _ if epoll_wait(set, 2, 3000).0.value < 1 => break,
            _ => {}
        }
    }
    say!("child: {}", wait_child(child));
    say!("got {got}");
}

/// Who brings the library into a static program writes behind the vDSO's own bytes, and the library gives that back (`sd-attach`).
fn vdso_is_the_kernels() {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let of_vdso = maps.lines().skip_while(|line| !line.ends_with("[vdso]"));
    let changed =
        of_vdso.take_while(|line| !line.ends_with("[stack]")).find(|line| line.starts_with("Private_Dirty"));
    println!("changed: {}", changed.unwrap_or("not known").split_whitespace().collect::<Vec<_>>().join(" "));
}
