//! The server's end: it starts and ends the servers of what is measured, as the client's end asks over a TCP connection, a line of
//! JSON for each question and each answer.
//!
//! ```text
//!  client --{"trust": WORDS}--> server         says how its engine is trusted; the answer is the server's own key, whose engine is up then
//!  client --{"ipv6": true}--> server           its engine is reached by IPv6 from now on
//!  client --{"serve": [...], ...}--> server    starts a program, waits until it is ready
//!  client --{"end": true}--> server            ends it
//! ```
//! The server ends when the connection does. What went wrong there is the answer's `error`.

use super::inside::{End, PATIENCE};
use harness::host::Host;
use harness::lab::Side;
use harness::process::Proc;
use harness::{Result, fail, retry};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;

/// Connections are carried by the engines as soon as they can be.
const ALWAYS: [&str; 1] = ["--promote=all"];
const LEAST: usize = 1;

/// The client's connection to it.
pub(super) struct Agent {
    write: TcpStream,
    read: BufReader<TcpStream>,
}

/// What a server is started with.
pub(super) struct Server<'a> {
    /// None is a program of verbs, which runs in the guest's own network.
    pub(super) side: Option<Side>,
    pub(super) program: &'a str,
    pub(super) args: &'a [&'a str],
    /// It is ready when it says this, or else when it listens at its port.
    pub(super) says: Option<&'a str>,
    pub(super) port: u16,
}

impl Agent {
    pub(super) fn connect(control: SocketAddr) -> Result<Agent> {
        let write = retry(PATIENCE, || Ok(TcpStream::connect(control)?))?;
        write.set_nodelay(true)?;
        // A server that is gone without a word must not hold the client up.
        write.set_read_timeout(Some(PATIENCE * 2))?;
        let read = BufReader::new(write.try_clone()?);
        Ok(Agent { write, read })
    }

    fn ask(&mut self, question: &Value) -> Result<Value> {
        self.write.write_all(format!("{question}\n").as_bytes())?;
        let mut line = String::new();
        self.read.read_line(&mut line)?;
        let answer: Value = serde_json::from_str(&line).map_err(|_| "the server's end is gone")?;
        match answer["error"].as_str() {
            Some(error) => fail!("the server's end: {error}"),
            None => Ok(answer),
        }
    }

    /// Tells it how this end's engine is trusted; its own key, when its engine is there.
    pub(super) fn meet(&mut self, address: Ipv4Addr, trust: &str) -> Result<String> {
        let answer = self.ask(&json!({ "trust": trust, "address": address }))?;
        Ok(answer["key"].as_str().unwrap_or_default().to_owned())
    }

    /// Both engines are to use IPv6.
    pub(super) fn use_ipv6(&mut self) -> Result<()> {
        self.ask(&json!({ "ipv6": true })).map(drop)
    }

    pub(super) fn serve(&mut self, server: &Server<'_>) -> Result<()> {
        let side = server.side.map(Side::name);
        let Server { program, args, says, port, .. } = server;
        let question = json!({ "serve": args, "program": program, "side": side, "says": says, "port": port });
        self.ask(&question).map(drop)
    }

    pub(super) fn end(&mut self) -> Result<()> {
        self.ask(&json!({ "end": true })).map(drop)
    }
}

/// A host whose engine knows the other one's.
pub(super) fn start_engine(host: &mut Host, other: (Ipv4Addr, String)) -> Result<()> {
    host.knows(&[other], LEAST)?;
    let mut file = std::fs::OpenOptions::new().append(true).open(host.hosts_file())?;
    file.write_all(b"carrier rdma\n")?;
    host.tell_monitor(&ALWAYS);
    host.start_engine()
}

/// Answers until the client's end is gone.
pub(super) fn serve(end: End, control: SocketAddr) -> Result<()> {
    let (mut write, _) = TcpListener::bind(control)?.accept()?;
    write.set_nodelay(true)?;
    let read = BufReader::new(write.try_clone()?);
    let mut host = Host::bare(end.network, end.address)?;
    let key = host.make_key("engine.key")?;
    let mut program = None;
    for line in read.lines() {
        let question: Value = serde_json::from_str(&line?)?;
        let answer = match act(&mut host, &mut program, &question) {
            Ok(()) => json!({ "key": key }),
            Err(error) => json!({ "error": error.to_string() }),
        };
        write.write_all(format!("{answer}\n").as_bytes())?;
    }
    host.finish()
}

fn act(host: &mut Host, program: &mut Option<Proc>, question: &Value) -> Result<()> {
    if let Some(trust) = question["trust"].as_str() {
        let other = question["address"].as_str().unwrap_or_default().parse()?;
        return start_engine(host, (other, trust.to_owned()));
    }
    if question["ipv6"] == true {
        return host.use_ipv6();
    }
    if let Some(ended) = program.take() {
        ended.kill();
    }
    let Some(args) = question["serve"].as_array() else { return Ok(()) };
    let args: Vec<&str> = args.iter().filter_map(Value::as_str).collect();
    let name = question["program"].as_str().unwrap_or_default();
    let side = match question["side"].as_str() {
        None => None,
        Some(word) if word == Side::Sd.name() => Some(Side::Sd),
        Some(_) => Some(Side::Kernel),
    };
    let mut started = start(host, side, name, &args)?;
    match question["says"].as_str() {
        Some(text) => started.wait_for_text(text, PATIENCE)?,
        None => started.wait_listening(question["port"].as_u64().unwrap_or_default() as u16)?,
    }
    *program = Some(started);
    Ok(())
}

/// Starts a program of a host: of verbs, or with a side.
pub(super) fn start(host: &Host, side: Option<Side>, program: &str, args: &[&str]) -> Result<Proc> {
    let mut command = match side {
        Some(side) => host.lab.command(side, program, args)?,
        None => {
            let mut command = Command::new(program);
            command.args(args).stdin(std::process::Stdio::null());
            command
        }
    };
    if side.is_some() {
        command.stdin(std::process::Stdio::piped());
    }
    let name = std::path::Path::new(program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    Proc::start(&mut command, &name, host.lab.path())
}
