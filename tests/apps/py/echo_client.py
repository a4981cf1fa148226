"""Sends different bytes through many connections of an echo server at once and checks what comes back.

usage: echo_client.py PORT CONNECTIONS ROUNDS
"""

import asyncio
import sys

SIZES = [1, 10, 100, 1000, 5000, 20_000, 70_000, 300_000]


async def talk(port, number, rounds, everybody):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    await everybody.wait()
    for index in range(rounds):
        size = SIZES[(number + index) % len(SIZES)]
        seed = b"%d:%d;" % (number, index)
        data = (seed * (size // len(seed) + 1))[:size]
        writer.write(data)
        drained = asyncio.ensure_future(writer.drain())
        assert await reader.readexactly(size) == data, "echo differs"
        await drained
    writer.write_eof()
    assert await reader.read() == b"", "bytes after the end"
    writer.close()
    await writer.wait_closed()


class Barrier:
    """Opens when all are there, so that all connections exist at once."""

    def __init__(self, count):
        self.count, self.event = count, asyncio.Event()

    async def wait(self):
        self.count -= 1
        if self.count == 0:
            # Long enough for `sd ss` to show them all.
            await asyncio.sleep(0.3)
            self.event.set()
        await self.event.wait()


async def main():
    port, connections, rounds = map(int, sys.argv[1:])
    everybody = Barrier(connections)
    await asyncio.gather(*(talk(port, n, rounds, everybody) for n in range(connections)))
    print(connections * rounds, "echoes")


asyncio.run(main())
