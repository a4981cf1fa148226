
# A thread for each connection, all of which talk, and check every byte, until a line comes; then as many new connections, until the next.
def talk_until(over):
    talk = Talk()
    while not over.is_set():
        talk.send(64)
        talk.receive(64)

for stage in ("many", "again"):
    over = threading.Event()
    threads = [threading.Thread(target=talk_until, args=[over]) for _ in range(count)]
    for thread in threads:
        thread.start()
    print(stage, flush=True)
    sys.stdin.readline()
    over.set()
    for thread in threads:
        thread.join()
print("over", flush=True)
