//! Servers that are started again and again, or stay, beside what comes and goes.

use super::start;
use harness::Result;
use harness::lab::{Lab, Side};
use harness::nginx::{Nginx, Workers};
use harness::process::Proc;

#[derive(Clone, Copy)]
pub(super) enum Server {
    /// One process, epoll.
    Echo,
    /// A master that never accepts, and two workers.
    Nginx,
    /// A parent that listens and forks two children, which accept.
    Prefork,
    /// Threads that sleep in an epoll instance. The socket is registered there before it listens, or when it does.
    Threads { is_registered_early: bool },
    /// Accepts by another number than it listens by, which is the older one of the two.
    Duplicate,
    /// One thread of many serves, with an instance that is older than the socket.
    Node,
}

/// The program: `PORT`.
const PREFORK: &str = r#"
import os, selectors, signal, socket, sys
children = []
def end(*_):
    for child in children:
        os.kill(child, signal.SIGKILL)
    os._exit(0)
signal.signal(signal.SIGTERM, end)
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=511)
print("port", listener.getsockname()[1], flush=True)
for _ in range(2):
    children.append(os.fork())
    if children[-1] == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        waiting = selectors.DefaultSelector()
        listener.setblocking(False)
        waiting.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                try:
                    if key.fileobj is listener:
                        connection, _ = listener.accept()
                        waiting.register(connection, selectors.EVENT_READ)
                        continue
                    data = key.fileobj.recv(4096)
                    if data:
                        key.fileobj.send(data)
                        continue
                except BlockingIOError:
                    continue
                except ConnectionError:
                    pass
                waiting.unregister(key.fileobj)
                key.fileobj.close()
os.wait()
"#;

/// `PORT early` or `PORT late`.
const THREADS: &str = r#"
import os, select, signal, socket, sys, threading, time
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
instance = select.epoll()
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", int(sys.argv[1])))
listener.setblocking(False)
events = select.EPOLLIN | select.EPOLLET
connections = {}
def arrived():
    while True:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return
        connections[connection.fileno()] = connection
        instance.register(connection, select.EPOLLIN | select.EPOLLONESHOT)
def serve():
    while True:
        for number, what in instance.poll():
            if number == listener.fileno():
                # Before it listens it has hung up.
                if not what & select.EPOLLHUP:
                    arrived()
                continue
            try:
                data = connections[number].recv(4096)
                connections[number].send(data)
            except ConnectionError:
                data = b""
            if data:
                instance.modify(number, select.EPOLLIN | select.EPOLLONESHOT)
            else:
                instance.unregister(number)
                connections.pop(number).close()
if sys.argv[2] == "early":
    instance.register(listener, events)
for _ in range(2):
    threading.Thread(target=serve, daemon=True).start()
time.sleep(0.05)
listener.listen(511)
if sys.argv[2] == "late":
    instance.register(listener, events)
while True:
    signal.pause()
"#;

/// `PORT`.
const DUPLICATE: &str = r#"
import os, signal, socket, sys, threading
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", int(sys.argv[1])))
accepting = listener.dup()
listener.listen(511)
listener.close()
def echo(connection):
    try:
        while data := connection.recv(4096):
            connection.sendall(data)
    except ConnectionError:
        pass
    connection.close()
def accept():
    while True:
        # Python's own accept does not block.
        number, _ = accepting._accept()
        threading.Thread(target=echo, args=(socket.socket(fileno=number),), daemon=True).start()
threading.Thread(target=accept, daemon=True).start()
while True:
    signal.pause()
"#;

/// `PORT`.
const NODE: &str = r#"
process.on("SIGTERM", () => process.exit(0));
const net = require("net");
net.createServer((s) => { s.on("error", () => {}); s.pipe(s); })
    .listen({ port: +process.argv[1], host: "127.0.0.1", backlog: 511 });
"#;

impl Server {
    /// Starts it at a port, without waiting for anything.
    pub(super) fn begin(self, lab: &Lab, port: u16) -> Result<Proc> {
        let number = &port.to_string();
        match self {
            Server::Echo => start(lab, Side::Sd, &["echo", number]),
            Server::Nginx => {
                Ok(Nginx::begin(lab, Side::Sd, &Workers { count: 2, user: "root" }, port)?.process)
            }
            Server::Prefork => lab.start(Side::Sd, "python3", &["-c", PREFORK, number]),
            Server::Threads { is_registered_early } => {
                let when = if is_registered_early { "early" } else { "late" };
                lab.start(Side::Sd, "python3", &["-c", THREADS, number, when])
            }
            Server::Duplicate => lab.start(Side::Sd, "python3", &["-c", DUPLICATE, number]),
            Server::Node => lab.start(Side::Sd, "node", &["-e", NODE, number]),
        }
    }
}
