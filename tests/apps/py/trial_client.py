# Connections that talk all at once, and check every byte, until a line comes.
talks = [Talk() for _ in range(count)]
print("many", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    for talk in talks:
        talk.send(64)
    for talk in talks:
        talk.receive(64)
sys.stdin.readline()
print("over", flush=True)
