"""Echo server of one thread. Told `stop` it stands still until it is told anything else."""
import os
import selectors
import socket
import sys

listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=200)
listener.setblocking(False)
chooser = selectors.DefaultSelector()
chooser.register(listener, selectors.EVENT_READ)
chooser.register(0, selectors.EVENT_READ)
unsent = {}
print("listens", flush=True)


def end(connection, how):
    chooser.unregister(connection)
    unsent.pop(connection).release()
    print(how, flush=True)
    connection.close()


def serve(connection):
    """Answers with what has come; reads no more before all of that is sent."""
    if not unsent[connection]:
        data = connection.recv(65536)
        if not data:
            return end(connection, "end")
        unsent[connection] = memoryview(data)
    try:
        sent = connection.send(unsent[connection])
    except BlockingIOError:
        sent = 0
    unsent[connection] = unsent[connection][sent:]
    wanted = selectors.EVENT_WRITE if unsent[connection] else selectors.EVENT_READ
    if chooser.get_key(connection).events != wanted:
        chooser.modify(connection, wanted)


while True:
    for key, _ in chooser.select():
        if key.fileobj == 0:
            # Lines, unbuffered: what is not `stop` goes on.
            line = os.read(0, 5)
            if not line:
                sys.exit()
            if line == b"stop\n":
                print("stopped", flush=True)
                os.read(0, 5)
        elif key.fileobj is listener:
            connection = listener.accept()[0]
            connection.setblocking(False)
            unsent[connection] = memoryview(b"")
            chooser.register(connection, selectors.EVENT_READ)
        else:
            try:
                serve(key.fileobj)
            except BlockingIOError:
                pass
            except OSError:
                end(key.fileobj, "reset")
