//! Programs behave the same with the library and without: nothing here has a socket to accelerate.

mod common;

use common::{library, products, run};

/// Compares status, output and error output; returns the output.
fn same(command: &[&str]) -> String {
    let (plain, ours) = (run(command, false), run(command, true));
    assert_eq!(plain, ours, "{command:?}");
    String::from_utf8_lossy(&ours.stdout).into_owned()
}

#[test]
fn small_programs() {
    same(&["/bin/true"]);
    same(&["/bin/false"]);
    same(&["cat", "/etc/passwd"]);
    same(&["cat", "/nonexistent"]);
    assert_eq!(same(&["python3", "-c", "print(1)"]), "1\n");
}

#[test]
fn pipelines_and_redirections() {
    let script = "set -e; seq 1 1000 | sort -rn | head -3 | tee /dev/stderr | (read a; cat; echo $a) 2>&1; \
        exec 3</etc/passwd 4>&1; head -1 <&3 >&4; exec 3>&-; x=$(echo sub | cat <(echo process) -); echo $x; \
        (exit 7) || echo $?; trap 'echo term' TERM; kill $$; sleep 0.01 & wait $!; ls -l /proc/self/fd | wc -l";
    assert!(same(&["bash", "-c", script]).contains("process sub"));
}

#[test]
fn python_subprocess_and_sockets() {
    let script = "
import asyncio, os, select, socket, subprocess, tempfile
print(subprocess.run(['echo', 'child'], capture_output=True).stdout, os.popen('echo popen').read())
a, b = socket.socketpair(); a.send(b'x'); print(b.recv(9), select.select([b], [a], [], 0)[0] == [])
with socket.create_server(('127.0.0.1', 0)) as s, socket.create_connection(s.getsockname()) as c:
    d, _ = s.accept(); d.sendall(b'y' * 100000); d.close()
    f = c.makefile('rb'); print(len(f.read()))
async def main():
    p = await asyncio.create_subprocess_exec('cat', '/etc/hostname', stdout=-1); return await p.communicate()
print(asyncio.run(main()), tempfile.TemporaryFile().fileno() > 2, min(os.openpty()) > 2)
";
    assert!(same(&["python3", "-c", script]).contains("popen"));
}

#[test]
fn every_hooked_function() {
    let program = products().join("examples/every_call");
    let shown = same(&[program.to_str().unwrap()]);
    let names: Vec<&str> = shown.lines().filter_map(|line| Some(line.split_once(": ")?.0)).collect();
    let nm = run(&["nm", "-D", "--defined-only", library().to_str().unwrap()], false);
    // Not of libc: an answer to a runtime that asks (see `sanitizer`).
    let is_hook = |symbol: &&str| *symbol != "__asan_default_options";
    let symbols = String::from_utf8_lossy(&nm.stdout).into_owned();
    for symbol in symbols.lines().filter_map(|line| line.split(' ').nth(2)).filter(is_hook) {
        assert!(names.contains(&symbol), "examples/every_call does not call {symbol}");
    }
}

/// A length beyond the buffer must still abort, with glibc's message.
#[test]
fn fortified_overflow_aborts() {
    let script = "
import ctypes; libc = ctypes.CDLL(None); b = ctypes.create_string_buffer(9)
libc.%s
";
    for call in ["__read_chk(0, b, 9, 8)", "__recv_chk(0, b, 9, 8, 0)", "__poll_chk(b, 2, 0, 15)"] {
        let shown = run(&["python3", "-c", &script.replace("%s", call)], true);
        let error = String::from_utf8_lossy(&shown.stderr).into_owned();
        assert!(error.contains("buffer overflow detected"), "{call}: {error}");
        same(&["python3", "-c", &script.replace("%s", call)]);
    }
}
