"""An echo server on 127.0.0.1, in one of the ways in which python servers are written.

usage: echo_server.py PORT asyncio|uvloop|threads|fork|select
"""

import asyncio
import os
import selectors
import signal
import socket
import socketserver
import sys


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)


class Forking(socketserver.ForkingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    request_queue_size = 128
    max_children = 500


class Threading(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    request_queue_size = 512
    daemon_threads = True


async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def serve_asyncio(port):
    server = await asyncio.start_server(echo, "127.0.0.1", port, backlog=4096)
    async with server:
        await server.serve_forever()


def serve_select(port):
    """Non-blocking sockets under select(2), which is limited to 1024 descriptors."""
    listener = socket.create_server(("127.0.0.1", port), backlog=512)
    listener.setblocking(False)
    selector = selectors.SelectSelector()
    selector.register(listener, selectors.EVENT_READ)
    pending = {}
    while True:
        for key, events in selector.select():
            if key.fileobj is listener:
                connection, _ = listener.accept()
                connection.setblocking(False)
                pending[connection] = b""
                selector.register(connection, selectors.EVENT_READ)
                continue
            serve_one(selector, key.fileobj, events, pending)


def serve_one(selector, connection, events, pending):
    if events & selectors.EVENT_READ:
        data = connection.recv(65536)
        if not data:
            selector.unregister(connection)
            pending.pop(connection)
            connection.close()
            return
        pending[connection] += data
    try:
        sent = connection.send(pending[connection])
        pending[connection] = pending[connection][sent:]
    except BlockingIOError:
        pass
    wanted = selectors.EVENT_WRITE if pending[connection] else selectors.EVENT_READ
    selector.modify(connection, wanted)


def main():
    port, kind = int(sys.argv[1]), sys.argv[2]
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if kind == "uvloop":
        import uvloop

        uvloop.install()
    if kind in ("asyncio", "uvloop"):
        asyncio.run(serve_asyncio(port))
    elif kind == "select":
        serve_select(port)
    else:
        {"threads": Threading, "fork": Forking}[kind](("127.0.0.1", port), Echo).serve_forever()


main()
