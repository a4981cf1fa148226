//! `sd doctor-peer`, hidden: the programs of the self-test.
//!
//! ```text
//! server --ready ADDRESS--> doctor                 one line on standard output each
//! client --connected--> doctor --go--> client
//! client --result NANOSECONDS--> doctor
//! ```

use sd_cli::failure::{Context, Failure, Result, print};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// The first argument of such a program.
pub(super) const NAME: &str = "doctor-peer";
/// Of a question, and of its answer.
const BYTES: usize = 8;
const TIME: Duration = Duration::from_millis(20);

/// The arguments, when this is such a program's command line.
pub(crate) fn role() -> Option<Vec<String>> {
    let mut arguments = std::env::args().skip(1);
    (arguments.next()? == NAME).then(|| arguments.collect())
}

/// Plays one part.
pub(crate) fn main(role: &[String]) -> Result<()> {
    match role.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["loaded"] => loaded(),
        ["server"] => serve(),
        ["client", address] => call(address),
        _ => Err(Failure::new(format!("{NAME}: no such part")).with_status(2)),
    }
}

/// Says whether the preload library is in this process.
fn loaded() -> Result<()> {
    let maps = std::fs::read_to_string("/proc/self/maps").context("/proc/self/maps")?;
    let loaded = maps.lines().any(|line| line.ends_with(sd_cli::library::FILE));
    print(if loaded { "loaded\n" } else { "absent\n" })
}

/// Answers one client until that one is gone.
fn serve() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").context("listen")?;
    let address = listener.local_addr().context("address")?;
    print(&format!("ready {address}\n"))?;
    let (mut stream, _) = listener.accept().context("accept")?;
    stream.set_nodelay(true).context("TCP_NODELAY")?;
    let mut bytes = [0; BYTES];
    while stream.read_exact(&mut bytes).is_ok() {
        stream.write_all(&bytes).context("send")?;
    }
    Ok(())
}

/// Asks for a while: the median time to an answer.
fn call(address: &str) -> Result<()> {
    let mut stream = TcpStream::connect(address).context("connect")?;
    stream.set_nodelay(true).context("TCP_NODELAY")?;
    print("connected\n")?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).context("standard input")?;
    let mut bytes = [0; BYTES];
    let mut times = Vec::new();
    let end = Instant::now() + TIME;
    let mut begin = Instant::now();
    while times.is_empty() || begin < end {
        stream.write_all(&bytes).context("send")?;
        stream.read_exact(&mut bytes).context("recv")?;
        let now = Instant::now();
        times.push(now - begin);
        begin = now;
    }
    times.sort_unstable();
    print(&format!("result {}\n", times[times.len() / 2].as_nanos()))
}
