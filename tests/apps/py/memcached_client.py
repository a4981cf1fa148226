"""Writes and reads memcached values of many sizes in several threads; prints how many were right.

usage: memcached_client.py PORT THREADS VALUES_PER_THREAD
"""

import socket
import sys
import threading

SIZES = [0, 1, 8, 63, 64, 65, 1000, 1460, 4096, 16384, 65536, 200_000, 1_000_000]
right = []


def value(thread, index):
    size = SIZES[(thread + index) % len(SIZES)]
    # No value looks like any other's beginning.
    seed = b"%d/%d/" % (thread, index)
    return (seed * (size // len(seed) + 1))[:size]


def work(port, thread, count):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream = connection.makefile("rwb")
        for index in range(count):
            key = b"key-%d-%d" % (thread, index % 20)
            data = value(thread, index)
            stream.write(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(data), data))
            stream.write(b"get %s\r\n" % key)
            stream.flush()
            assert stream.readline() == b"STORED\r\n"
            head = stream.readline()
            assert head == b"VALUE %s 0 %d\r\n" % (key, len(data)), head
            assert stream.read(len(data)) == data, "value differs"
            assert stream.read(2) == b"\r\n"
            assert stream.readline() == b"END\r\n"
            right.append(1)


def main():
    port, threads, count = map(int, sys.argv[1:])
    workers = [threading.Thread(target=work, args=(port, n, count)) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(len(right), "values")


main()
