# Each connection has been busy by itself. Then the program does nothing for a while, and reads nothing that it is told; later all talk at once, until a
# line comes.
import time

talks = [Talk() for _ in range(count)]
for talk in talks:
    for _ in range(20):
        talk.send(64)
        talk.receive(64)
time.sleep(3)
together_until_line("many", talks)
print("over", flush=True)
