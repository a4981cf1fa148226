"""The first process of a namespace: starts an echo server and a server that says its name, runs an echo client, and
asks the other server again whenever a line comes. Ends both when standard input ends.

usage: inside.py ECHO_SERVER ECHO_CLIENT PORT WHO WHO_PORT NAME
"""

import subprocess
import sys
import time

server_script, client_script, port, who_script, who_port, name = sys.argv[1:]
servers = [
    subprocess.Popen([sys.executable, server_script, port, "asyncio"]),
    subprocess.Popen([sys.executable, who_script, "serve", who_port, name]),
]


def listens(wanted_port):
    wanted = ":%04X" % int(wanted_port)
    with open("/proc/net/tcp") as table:
        return any(line.split()[1].endswith(wanted) and line.split()[3] == "0A" for line in list(table)[1:])


while not (listens(port) and listens(who_port)):
    time.sleep(0.02)
done = subprocess.run([sys.executable, client_script, port, "6", "8"], stdout=subprocess.PIPE, text=True)
print(done.stdout, flush=True)
status = done.returncode
for _ in sys.stdin:
    status |= subprocess.run([sys.executable, who_script, "ask", who_port, "16"]).returncode
    print("asked", flush=True)
for server in servers:
    server.terminate()
    server.wait()
sys.exit(status)
