# Connections that talk all at once, and check every byte. One line on standard input leads from each stage to the next:
# many talk; the first one's messages become bulk; all but two others close.
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

def stage(name, talks, bulk=None):
    print(name, flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(20):
            for talk in talks:
                talk.send(64)
            for talk in talks:
                talk.receive(64)
        for _ in range(5 if bulk else 0):
            bulk.turn(1 << 18)
    sys.stdin.readline()

talks = [Talk() for _ in range(count)]
bulk, one, two = talks[:3]
one.set([1, 600, 30, 5])
stage("many", talks)
assert one.options() == [1, 600, 30, 5], one.options()
assert two.options() == [0, 7200, 75, 9], two.options()
two.set([1, 500, 20, 4])
assert two.options() == [1, 500, 20, 4], two.options()
stage("bulk", talks[1:], bulk)
for talk in talks[3:]:
    talk.socket.close()
stage("few", [one, two])
# By now the kernel's own.
assert one.options() == [1, 600, 30, 5], one.options()
assert two.options() == [1, 500, 20, 4], two.options()
print("over", flush=True)
