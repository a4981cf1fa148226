# shifted.py SD LIBSD MONITOR: a user namespace in which the host's root has no number, as in a container.
import ctypes, json, os, shutil, subprocess, sys, time

sd, library, other_monitor = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
PYTHON = "/usr/bin/python3"
NEWNS, NEWUSER, REC_PRIVATE = 0x20000, 0x10000000, 0x44000
TALK = """
import socket, time
s = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(s.getsockname()); a, _ = s.accept()
c.sendall(b'word'); print(a.recv(9).decode(), flush=True); time.sleep(%s)
"""


def mount(*arguments):
    return libc.mount(*arguments) == 0


if os.geteuid() != 0 or not os.path.exists(PYTHON) or libc.unshare(NEWNS):
    sys.exit(print("skipped"))
assert mount(b"none", b"/", None, REC_PRIVATE, None) and mount(b"none", b"/mnt", b"tmpfs", 0, b"mode=755")
for file in (sd, library):
    shutil.copy(file, "/mnt")
sd = "/mnt/sd"


def inside(command, **variables):
    """Starts a command as root of a namespace of its own."""
    ready, go = os.pipe(), os.pipe()

    def enter():
        assert libc.unshare(NEWUSER) == 0
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        os.setgid(0)
        os.setuid(0)

    pid = os.fork()
    if pid == 0:
        # The maps are written by the parent while Popen waits for the exec.
        os.read(ready[0], 1)
        for kind in ("gid", "uid"):
            child = open("/proc/%d/task/%d/children" % (os.getppid(), os.getppid())).read().split()
            child = [number for number in child if number != str(os.getpid())][-1]
            open("/proc/%s/%s_map" % (child, kind), "w").write("0 200000 65536")
        os.write(go[1], b"x")
        os._exit(0)
    started = subprocess.Popen(
        command, preexec_fn=enter, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/",
        env=dict(os.environ, **variables))
    os.waitpid(pid, 0)
    return started


def run(seconds, socket):
    return inside([sd, "run", "--no-start", "--", PYTHON, "-c", TALK % seconds], SD_MONITOR=socket)


# Nobody inside can have put this socket where it is.
socket = "/mnt/run/monitor.sock"
monitor = subprocess.Popen([sd, "monitor", "--socket", socket])
while not os.path.exists(socket):
    time.sleep(0.01)
os.chmod("/mnt/run", 0o755)
talk = run(2, socket)
assert talk.stdout.readline() == "word\n", talk.stderr.read()
shown = json.loads(subprocess.check_output([sd, "ss", "--socket", socket, "--json"]))["connections"]
assert len(shown) == 2 and all(c["path"] == "shm" for c in shown), shown
assert talk.wait() == 0 and talk.stderr.read() == ""
monitor.terminate()
monitor.wait()

# This one somebody could have: the kernel's connections, and one line that says so.
talk = run(1, other_monitor)
assert talk.stdout.readline() == "word\n", talk.stderr.read()
shown = subprocess.run([sd, "ss", "--socket", other_monitor], capture_output=True, text=True)
assert "shm" not in shown.stdout and "another user namespace" in shown.stderr, shown
assert talk.wait() == 0
lines = talk.stderr.read().splitlines()
assert len(lines) == 1 and lines[0].endswith("over the kernel") and "65534" in lines[0], lines
doctor = inside([sd, "doctor"], SD_MONITOR=other_monitor)
lines = [line for line in doctor.stdout.read().splitlines() if line.startswith("FAIL")]
assert any("socket directory" in line for line in lines) and any("monitor" in line for line in lines), lines
doctor.wait()
print("right")
