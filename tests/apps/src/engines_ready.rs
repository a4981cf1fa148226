//! Two hosts with an engine each: who is told that there is something to read finds it.

use super::Scenario;
use super::engines::{LIMIT, PORT, finish};
use harness::cable::Faults;
use harness::host;
use harness::lab::Side;
use harness::{Result, fail, network};

pub(crate) const SCENARIOS: &[Scenario] =
    &[Scenario::between_hosts("between-hosts-ready", &["python3", network::PROGRAM], |_| ready())
        .ours()
        .limit_s(180)];

/// Answers each 64 bytes with a million.
const SERVER: &str = r#"
import socket, sys, threading
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=100)
answer = bytes((i * 7 + i // 251) % 256 for i in range(1_000_000))
def serve(connection):
    try:
        while connection.recv(64, socket.MSG_WAITALL):
            connection.sendall(answer)
    except ConnectionResetError:
        pass
while True:
    threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()
"#;
const CLIENT: &str = include_str!("../py/ready_client.py");

/// Connections that are promoted in the middle of a long answer: its first part is under way in the kernel's when the next ones are in the ring.
fn ready() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let hosts = host::two_with_engines_told(Faults::default(), 1, &["--promote=all"])?;
    let [here, there] = &hosts;
    let (address, port) = (there.address.to_string(), PORT.to_string());
    let server = there.lab.serve(Side::Sd, PORT, "python3", &["-c", SERVER, &address, &port])?;
    let (at_once, all) = ("16", "48");
    let args = ["-c", CLIENT, &address, &port, at_once, all];
    let said = here.lab.start(Side::Sd, "python3", &args)?.wait(LIMIT)?.ok()?.text();
    let promotions = here.lab.snapshot()?.promotions;
    server.kill();
    match said.trim() {
        _ if promotions == 0 => fail!("no connection was promoted"),
        "in vain 0" => finish(hosts),
        said => fail!("it was told of something to read: {said} times; {promotions} promotions"),
    }
}
