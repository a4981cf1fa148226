"""Says who answers.

usage: who.py serve PORT NAME     tells every connection NAME, and keeps it until the client ends
       who.py ask PORT COUNT      connects COUNT times, all at once, and prints who answered how often
       who.py hold PORT           connects, prints who answered, and waits for the end
"""

import collections
import socket
import sys
import threading
import time


def tell(connection, name):
    with connection:
        connection.sendall(name.encode() + b"\n")
        connection.recv(1)


def serve(port, name):
    listener = socket.create_server(("127.0.0.1", port), backlog=256)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=tell, args=(connection, name), daemon=True).start()


def ask(port, count):
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    heard = collections.Counter(connection.makefile().readline().strip() for connection in connections)
    time.sleep(0.2)  # For sd ss to see them.
    print("heard", " ".join("%s:%d" % item for item in sorted(heard.items())), flush=True)


def hold(port):
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile() as lines:
        print("held by", lines.readline().strip(), flush=True)
        try:
            print("ended" if not lines.readline() else "more")
        except ConnectionResetError:
            print("ended")


if sys.argv[1] == "serve":
    serve(int(sys.argv[2]), sys.argv[3])
elif sys.argv[1] == "ask":
    ask(int(sys.argv[2]), int(sys.argv[3]))
else:
    hold(int(sys.argv[2]))
