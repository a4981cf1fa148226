"""Does something odd to its own process, then becomes another script.

usage: odd.py KIND SCRIPT ARGUMENT...

kinds: close-all      closes every descriptor from 3 on, one by one      close-range   by close_range(2)
       daemon=FILE    forks twice, leaves the session, has its standard streams closed; FILE gets its process id
       nobody         is user nobody from here on        nobody-late   and has made a TCP socket before
       chroot=FOLDER  has FOLDER as its root             chroot-late=FOLDER    and has made a TCP socket before
       lo             turns the loopback interface on, as the first program of a network namespace has to
"""

import asyncio  # Imported before the root directory is another one, with what the scripts need.
import ctypes
import encodings.idna
import fcntl
import os
import selectors
import socket
import socketserver
import struct
import sys


def become_daemon(path):
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    for number in range(3):
        os.close(number)
    # The numbers 0, 1, 2 stay free: they go to sockets, as in careless daemons.
    with open(path + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(path + ".new", path)


def become_nobody():
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)


def turn_on_loopback():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        name_and_flags = struct.pack("16sh14x", b"lo", 1 | 0x40)
        fcntl.ioctl(any_socket, 0x8914, name_and_flags)


def use_a_listener():
    socket.create_server(("127.0.0.1", 0)).close()


kind, _, what = sys.argv[1].partition("=")
with open(sys.argv[2]) as file:
    code = compile(file.read(), sys.argv[2], "exec")
if kind.endswith("-late"):
    use_a_listener()
if kind == "close-all":
    os.closerange(3, 65536)
elif kind == "close-range":
    libc = ctypes.CDLL(None)
    assert libc.close_range(ctypes.c_uint(3), ctypes.c_uint(2**32 - 1), 0) == 0
elif kind == "daemon":
    become_daemon(what)
elif kind.startswith("nobody"):
    become_nobody()
elif kind.startswith("chroot"):
    os.chroot(what)
    os.chdir("/")
elif kind == "lo":
    turn_on_loopback()
else:
    sys.exit("unknown kind " + kind)
sys.argv = sys.argv[2:]
exec(code, {"__name__": "__main__"})
