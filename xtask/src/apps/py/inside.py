"""The first process of a namespace: starts an echo server, runs an echo client, and ends both when standard input ends.

usage: inside.py SERVER CLIENT PORT
"""

import subprocess
import sys
import time

server_script, client_script, port = sys.argv[1:]
server = subprocess.Popen([sys.executable, server_script, port, "asyncio"])


def listens():
    wanted = ":%04X" % int(port)
    with open("/proc/net/tcp") as table:
        return any(line.split()[1].endswith(wanted) and line.split()[3] == "0A" for line in list(table)[1:])


while not listens():
    time.sleep(0.02)
done = subprocess.run([sys.executable, client_script, port, "6", "8"], stdout=subprocess.PIPE, text=True)
print(done.stdout, flush=True)
sys.stdin.read()
server.terminate()
server.wait()
sys.exit(done.returncode)
