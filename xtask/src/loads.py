"""Round trips of few bytes: `serve HOST PORT`, or `first|sparse HOST PORT SECONDS`, which prints how many there would be in a second at their
median time.

first: the first message of each connection, from its send to the answer. sparse: 50 connections, of which each sends once a second.
"""

import selectors
import socket
import statistics
import sys
import time

MESSAGE = b"x" * 64
CONNECTIONS = 50


def serve(host, port):
    listener = socket.create_server((host, port), backlog=128)
    listener.setblocking(False)
    selector = selectors.EpollSelector()
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(connection, selectors.EVENT_READ)
                continue
            message = key.fileobj.recv(4096)
            if message:
                key.fileobj.sendall(message)
            else:
                selector.unregister(key.fileobj)
                key.fileobj.close()


def connect(host, port):
    connection = socket.create_connection((host, port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def round_trip(connection):
    begun = time.perf_counter()
    connection.sendall(MESSAGE)
    answer = b""
    while len(answer) < len(MESSAGE):
        answer += connection.recv(4096)
    assert answer == MESSAGE
    return time.perf_counter() - begun


def first(host, port, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with connect(host, port) as connection:
            yield round_trip(connection)


def sparse(host, port, seconds):
    connections = [connect(host, port) for _ in range(CONNECTIONS)]
    for at in range(CONNECTIONS * (seconds + 1)):
        time.sleep(1 / CONNECTIONS)
        yield round_trip(connections[at % CONNECTIONS])


def main():
    what, host, port = sys.argv[1:4]
    if what == "serve":
        serve(host, int(port))
    times = {"first": first, "sparse": sparse}[what](host, int(port), int(sys.argv[4]))
    print("Requests/sec:", 1 / statistics.median(times))


main()
