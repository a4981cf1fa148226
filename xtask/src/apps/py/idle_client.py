"""Opens connections to an echo server, uses each once, says `ready`, then waits for the end of its input.

usage: idle_client.py PORT CONNECTIONS BYTES
"""

import socket
import sys


def main():
    port, count, size = map(int, sys.argv[1:])
    connections = []
    for number in range(count):
        connection = socket.create_connection(("127.0.0.1", port))
        data = (b"%d;" % number * size)[:size]
        connection.sendall(data)
        echoed = b""
        while len(echoed) < size:
            echoed += connection.recv(size - len(echoed))
        assert echoed == data, "echo differs"
        connections.append(connection)
    print("ready", flush=True)
    sys.stdin.read()


main()
