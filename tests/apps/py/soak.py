"""Connections that are used, and end, in all ways: each byte and each end is compared with what Linux would give.

    soak.py serve ADDRESS PORT [probes]
    soak.py connect ADDRESS PORT CONNECTIONS SECONDS

Each connection has a plan, which its first bytes tell the server. Both sides say of each connection, in a line,
`NUMBER done|reset|wrong BEGIN END WHAT`, with the clock of both. `reset` is an end that Linux would not have given, which is
allowed where an engine has died meanwhile; `wrong` never is. With `probes` the way between them may lose packets. The client says `over` at its end.
"""
import collections
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

PATTERN_LEN = 1 << 20
PATTERN = random.Random(5).randbytes(PATTERN_LEN) * 2
PATIENCE = 50
RESETS = (ConnectionResetError, BrokenPipeError, TimeoutError)

# How a connection ends.
ENDS = (
    "server closes",
    "client closes",
    "half",  # The client shuts down, the server sees that, sends some more, and closes.
    "reset",  # The client has SO_LINGER of zero.
    "killed",  # With nothing on its way.
    "killed with all sent",  # It hears nothing; all that it has sent comes.
    "killed deaf",  # It has not read what came: that is a reset.
)
# Ways to wait: a thread for each direction; with pauses; poll; edge-triggered epoll; epoll.
WAYS = 5
MORE = 100_000

Plan = collections.namedtuple("Plan", "number seed up down way other_way end")
HEAD = struct.Struct("<7Q")
lock = threading.Lock()


class Wrong(Exception):
    pass


def piece(at, size):
    begin = at % PATTERN_LEN
    return PATTERN[begin:begin + min(size, PATTERN_LEN)]


def compare(data, at):
    if data != piece(at, len(data)):
        raise Wrong(f"other bytes at {at}")


class Line:
    """One side of a connection: `up` bytes are sent and `down` are received, at once."""

    def __init__(self, sock, up, down, way, seed):
        self.socket, self.up, self.down, self.way = sock, up, down, way
        self.dice, self.began = random.Random(seed), time.monotonic()
        self.sent = self.got = 0

    def next_piece(self):
        """Small ones at first: who has always something unsent is not moved."""
        is_slow = time.monotonic() - self.began < 1
        size = self.dice.choice([1, 7, 64, 1000] if is_slow else [64, 1000, 30000, 200000])
        is_slow and time.sleep(self.dice.random() * 0.005)
        return piece(self.sent, min(size, self.up - self.sent))

    def take(self, data):
        if not data:
            raise Wrong(f"ends at {self.got} of {self.down}")
        compare(data, self.got)
        self.got += len(data)

    def run(self):
        self.by_threads() if self.way < 2 else self.by_events()

    def by_threads(self):
        errors = []

        def send():
            try:
                while self.sent < self.up:
                    data = self.next_piece()
                    self.socket.sendall(data)
                    self.sent += len(data)
            except OSError as error:
                errors.append(error)

        sender, dice = threading.Thread(target=send), random.Random(self.sent)
        sender.start()
        try:
            while self.got < self.down:
                self.take(self.socket.recv(min(self.down - self.got, dice.choice([1, 50, 4000, 100000]))))
                self.way == 1 and dice.random() < 0.01 and time.sleep(0.05)
        finally:
            sender.join()
        if errors:
            raise errors[0]

    def by_events(self):
        self.socket.setblocking(False)
        waits, is_edge = select.poll() if self.way == 2 else select.epoll(), self.way == 3
        edge = select.EPOLLET if is_edge else 0
        waits.register(self.socket, select.EPOLLIN | select.EPOLLOUT | edge)
        rest = b""
        while self.sent < self.up or rest or self.got < self.down:
            if not is_edge:
                has_more = self.sent < self.up or rest
                waits.modify(self.socket, select.EPOLLIN | (select.EPOLLOUT if has_more else 0))
            if not waits.poll(PATIENCE * (1000 if self.way == 2 else 1)):
                raise Wrong(f"stands still: sent {self.sent} of {self.up}, got {self.got} of {self.down}")
            while self.got < self.down:
                try:
                    size = min(self.down - self.got, self.dice.choice([50, 4000, 100000]))
                    self.take(self.socket.recv(size))
                except BlockingIOError:
                    break
                if not is_edge:
                    break
            while self.sent < self.up or rest:
                if not rest:
                    rest = self.next_piece()
                    self.sent += len(rest)
                try:
                    rest = rest[self.socket.send(rest):]
                except BlockingIOError:
                    break
                if not is_edge:
                    break
        if self.way != 2:
            waits.close()
        self.socket.setblocking(True)


def expect_end(sock):
    if data := sock.recv(10):
        raise Wrong(f"{data!r} behind all bytes")


def expect_reset(sock):
    """Linux says so, and nothing else."""
    if sys.argv[-1] == "probes":
        # Nobody sends a reset again that was lost; who only waits hears of it in the answer to a probe.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in ((socket.TCP_KEEPIDLE, 2), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 20)):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
    try:
        data = sock.recv(10)
    except ConnectionResetError:
        return
    raise Wrong(f"{data!r} where a reset was to be")


def expect_byte(sock):
    if (data := sock.recv(1)) != b"k":
        raise Wrong(f"{data!r} where one byte was to be")


def kill_self():
    os.kill(os.getpid(), signal.SIGKILL)


def serve(sock, plan):
    end = ENDS[plan.end]
    if end == "killed deaf":
        try:
            Line(sock, plan.down, 0, plan.other_way, plan.seed + 1).run()
            while sock.send(b"more"):
                time.sleep(0.01)
        except RESETS:
            return
    Line(sock, plan.down, plan.up, plan.other_way, plan.seed + 1).run()
    if end in ("client closes", "killed with all sent"):
        expect_end(sock)
    elif end == "half":
        expect_end(sock)
        sock.sendall(PATTERN[:MORE])
    elif end in ("reset", "killed"):
        sock.sendall(b"k")
        expect_reset(sock) if end == "reset" else expect_end(sock)


def connect(sock, plan):
    end = ENDS[plan.end]
    if end == "killed deaf":
        Line(sock, 0, min(plan.down, 5000), plan.way, plan.seed).run()
        kill_self()
    Line(sock, plan.up, plan.down, plan.way, plan.seed).run()
    if end == "server closes":
        expect_end(sock)
    elif end == "half":
        sock.shutdown(socket.SHUT_WR)
        Line(sock, 0, MORE, 0, plan.seed).run()
        expect_end(sock)
    elif end == "reset":
        expect_byte(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif end == "killed":
        expect_byte(sock)
        kill_self()
    elif end == "killed with all sent":
        kill_self()


def say(number, how, began, what):
    with lock:
        os.write(1, f"{number} {how} {began:.3f} {time.monotonic():.3f} {what}\n".encode())


def judged(sock, plan, act):
    """Does one side's part, and says what came of it."""
    began, who = time.monotonic(), f"{ENDS[plan.end]}, ways {plan.way} {plan.other_way}, up {plan.up} down {plan.down}"
    who += f", descriptor {sock.fileno()}"
    how = "done"
    try:
        sock.settimeout(None)
        act(sock, plan)
    except RESETS as error:
        how, who = "reset", f"{type(error).__name__}: {who}"
    except Exception as error:
        how, who = "wrong", f"{error!r}: {who}"
    sock.close()
    say(plan.number, how, began, who)


def begin_to_serve(sock):
    began, head = time.monotonic(), b""
    try:
        while len(head) < HEAD.size:
            data = sock.recv(HEAD.size - len(head))
            if not data:
                raise Wrong("ends at once")
            head += data
    except RESETS as error:
        return say("?", "reset", began, error)
    except Exception as error:
        return say("?", "wrong", began, repr(error))
    judged(sock, Plan(*HEAD.unpack(head)), serve)


def begin_to_connect(address, plan):
    sock = socket.create_connection((address, int(sys.argv[3])))
    try:
        sock.sendall(HEAD.pack(*plan))
    except RESETS as error:
        sock.close()
        return say(plan.number, "reset", time.monotonic(), error)
    judged(sock, plan, connect)


def plan_of(number):
    # PLAN_OF_SOAK: one that went wrong, again and again.
    dice = random.Random(int(os.environ.get("PLAN_OF_SOAK", number)))
    up, down = (dice.choice([20_000, 300_000, 300_000, 3_000_000, 10_000_000]) for _ in range(2))
    end = dice.randrange(len(ENDS))
    if ENDS[end] == "killed with all sent":
        down = 0
    elif ENDS[end] == "killed deaf":
        up, down = 0, 10_000_000
    return Plan(number, dice.randrange(1 << 30), up, down, dice.randrange(WAYS), dice.randrange(WAYS), end)


def one(address, number):
    plan = plan_of(number)
    if not ENDS[plan.end].startswith("killed"):
        return begin_to_connect(address, plan)
    # A process of its own, which kills itself.
    began = time.monotonic()
    script = sys.orig_argv[sys.orig_argv.index("-c") + 1]
    status = subprocess.call([sys.executable, "-c", script, "one", address, sys.argv[3], str(number)])
    if status == -signal.SIGKILL:
        say(number, "done", began, ENDS[plan.end])


def many(address, numbers, until):
    while time.monotonic() < until:
        with lock:
            number = next(numbers)
        one(address, number)


if sys.argv[1] == "serve":
    listener = socket.create_server((sys.argv[2], int(sys.argv[3])), backlog=100)
    print("listens", flush=True)
    while True:
        threading.Thread(target=begin_to_serve, args=[listener.accept()[0]], daemon=True).start()
elif sys.argv[1] == "one":
    begin_to_connect(sys.argv[2], plan_of(int(sys.argv[4])))
else:
    until, numbers = time.monotonic() + float(sys.argv[5]), iter(range(1 << 40))
    threads = [threading.Thread(target=many, args=[sys.argv[2], numbers, until]) for _ in range(int(sys.argv[4]))]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print("over", flush=True)
