# Talks with heir_of_exec.py, and on with its heir, for two seconds.
import random, socket, sys, time

connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connection.settimeout(15)


def echo(data):
    connection.sendall(data)
    back = b""
    while len(back) < len(data):
        got = connection.recv(len(data) - len(back))
        assert got, f"ends after {len(back)} of {len(data)} bytes"
        back += got
    assert back == data, "other bytes came back"


for number in range(5000):
    echo(b"%04d" % number)
end = time.monotonic() + 2
while time.monotonic() < end:
    echo(random.randbytes(random.choice([1, 100, 4096, 100_000])))
connection.shutdown(socket.SHUT_WR)
assert connection.recv(1) == b""
print("echoed")
