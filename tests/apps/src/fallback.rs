//! Regular peers, both kinds at once, other addresses, programs that cannot be accelerated.

use super::{Scenario, files, python, web};
use harness::lab::{Lab, Side};
use harness::process::free_port;
use harness::{Result, fail, ss};
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("both-kinds-of-clients-at-once", &["python3"], both_at_once),
    Scenario::new("ipv6", &["python3", "curl"], |lab| address(lab, "::1", "[::1]")),
    Scenario::new("any-address", &["python3", "curl"], |lab| address(lab, "0.0.0.0", "127.0.0.1")),
    Scenario::new("dual-stack", &["python3", "curl"], |lab| address(lab, "::", "127.0.0.1")),
    Scenario::new("own-other-address", &["python3", "curl"], own_address),
    Scenario::new("refused-connection", &["curl"], refused),
];

const LIMIT: Duration = Duration::from_secs(40);

/// One port serves accelerated and regular clients at the same time.
fn both_at_once(lab: &mut Lab) -> Result<()> {
    let (server, port) = python::start_echo_server(lab, Side::Sd, "asyncio")?;
    let watch = lab.watch(port);
    let args = [port.to_string(), "50".to_owned(), "60".to_owned()];
    let ours = python::start(lab, Side::Sd, "echo_client.py", &args)?;
    let regular = python::start(lab, Side::Kernel, "echo_client.py", &args)?;
    ours.wait(LIMIT)?.ok()?;
    regular.wait(LIMIT)?.ok()?;
    if let Some(watch) = watch {
        let seen = watch.finish()?;
        let (shm, kernel): (Vec<_>, Vec<_>) = seen.into_iter().partition(|c| c.path == "shm");
        lab.require_shm(&shm)?;
        ss::require_kernel(&kernel)?;
    }
    server.terminate(Duration::from_secs(5))?;
    Ok(())
}

fn address(lab: &mut Lab, bind: &str, host: &str) -> Result<()> {
    let root = lab.path().join("files");
    std::fs::create_dir_all(&root)?;
    let data = files::bytes(30_000_000);
    std::fs::write(root.join("file"), &data)?;
    let port = free_port()?;
    let (text, folder) = (port.to_string(), root.display().to_string());
    let args = ["-m", "http.server", &text, "--bind", bind, "--directory", &folder];
    for (server, client) in [(Side::Sd, Side::Sd), (Side::Sd, Side::Kernel), (Side::Kernel, Side::Sd)] {
        let process = lab.serve(server, port, "python3", &args)?;
        let watch = lab.watch(port);
        web::download_late(lab, client, &format!("http://{host}:{port}/file"), &data)?;
        lab.check(watch, server, client).map_err(|e| format!("{server:?} server, {client:?} client: {e}"))?;
        process.terminate(Duration::from_secs(5))?;
    }
    Ok(())
}

/// The address of the default route's interface, if there is one. Nothing is sent.
fn own_address(lab: &mut Lab) -> Result<()> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    if socket.connect("192.0.2.1:9").is_err() {
        return Ok(());
    }
    let own = socket.local_addr()?.ip().to_string();
    address(lab, "0.0.0.0", &own)
}

fn refused(lab: &mut Lab) -> Result<()> {
    let url = format!("http://127.0.0.1:{}/", free_port()?);
    for side in [Side::Sd, Side::Kernel] {
        let output = lab.start(side, "curl", &["-sS", "--max-time", "5", &url])?.wait(LIMIT)?;
        const COULD_NOT_CONNECT: i32 = 7;
        if output.status.code() != Some(COULD_NOT_CONNECT) {
            fail!("{side:?}: curl ended with {}: {:?}", output.status, output.stderr);
        }
    }
    Ok(())
}
