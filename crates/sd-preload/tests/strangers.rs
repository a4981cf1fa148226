//! Who pretends to be a monitor, or to keep a connection that it passes on, is told nothing and holds nobody up. Nor is a monitor
//! told of programs that have no use for it.

mod common;

use common::library;
use harness::scratch::Scratch;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than any time-out of the library's, shorter than what an endless wait would be taken for.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A directory that goes away, with this mode.
fn folder(name: &str, mode: u32) -> Scratch {
    let folder = Scratch::new(&format!("strangers-{name}")).unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(mode)).unwrap();
    folder
}

/// A program in Python, with the library if there is a monitor to look for.
fn python(script: &str, monitor: Option<&Path>) -> Command {
    let mut command = Command::new("python3");
    command.args(["-c", script]).env_remove("LD_PRELOAD").stdin(Stdio::null()).stdout(Stdio::piped());
    if let Some(monitor) = monitor {
        command.env("LD_PRELOAD", library()).env("SD_MONITOR", monitor);
    }
    command
}

/// Waits for the end of a program that must not be held up; what it said.
fn ends(mut child: Child, what: &str) -> String {
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > TIMEOUT {
            child.kill().unwrap();
            panic!("{what}: held up");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut said = String::new();
    child.stdout.unwrap().read_to_string(&mut said).unwrap();
    said
}

const CONNECTION: &str = "
import socket
s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); a, _ = s.accept()
c.sendall(b'fine'); print(a.recv(9).decode())
";

fn listen(path: &Path) -> OwnedFd {
    let fd = sd_sys::msg::listen_unix(path.as_os_str().as_encoded_bytes()).unwrap().into_raw();
    // SAFETY: the descriptor is nobody else's.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn has_visitors(listener: &OwnedFd) -> bool {
    sd_sys::fd::poll_one(listener.as_raw_fd(), libc::POLLIN, 0).unwrap() != 0
}

#[test]
fn a_monitor_that_accepts_nobody() {
    let folder = folder("full", 0o700);
    let path = folder.path().join("monitor.sock");
    let _listener = listen(&path);
    let mut held = Vec::new();
    while let Ok(fd) = sd_sys::msg::connect_unix(path.as_os_str().as_encoded_bytes(), 1) {
        held.push(fd);
    }
    let child = python(CONNECTION, Some(&path)).spawn().unwrap();
    assert_eq!(ends(child, "a full backlog"), "fine\n");
    drop(held);
}

#[test]
fn a_socket_that_others_could_have_put_there() {
    for mode in [0o777, 0o1777, 0o770] {
        let folder = folder(&format!("{mode:o}"), mode);
        let path = folder.path().join("monitor.sock");
        let listener = listen(&path);
        let child = python(CONNECTION, Some(&path)).spawn().unwrap();
        assert_eq!(ends(child, "an open directory"), "fine\n");
        assert!(!has_visitors(&listener), "{mode:o}");
    }
    // The same place, when nobody else can write to it.
    let folder = folder("closed", 0o700);
    let path = folder.path().join("monitor.sock");
    let listener = listen(&path);
    let mut child = python(CONNECTION, Some(&path)).spawn().unwrap();
    let began = Instant::now();
    while !has_visitors(&listener) {
        assert!(began.elapsed() < TIMEOUT, "nobody comes to a closed directory");
        std::thread::sleep(Duration::from_millis(5));
    }
    // What a monitor that says nothing costs is another question.
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Waits in an epoll instance, has threads and children, and makes no TCP socket.
const WITHOUT_TCP: &str = "
import os, select, socket, threading
e = select.epoll(); a, b = socket.socketpair(); e.register(a, select.EPOLLIN)
t = threading.Thread(target=lambda: e.poll(1)); t.start(); b.send(b'x'); t.join()
pid = os.fork()
if pid == 0: print(e.poll(1) != [], flush=True); os._exit(0)
os.waitpid(pid, 0); os.system('true')
u = socket.socket(socket.AF_UNIX); u.bind('\\0' + 'sd-test-%d' % os.getpid()); u.listen()
";

#[test]
fn a_program_without_tcp_tells_nobody() {
    let folder = folder("without", 0o700);
    let path = folder.path().join("monitor.sock");
    let listener = listen(&path);
    let child = python(WITHOUT_TCP, Some(&path)).spawn().unwrap();
    assert_eq!(ends(child, "a program without TCP"), "True\n");
    assert!(!has_visitors(&listener));
}

/// Sends a kernel connection, and listens under the name by which its keeper would be found.
const PRETENDER: &str = "
import os, socket, struct, sys, time
to = socket.socket(fileno=0)
s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); a, _ = s.accept()
cookie, = struct.unpack('Q', a.getsockopt(socket.SOL_SOCKET, 57, 8))
name = ('\\0sd-bridge-%016x' % cookie).ljust(108, '\\0')
if os.getuid() == 0: os.setgid(2003); os.setuid(2003)
keeper = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); keeper.bind(name); keeper.listen(0)
held = []
while sys.argv[1] == 'full':
    c2 = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); c2.setblocking(False)
    try: c2.connect(name); held.append(c2)
    except BlockingIOError: break
socket.send_fds(to, [b'x'], [a.fileno()])
c.sendall(b'fine'); time.sleep(60)
";

/// Which knows of no monitor, but has looked for one: its table of sockets is there.
const RECEIVER: &str = "
import socket
socket.socket().close()
_, fds, _, _ = socket.recv_fds(socket.socket(fileno=0), 9, 1)
print(socket.socket(fileno=fds[0]).recv(9).decode())
";

#[test]
fn a_sender_that_pretends_to_keep_the_connection() {
    let folder = folder("pretender", 0o700);
    let path = folder.path().join("monitor.sock");
    let listener = listen(&path);
    std::thread::spawn(move || {
        loop {
            // SAFETY: null addresses are allowed.
            let visitor =
                unsafe { libc::accept(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut()) };
            sd_sys::fd::close(visitor);
        }
    });
    for manner in ["silent", "full"] {
        let (there, here) = UnixStream::pair().unwrap();
        let mut pretender = python(PRETENDER, None);
        let mut pretender = pretender.arg(manner).stdin(OwnedFd::from(there)).spawn().unwrap();
        let mut receiver = python(RECEIVER, Some(&path));
        let receiver = receiver.stdin(OwnedFd::from(here)).spawn().unwrap();
        assert_eq!(ends(receiver, manner), "fine\n");
        pretender.kill().unwrap();
        pretender.wait().unwrap();
    }
}
