"""A connection to each of many echo servers; all that comes back is compared, byte by byte.

Lines of standard input: `connect ADDRESS`; `carry ADDRESS PIECES SIZE` (size 0: of all sizes), answered with `carried ADDRESS` when the last has
come back. At its end: `over`. A connection that ends says `ended ADDRESS HOW`.
"""
import os
import random
import selectors
import socket
import sys

port = int(sys.argv[1])
pattern = memoryview(random.Random(5).randbytes(1 << 20) * 5)
chooser = selectors.DefaultSelector()
lines = {}


class Line:
    """One connection: a piece is under way, or it is idle."""

    def __init__(self, address):
        self.address, self.at, self.sizes = address, 0, []
        self.unsent = self.wanted = memoryview(b"")
        self.dice = random.Random(address)
        self.socket = socket.create_connection((address, port))
        self.socket.setblocking(False)
        chooser.register(self.socket, selectors.EVENT_READ, self)

    def carry(self, pieces, size):
        self.sizes += [size or self.dice.choice([1, 7, 64, 64, 64, 700, 5000, 20000]) for _ in range(pieces)]
        self.begin()

    def begin(self):
        size, start = self.sizes.pop(0), self.at % (1 << 20)
        # Another stream for each connection, so that bytes of one are not those of another.
        start = (start + self.dice.randint(0, 1 << 16)) % (1 << 20)
        self.unsent = self.wanted = pattern[start:start + size]
        self.at += size
        self.send()

    def send(self):
        try:
            self.unsent = self.unsent[self.socket.send(self.unsent):]
        except BlockingIOError:
            pass
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.unsent else 0)
        if chooser.get_key(self.socket).events != wanted:
            chooser.modify(self.socket, wanted, self)

    def receive(self):
        data = self.socket.recv(1 << 17)
        if not data:
            return self.end("eof")
        if data != self.wanted[:len(data)]:
            print(f"wrong bytes of {self.address} before {self.at}", flush=True)
            os._exit(1)
        self.wanted = self.wanted[len(data):]
        if self.wanted:
            return
        if self.sizes:
            self.begin()
        else:
            print("carried", self.address, flush=True)

    def end(self, how):
        print("ended", self.address, how, flush=True)
        chooser.unregister(self.socket)
        self.socket.close()
        del lines[self.address]


def obey(words):
    if words[0] == "connect":
        lines[words[1]] = Line(words[1])
        print("connected", words[1], flush=True)
    elif words[0] == "carry":
        lines[words[1]].carry(int(words[2]), int(words[3]))


chooser.register(0, selectors.EVENT_READ)
begun = b""
while True:
    for key, events in chooser.select():
        if key.fileobj == 0:
            more = os.read(0, 65536)
            if not more:
                print("over", flush=True)
                sys.exit()
            *whole, begun = (begun + more).split(b"\n")
            for line in whole:
                obey(line.decode().split())
            continue
        try:
            if events & selectors.EVENT_WRITE:
                key.data.send()
            if events & selectors.EVENT_READ:
                key.data.receive()
        except BlockingIOError:
            pass
        except OSError as error:
            key.data.end(type(error).__name__)
