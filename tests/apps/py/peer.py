"""One end of a connection that does what its arguments say, one after the other, and prints how each ended.

usage: peer.py listen|connect PORT STEP...

steps: send:N   send N bytes of a known pattern         recv:N   receive exactly N bytes and check them
       end      receive until the end or an error       push     send single bytes until an error
       fill     send as fast as possible until an error
       poll     wait for events other than POLLOUT      ask      wait for a line of standard input
       shut     shut the sending direction down         again    connect once more
       option   read SO_ERROR                           close    close the connection
"""

import errno
import select
import socket
import sys
import time

received = 0
sent = 0


def pattern(start, count):
    return bytes((start + i) * 7 % 251 for i in range(count))


def open_connection(role, port):
    if role == "connect":
        return socket.create_connection(("127.0.0.1", port))
    listener = socket.create_server(("127.0.0.1", port))
    connection, _ = listener.accept()
    listener.close()
    return connection


def send(connection, count):
    global sent
    connection.sendall(pattern(sent, count))
    sent += count
    return "sent %d" % count


def receive(connection, count):
    global received
    got = b""
    while len(got) < count:
        data = connection.recv(count - len(got))
        if not data:
            return "end after %d" % len(got)
        got += data
    right = got == pattern(received, count)
    received += count
    return "received %d %s" % (count, "right" if right else "WRONG")


def until_end(connection):
    count = 0
    try:
        while data := connection.recv(65536):
            count += len(data)
    except OSError as error:
        return "%d bytes, then %s" % (count, errno.errorcode[error.errno])
    return "%d bytes, then end" % count


def push(connection):
    """The first byte after the peer's end may still succeed, so the number of them is not printed."""
    while True:
        try:
            connection.send(b"x")
        except OSError as error:
            return errno.errorcode[error.errno]
        time.sleep(0.02)


def fill(connection):
    try:
        while True:
            connection.send(bytes(65536))
    except OSError as error:
        return errno.errorcode[error.errno]


def poll(connection):
    poller = select.poll()
    poller.register(connection, select.POLLIN | select.POLLRDHUP)
    (_, events), = poller.poll(5000) or [(0, 0)]
    # The end and its hang-up may come one after the other.
    time.sleep(0.1)
    (_, events), = poller.poll(5000) or [(0, 0)]
    names = ["POLLIN", "POLLERR", "POLLHUP", "POLLRDHUP"]
    return " ".join(name for name in names if events & getattr(select, name)) or "no event"


def again(port):
    try:
        socket.create_connection(("127.0.0.1", port)).close()
        return "connected"
    except OSError as error:
        return errno.errorcode[error.errno]


def step(connection, port, text):
    name, _, count = text.partition(":")
    if name == "send":
        return send(connection, int(count))
    if name == "recv":
        return receive(connection, int(count))
    if name == "ask":
        return "asked" if sys.stdin.readline() else "no more input"
    if name == "shut":
        return connection.shutdown(socket.SHUT_WR)
    if name == "option":
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        return errno.errorcode.get(code, str(code))
    if name == "close":
        return connection.close()
    if name == "again":
        return again(port)
    return {"end": until_end, "push": push, "poll": poll, "fill": fill}[name](connection)


def main():
    role, port = sys.argv[1], int(sys.argv[2])
    connection = open_connection(role, port)
    print("open", flush=True)
    for text in sys.argv[3:]:
        print("%s: %s" % (text, step(connection, port, text)), flush=True)
    print("done", flush=True)


main()
