# A connection to the server of argv, whose answers are checked byte by byte.
import select, socket, sys, threading
address, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
pattern = bytes((i * 7 + i // 251) % 256 for i in range(1 << 20)) * 2
OPTIONS = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE)]
OPTIONS += [(socket.IPPROTO_TCP, name) for name in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)]

class Talk:
    def __init__(self):
        self.socket, self.at = socket.create_connection((address, port)), 0
    def wanted(self, size):
        begin = self.at % (1 << 20)
        return pattern[begin:begin + size]
    def send(self, size):
        self.socket.sendall(self.wanted(size))
    def receive(self, size):
        got = b""
        while len(got) < size:
            more = self.socket.recv(1 << 18)
            assert more, f"it ended at {self.at + len(got)}"
            got += more
        assert got == self.wanted(size), f"other bytes at {self.at}"
        self.at += size
    def turn(self, size):
        sender = threading.Thread(target=self.send, args=[size])
        sender.start()
        self.receive(size)
        sender.join()
    def options(self):
        return [self.socket.getsockopt(level, name) for level, name in OPTIONS]
    def set(self, values):
        for (level, name), value in zip(OPTIONS, values):
            self.socket.setsockopt(level, name, value)

# Each sends, then each receives: so what goes there goes together.
def together(talks):
    for talk in talks:
        talk.send(64)
    for talk in talks:
        talk.receive(64)

# All talk together until a line comes.
def together_until_line(name, talks):
    print(name, flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        together(talks)
    sys.stdin.readline()

