"""Opens connections to an echo server, uses each once, says `ready`, then waits for the end of its input, and for
anything to happen on them.

usage: idle_client.py PORT CONNECTIONS BYTES
"""

import select
import socket
import sys


def main():
    port, count, size = map(int, sys.argv[1:])
    connections = []
    waiting = select.epoll()
    waiting.register(sys.stdin, select.EPOLLIN)
    for number in range(count):
        connection = socket.create_connection(("127.0.0.1", port))
        data = (b"%d;" % number * size)[:size]
        connection.sendall(data)
        echoed = b""
        while len(echoed) < size:
            echoed += connection.recv(size - len(echoed))
        assert echoed == data, "echo differs"
        connections.append(connection)
        waiting.register(connection, select.EPOLLIN)
    print("ready", flush=True)
    assert [number for number, _ in waiting.poll()] == [sys.stdin.fileno()], "something happened"


main()
