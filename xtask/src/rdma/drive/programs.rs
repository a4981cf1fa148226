//! Programs as they are: `sd ss` shows their connections on RDMA, and a client without the library is served meanwhile.

use super::super::agent::{Server, start};
use super::super::inside::PATIENCE;
use super::{Driver, PASSED, say, until_moved};
use crate::loads::{Ask, Load, client, nginx_config, said, server_without_files};
use harness::lab::Side;
use harness::{Result, fail};

/// Each with a client of its own.
const LOADS: [Load; 3] = [Load::Redis, Load::Memcached, Load::Nginx];
/// They last for some seconds in a guest.
const ASKED: Ask = Ask { load: Load::Redis, connections: 10, seconds: 5, a_second: 5_000 };
/// Of the client without the library.
const REGULAR: Ask = Ask { connections: 1, seconds: 1, a_second: 200, ..ASKED };

impl Driver {
    pub(super) fn programs(&mut self, is_quick: bool) -> Result<()> {
        for load in LOADS.into_iter().take(if is_quick { 1 } else { LOADS.len() }) {
            self.program(load).map_err(|error| format!("{load:?}: {error}"))?;
            say(PASSED)?;
        }
        Ok(())
    }

    /// Starts a server, accelerated; where it is.
    pub(super) fn serve(&mut self, load: Load) -> Result<(String, u16)> {
        self.port += 1;
        let (address, port) = (self.server.to_string(), self.port);
        let (line, number) = (nginx(&address, port), port.to_string());
        let (program, args) = match load {
            Load::Nginx => ("sh", vec!["-c", &line]),
            _ => server_without_files(load, &address, &number),
        };
        self.agent.serve(&Server { side: Some(Side::Sd), program, args: &args, says: None, port })?;
        Ok((address, port))
    }

    fn program(&mut self, load: Load) -> Result<()> {
        let (address, port) = self.serve(load)?;
        let begin = |side, ask: &Ask| {
            let (program, args) = client(ask, (&address, port));
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            start(&self.host, Some(side), program, &args)
        };
        let mut ours = begin(Side::Sd, &Ask { load, ..ASKED })?;
        until_moved(&self.host, port, || ours.is_running())
            .map_err(|error| format!("{error}; its client: {}", ours.last_words()))?;
        let regular = begin(Side::Kernel, &Ask { load, ..REGULAR })?;
        for (one, ask) in [(ours, ASKED), (regular, REGULAR)] {
            let text = one.wait(PATIENCE * 2)?.ok()?.text();
            let rate = said(&text, &Ask { load, ..ask })?.requests_per_s;
            if rate.is_nan() || rate <= 0.0 {
                fail!("its client printed {text:?}");
            }
        }
        self.agent.end()
    }
}

/// For a shell: nginx as one process, which is all that is ended.
fn nginx(address: &str, port: u16) -> String {
    let answer = format!("return 200 {};", "x".repeat(64));
    let config = nginx_config("$folder", &format!("{address}:{port}"), &answer);
    let config = config.replace("daemon off;", "daemon off; master_process off;");
    format!("folder=$(mktemp -d); echo \"{config}\" > $folder/c; exec nginx -p $folder -c $folder/c")
}
