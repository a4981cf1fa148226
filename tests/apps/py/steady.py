"""One request per connection, again and again, until standard input ends. Says what failed.

steady.py PORT PATH LEN THREADS: each answer must be a 200 with LEN bytes. Prints "ready" after the first answer, and at the
end "N requests, M errors" and the first errors.
"""
import http.client
import sys
import threading

port, path, length, threads = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
stop = threading.Event()
counts = [0] * threads
errors = []


def ask():
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200 or len(body) != length:
            raise ValueError(f"status {answer.status}, {len(body)} bytes")
    finally:
        connection.close()


def work(index):
    while not stop.is_set():
        try:
            ask()
            counts[index] += 1
        except Exception as error:
            errors.append(f"after {counts[index]}: {error!r}")


ask()
print("ready")
workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
for worker in workers:
    worker.start()
sys.stdin.read()
stop.set()
for worker in workers:
    worker.join()
print(f"{sum(counts)} requests, {len(errors)} errors")
for error in errors[:5]:
    print(error)
