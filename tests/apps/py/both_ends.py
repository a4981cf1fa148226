"""Both ends of a connection: messages there and back until standard input ends."""

import select
import socket
import sys

listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
listener.close()
events = select.epoll()
events.register(server, select.EPOLLIN)
print(client.getpeername()[1], flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    client.sendall(b"question")
    assert [number for number, _ in events.poll(5)] == [server.fileno()]
    server.sendall(server.recv(100))
    assert client.recv(100) == b"question"
print("echoed")
