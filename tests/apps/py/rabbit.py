"""A client of RabbitMQ: messages of many sizes come once, in order and whole; what is durable outlives a restart.

usage: rabbit.py PORT exchange|leave|find|rate
"""

import sys
import time

import pika

SIZES = [0, 1, 100, 5000, 70_000, 1_000_000]
COUNT = 300


def body(index):
    size = SIZES[index % len(SIZES)]
    return (b"%d;" % index * (size // 2 + 1))[:size]


def connect(port):
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=10))


def publish(channel, queue, bodies):
    durable = pika.BasicProperties(delivery_mode=2)
    for data in bodies:
        channel.basic_publish("", queue, data, durable)


def take(channel, queue, bodies):
    for wanted in bodies:
        method, _, got = next(channel.consume(queue, inactivity_timeout=20))
        assert method is not None, "nothing comes"
        assert got == wanted, "another message"
        channel.basic_ack(method.delivery_tag)
    channel.cancel()


def exchange(port):
    """Eight queues on eight connections at once, and one queue that two connections share."""
    connections = [connect(port) for _ in range(8)]
    channels = [connection.channel() for connection in connections]
    bodies = [body(index) for index in range(COUNT)]
    for number, channel in enumerate(channels):
        channel.queue_declare(f"queue-{number}", auto_delete=True)
        channel.confirm_delivery()
        publish(channel, f"queue-{number}", bodies[:40])
    for number, channel in enumerate(channels):
        take(channel, f"queue-{number}", bodies[:40])
    channels[0].queue_declare("shared", durable=True)
    publish(channels[0], "shared", bodies)
    take(channels[1], "shared", bodies)
    for connection in connections:
        connection.close()


def main():
    port, what = int(sys.argv[1]), sys.argv[2]
    if what == "exchange":
        exchange(port)
        print("all right")
        return
    connection = connect(port)
    channel = connection.channel()
    channel.queue_declare("kept", durable=True)
    bodies = [body(index) for index in range(COUNT)]
    if what == "leave":
        channel.confirm_delivery()
        publish(channel, "kept", bodies)
    elif what == "find":
        take(channel, "kept", bodies)
    else:
        start, count = time.monotonic(), 0
        while time.monotonic() - start < 1.5:
            publish(channel, "kept", [b"x" * 64] * 100)
            take(channel, "kept", [b"x" * 64] * 100)
            count += 100
        print(f"{count / (time.monotonic() - start):.1f}")
        return
    connection.close()
    print("all right")


main()
