"""gRPC without generated code: one call echoes a message, one a stream of messages.

usage: grpc_echo.py server PORT | grpc_echo.py client PORT
"""
import concurrent.futures
import signal
import sys
import time

import grpc

SIZES = [0, 1, 1000, 70_000, 1_000_000]
OPTIONS = [("grpc.max_receive_message_length", 1 << 24), ("grpc.so_reuseport", 0)]


class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        if details.method == "/echo/one":
            return grpc.unary_unary_rpc_method_handler(lambda message, _: message)
        return grpc.stream_stream_rpc_method_handler(lambda messages, _: messages)


def serve(port):
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(8), [Echo()], options=OPTIONS)
    assert server.add_insecure_port(f"127.0.0.1:{port}") == port
    server.start()
    signal.signal(signal.SIGTERM, lambda *_: server.stop(1))
    server.wait_for_termination()


def ask(port):
    count = 0
    start = time.monotonic()
    with grpc.insecure_channel(f"127.0.0.1:{port}", OPTIONS) as channel:
        one, many = channel.unary_unary("/echo/one"), channel.stream_stream("/echo/many")
        while count < 50 or time.monotonic() - start < 1:
            message = bytes([count % 251]) * SIZES[count % len(SIZES)]
            assert one(message, timeout=20) == message
            count += 1
        messages = [bytes([i]) * 10_000 for i in range(200)]
        assert list(many(iter(messages), timeout=20)) == messages
    print(int(count / (time.monotonic() - start)), "calls/s, all right")


role, port = sys.argv[1], int(sys.argv[2])
serve(port) if role == "server" else ask(port)
