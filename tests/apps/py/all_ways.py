import os, random, select, socket, struct, sys, threading, time
pattern = random.Random(5).randbytes(1 << 20) * 2
LEN = 1 << 20
counts, lock = {}, threading.Lock()
def note(what):
    with lock: counts[what] = counts.get(what, 0) + 1
def piece(at, size):
    begin = at % LEN
    return pattern[begin:begin + min(size, LEN)]
def check(data, at, who):
    if data != piece(at, len(data)):
        os.write(1, f"wrong: bytes at {at} of {who}\n".encode()); note("wrong"); os._exit(1)
def sizes(dice, began):
    slow = time.monotonic() - began < 1.5
    return dice.choice([1, 7, 64, 1000] if slow else [64, 1000, 30000, 200000]), slow
def run(sock, down, up, mode, seed, who):
    """Sends `up` bytes, receives `down`."""
    dice, began = random.Random(seed), time.monotonic()
    if mode < 2:
        err = []
        def sender():
            at = 0
            try:
                while at < up:
                    size, slow = sizes(dice, began)
                    data = piece(at, min(size, up - at))
                    sock.sendall(data); at += len(data)
                    if slow: time.sleep(dice.random() * 0.006)
            except (ConnectionResetError, BrokenPipeError) as e: err.append(e)
            except OSError as e: err.append(e); os.write(1, f"odd: {who} {e!r}\n".encode())
        t = threading.Thread(target=sender); t.start()
        at, d2 = 0, random.Random(seed + 1)
        try:
            while at < down:
                data = sock.recv(min(down - at, d2.choice([1, 50, 4000, 100000])))
                if not data: raise EOFError(at)
                check(data, at, who); at += len(data)
                if mode == 1 and d2.random() < 0.01: time.sleep(0.05)
        except ConnectionResetError as e: err.append(e)
        finally:
            t.join()
        if err: raise err[0]
    else:
        sock.setblocking(False)
        ep = None
        if mode == 2:
            poll = select.poll(); poll.register(sock, select.POLLIN | select.POLLOUT)
        else:
            flags = select.EPOLLIN | select.EPOLLOUT | (select.EPOLLET if mode == 3 else 0)
            ep = select.epoll(); ep.register(sock, flags)
        at = got = 0; rest = b""; idle = 0
        want_out = True
        while at < up or rest or got < down:
            if mode != 3:
                f = select.POLLIN | (select.POLLOUT if (at < up or rest) else 0)
                if mode == 2: poll.modify(sock, f)
                else: ep.modify(sock, f)
            events = poll.poll(40000) if mode == 2 else ep.poll(40)
            if not events:
                os.write(1, f"wrong: stands still {who} mode {mode} sent {at}/{up} got {got}/{down}\n".encode()); note("wrong"); os._exit(1)
            while True:
                try: data = sock.recv(min(max(down - got, 1), dice.choice([50, 4000, 100000])))
                except BlockingIOError: break
                if not data:
                    if got < down: raise EOFError(got)
                    break
                check(data, got, who); got += len(data)
                if got > down: os.write(1, b"wrong: too many\n"); os._exit(1)
                if mode != 3: break
                if got == down: break
            while at < up or rest:
                if not rest:
                    size, slow = sizes(dice, began)
                    rest = piece(at, min(size, up - at)); at += len(rest)
                    if slow: time.sleep(dice.random() * 0.004)
                try: n = sock.send(rest)
                except BlockingIOError: break
                rest = rest[n:]
                if mode != 3: break
        if ep: ep.close()
        sock.setblocking(True)
def head(sock, n):
    b = b""
    while len(b) < n:
        d = sock.recv(n - len(b))
        if not d: raise EOFError(0)
        b += d
    return b
def serve(sock):
    try:
        down, up, mode, seed, close = struct.unpack("<QQIII", head(sock, 28))
        run(sock, down, up, mode, seed ^ 99, f"server {seed}")
        if close == 0: sock.close(); note("done"); return
        # the client closes
        data = sock.recv(10)
        if data: os.write(1, b"wrong: more\n"); os._exit(1)
        sock.close(); note("done")
    except (ConnectionResetError, BrokenPipeError): note("reset"); sock.close()
    except EOFError as e: note("early end"); os.write(1, f"early end server at {e} down {down} mode {mode} seed {seed}\n".encode()); sock.close()
def client(address, port, until, number):
    dice = random.Random(number)
    while time.monotonic() < until:
        seed, mode, mode2, close = dice.randrange(1 << 30), dice.randrange(5), dice.randrange(5), dice.randrange(2)
        up, down = (dice.choice([20000, 300000, 3000000, 20000000]) for _ in range(2))
        sock = socket.create_connection((address, port))
        try:
            sock.sendall(struct.pack("<QQIII", up, down, mode2, seed, close))
            run(sock, down, up, mode, seed, f"client {seed}")
            if close == 0:
                data = sock.recv(10)
                if data: os.write(1, b"wrong: more\n"); os._exit(1)
            sock.close(); note("done")
        except (ConnectionResetError, BrokenPipeError): note("reset"); sock.close()
        except EOFError as e: note("early end"); os.write(1, f"early end client at {e} mode {mode} down {down} seed {seed}\n".encode()); sock.close()
if sys.argv[1] == "serve":
    listener = socket.create_server((sys.argv[2], int(sys.argv[3])), backlog=100)
    print("listens", flush=True)
    def tell():
        while True:
            time.sleep(1)
            with lock: os.write(2, f"{counts}\n".encode())
    threading.Thread(target=tell, daemon=True).start()
    while True: threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()
else:
    until = time.monotonic() + float(sys.argv[5])
    ts = [threading.Thread(target=client, args=[sys.argv[2], int(sys.argv[3]), until, n]) for n in range(int(sys.argv[4]))]
    [t.start() for t in ts]; [t.join() for t in ts]
    print("client", counts, flush=True)
