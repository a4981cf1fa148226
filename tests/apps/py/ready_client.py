# Reads whenever it is told that there is something to read, and once then, as wrk does; says how often there was nothing.
import select, socket, sys
address, port, count, turns = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
SIZE = 1_000_000
answer = bytes((i * 7 + i // 251) % 256 for i in range(SIZE))
waits, all, vain = select.epoll(), {}, 0

def begin():
    connection = socket.create_connection((address, port))
    connection.setblocking(False)
    connection.sendall(b"?" * 64)
    all[connection.fileno()] = [connection, 0]
    waits.register(connection, select.EPOLLIN)

def read(entry):
    global vain, turns
    connection, at = entry
    try:
        got = connection.recv(8192)
    except BlockingIOError:
        vain += 1
        return
    assert got, f"it ended at {at}"
    place = at % SIZE
    wanted = answer[place:place + len(got)]
    assert got == wanted, f"other bytes at {at}"
    entry[1] = at + len(got)
    if entry[1] == SIZE:
        connection.sendall(b"?" * 64)
    elif entry[1] == 2 * SIZE:
        waits.unregister(connection)
        del all[connection.fileno()]
        connection.close()
        turns -= 1
        if turns >= count:
            begin()

for _ in range(count):
    begin()
while all:
    for number, _ in waits.poll():
        read(all[number])
print("in vain", vain, flush=True)
