"""Uses what makes redis wait, end or interrupt its clients; prints what was right.

usage: redis_client.py PORT
"""

import socket
import sys
import threading
import time

PORT = int(sys.argv[1])


class Error(Exception):
    pass


class Client:
    def __init__(self):
        self.socket = socket.create_connection(("127.0.0.1", PORT))
        self.stream = self.socket.makefile("rb")

    def send(self, *words):
        parts = [b"*%d\r\n" % len(words)]
        for word in words:
            word = word if isinstance(word, bytes) else str(word).encode()
            parts.append(b"$%d\r\n%s\r\n" % (len(word), word))
        self.socket.sendall(b"".join(parts))

    def reply(self):
        line = self.stream.readline()
        if not line:
            raise EOFError
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest.decode()
        if kind == b"-":
            raise Error(rest.decode())
        if kind == b":":
            return int(rest)
        count = int(rest)
        if count < 0:
            return None
        if kind == b"$":
            return self.stream.read(count + 2)[:-2]
        return [self.reply() for _ in range(count)]

    def __call__(self, *words):
        self.send(*words)
        return self.reply()


def require(what, got, wanted):
    assert got == wanted, "%s: got %r, wanted %r" % (what, got, wanted)
    print(what)


def scripts(one, two):
    require("script", one("EVAL", "return {KEYS[1],ARGV[1],7}", 1, "k", "v"), [b"k", b"v", 7])
    large = b"x" * 400_000
    script = "redis.call('SET', KEYS[1], ARGV[1]) return string.rep(ARGV[1], 3)"
    require("large script reply", one("EVAL", script, 1, "large", large), large * 3)
    one.send("EVAL", "while true do end", 0)
    time.sleep(0.4)
    try:
        two("PING")
        raise AssertionError("a busy server answered")
    except Error as error:
        require("busy", str(error)[:4], "BUSY")
    require("script kill", two("SCRIPT", "KILL"), "OK")
    try:
        one.reply()
        raise AssertionError("a killed script returned")
    except Error as error:
        require("killed script", "killed by user" in str(error), True)


def transactions(one, two):
    require("multi", one("MULTI"), "OK")
    for index in range(100):
        require_quiet(one("INCRBY", "sum", index), "QUEUED")
    require("exec", one("EXEC")[-1], 4950)
    require("watch", one("WATCH", "sum"), "OK")
    two("INCR", "sum")
    one("MULTI")
    one("SET", "sum", 0)
    require("watched key changed", one("EXEC"), None)


def require_quiet(got, wanted):
    assert got == wanted, (got, wanted)


def blocking(one, two):
    got = []
    waiters = [Client() for _ in range(20)]

    def wait(client):
        got.append(client("BLPOP", "queue", 10))

    threads = [threading.Thread(target=wait, args=(client,)) for client in waiters]
    for thread in threads:
        thread.start()
    while two("INFO", "clients").find(b"blocked_clients:20") < 0:
        time.sleep(0.01)
    for index in range(20):
        two("RPUSH", "queue", index)
    for thread in threads:
        thread.join()
    require("blocking pops", sorted(int(v) for _, v in got), list(range(20)))
    start = time.monotonic()
    require("blocking pop in vain", one("BLPOP", "none", 0.3), None)
    require("which took its time", 0.25 < time.monotonic() - start < 5, True)
    one.send("XREAD", "BLOCK", 5000, "STREAMS", "stream", "$")
    time.sleep(0.1)
    two("XADD", "stream", "1-1", "f", "v")
    require("stream", one.reply(), [[b"stream", [[b"1-1", [b"f", b"v"]]]]])


def endings(one):
    victim = Client()
    number = victim("CLIENT", "ID")
    require("client kill", one("CLIENT", "KILL", "ID", number), 1)
    try:
        victim.reply()
        raise AssertionError("a killed client got a reply")
    except (EOFError, ConnectionResetError):
        print("killed client sees the end")
    blocked = Client()
    number = blocked("CLIENT", "ID")
    blocked.send("BLPOP", "none", 0)
    time.sleep(0.1)
    require("unblock", one("CLIENT", "UNBLOCK", number), 1)
    require("unblocked", blocked.reply(), None)
    idle = Client()
    require("idle client", idle("PING"), "PONG")
    idle.socket.settimeout(10)
    busy_until(idle, one)
    require("pause", one("CLIENT", "PAUSE", 200), "OK")
    start = time.monotonic()
    one("SET", "a", 1)
    require("paused", time.monotonic() - start > 0.1, True)
    fresh = Client()
    require("quit", fresh("QUIT"), "OK")
    require("end", fresh.stream.read(), b"")


def busy_until(idle, one):
    """The server ends a client that says nothing for two seconds, and not the one that talks."""
    end = time.monotonic() + 10
    idle.socket.setblocking(False)
    while time.monotonic() < end:
        one("PING")
        try:
            require("idle client sees the end", idle.socket.recv(10), b"")
            return
        except BlockingIOError:
            time.sleep(0.1)
    raise AssertionError("an idle client was not ended")


def main():
    one, two = Client(), Client()
    scripts(one, two)
    transactions(one, two)
    blocking(one, two)
    endings(one)
    print("all right")


main()
