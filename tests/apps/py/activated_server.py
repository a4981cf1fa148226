"""Echoes on the listener that was handed over as descriptor 3, a thread for each connection."""

import os
import socket
import threading

assert os.environ["LISTEN_FDS"] == "1" and int(os.environ["LISTEN_PID"]) == os.getpid()
listener = socket.socket(fileno=3)


def echo(connection):
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data)


while True:
    threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()
