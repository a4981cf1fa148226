"""How often a second an echo server answers 64 bytes.

usage: rate.py PORT echo|visit   (twenty connections that stay, or a new connection for each answer)
"""

import selectors
import socket
import sys
import time

SECONDS = 1.5
DATA = b"x" * 64


def echo(address):
    selector = selectors.DefaultSelector()
    for _ in range(20):
        connection = socket.create_connection(address)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(connection, selectors.EVENT_READ, bytearray())
        connection.sendall(DATA)
    start, count = time.monotonic(), 0
    while time.monotonic() - start < SECONDS:
        for key, _ in selector.select():
            key.data.extend(key.fileobj.recv(64 - len(key.data)))
            if len(key.data) == 64:
                assert key.data == DATA
                key.data.clear()
                count += 1
                key.fileobj.sendall(DATA)
    rate = count / (time.monotonic() - start)
    for key in list(selector.get_map().values()):
        # What is still on its way, so that no server sees a reset.
        while len(key.data) < 64:
            key.data.extend(key.fileobj.recv(64 - len(key.data)))
        key.fileobj.close()
    return rate


def visit(address):
    start, count = time.monotonic(), 0
    while time.monotonic() - start < SECONDS:
        with socket.create_connection(address) as connection:
            connection.sendall(DATA)
            connection.shutdown(socket.SHUT_WR)
            got = b""
            while data := connection.recv(64):
                got += data
            assert got == DATA
            count += 1
    return count / (time.monotonic() - start)


kind = {"echo": echo, "visit": visit}[sys.argv[2]]
print(f"{kind(('127.0.0.1', int(sys.argv[1]))):.1f}")
