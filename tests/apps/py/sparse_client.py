# Many connections that talk all at once, and one that sends each 100 ms from its beginning; with the next line on standard input the first
# one of the many does as that. It says the ports of these two.
import time

def port_of(talk):
    return talk.socket.getsockname()[1]

def stage(name, busy, sparse):
    print(name, flush=True)
    due = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        now = time.monotonic()
        # Answers to those come in between, so that nothing is waited for.
        talks = busy + (sparse if now >= due else [])
        due = now + 0.1 if now >= due else due
        together(talks)
    sys.stdin.readline()

talks = [Talk() for _ in range(count)]
first, fresh = talks[0], talks[-1]
print("ports", port_of(first), port_of(fresh), flush=True)
stage("many", talks[:-1], [fresh])
stage("sparse", talks[1:-1], [first, fresh])
print("over", flush=True)
