"""Takes the place of an engine: OWN OTHER PORT VICTIM... It has no key. OTHER is an address of this host that no hosts file has.

Hears the greetings of engines that call, answers some of them, and plays all that it has heard to the others; says noise, halves of greetings and lengths
that are none; and connects as often as it can, and holds that. `round N` for each time.
"""
import os
import random
import select
import socket
import sys

own, other, port, victims = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
dice = random.Random(3)
heard = [b"sdlnk1\1" + bytes(32), b"sdlnk1\0" + bytes(32), b"sdlnk1\1" + dice.randbytes(32), b"sdlnk"]
listener = socket.create_server((own, port), backlog=50)
listener.setblocking(False)
held, flood = [], 20


def connect(address, source):
    connection = socket.socket()
    connection.bind((source, 0))
    connection.settimeout(0.2)
    connection.connect((address, port))
    return connection


def hear():
    """Greetings of those that call: the first message, and what follows if it is told that a link begins."""
    while True:
        try:
            connection = listener.accept()[0]
        except BlockingIOError:
            return
        try:
            connection.settimeout(0.2)
            hail = connection.recv(1000)
            connection.send(dice.choice([b"\0", b"\1", b"\0" + dice.randbytes(90)]))
            rest = connection.recv(5000)
            heard[4:] = (heard[4:] + [hail, hail + rest, rest])[-30:]
            connection.send(dice.choice([rest, dice.randbytes(300), b""]))
        except OSError:
            pass
        held.append(connection)


def say(address, source):
    noise = dice.randbytes(dice.choice([1, 39, 40, 5000]))
    for text in heard + [noise, heard[0] + noise, heard[0] + heard[-1], heard[0] + b"\xff" * 2000]:
        try:
            connection = connect(address, source)
            connection.send(text[:dice.choice([len(text), len(text), 1 + len(text) // 2])])
            held.append(connection)
        except OSError:
            pass


number = 0
while True:
    for victim in victims:
        for source in (own, other):
            say(victim, source)
            for _ in range(flood):
                try:
                    held.append(connect(victim, source))
                except OSError:
                    pass
        hear()
        while len(held) > 600:
            held.pop(0).close()
    number += 1
    print("round", number, "heard", len(heard), flush=True)
    select.select([0], [], [], 0.05)[0] and sys.exit()
