//! RabbitMQ: hundreds of Erlang processes behind one epoll instance; a script starts the emulator.

use super::rates;
use super::table::{Load, Row};
use super::{Scenario, python};
use harness::lab::{Lab, Side};
use harness::process::{Proc, free_port};
use harness::{Result, fail};
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] =
    &[Scenario::new("rabbitmq-messages-and-restart", PROGRAMS, messages).limit_s(240).extra()];

pub(crate) const ROWS: &[Row] = &[Row {
    application: "RabbitMQ",
    version: &["sh", "-c", "ls /usr/lib/rabbitmq/lib"],
    scenarios: "rabbitmq-",
    features: "AMQP: eight connections at once, confirmed and durable messages of 0 to 1,000,000 bytes, restart",
    load: Some(Load { unit: "messages/s of 64 bytes there and back, one client in Python", rate }),
}];

const SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";
const PIKA: &str = "/usr/lib/python3/dist-packages/pika";
const PROGRAMS: &[&str] = &[SERVER, "erl", "epmd", "python3", PIKA];
const LIMIT: Duration = Duration::from_secs(60);

/// The mapper of names and the broker, with its store in the laboratory.
struct Broker {
    mapper: Proc,
    server: Proc,
    port: u16,
}

impl Broker {
    fn start(lab: &Lab, side: Side, port: u16) -> Result<Broker> {
        let names = free_port()?.to_string();
        let mapper = lab.serve(side, names.parse()?, "epmd", &["-port", &names, "-address", "127.0.0.1"])?;
        let folder = lab.path().join(format!("rabbit-{port}")).display().to_string();
        std::fs::create_dir_all(&folder)?;
        let mut command = lab.command(side, SERVER, &[])?;
        command.env("HOME", &folder).env("ERL_EPMD_PORT", &names).env("ERL_EPMD_ADDRESS", "127.0.0.1");
        for (name, value) in [
            ("NODENAME", "lab@localhost".to_owned()),
            ("NODE_IP_ADDRESS", "127.0.0.1".to_owned()),
            ("NODE_PORT", port.to_string()),
            ("DIST_PORT", free_port()?.to_string()),
            ("MNESIA_BASE", format!("{folder}/store")),
            ("LOG_BASE", format!("{folder}/log")),
            ("LOGS", "-".to_owned()),
            ("ENABLED_PLUGINS_FILE", format!("{folder}/plugins")),
            ("CONF_ENV_FILE", "/dev/null".to_owned()),
            ("CONFIG_FILE", format!("{folder}/none")),
            ("PID_FILE", format!("{folder}/pid")),
        ] {
            command.env(format!("RABBITMQ_{name}"), value);
        }
        let mut server = Proc::start(&mut command, "rabbitmq", lab.path())?;
        server.wait_for_text("Server startup complete", LIMIT)?;
        Ok(Broker { mapper, server, port })
    }

    fn ask(&self, lab: &Lab, side: Side, what: &str) -> Result<String> {
        python::run(lab, side, "rabbit.py", &[self.port.to_string(), what.to_owned()], LIMIT)
    }

    fn stop(self) -> Result<()> {
        self.server.terminate(LIMIT)?;
        self.mapper.terminate(LIMIT)?;
        Ok(())
    }
}

fn messages(lab: &mut Lab) -> Result<()> {
    for (server, client) in [(Side::Sd, Side::Sd), (Side::Sd, Side::Kernel), (Side::Kernel, Side::Sd)] {
        let port = free_port()?;
        let broker = Broker::start(lab, server, port)?;
        let watch = lab.watch(port);
        for what in ["exchange", "leave"] {
            require_right(&broker.ask(lab, client, what)?)?;
        }
        lab.check(watch, server, client)?;
        broker.stop()?;
        let broker = Broker::start(lab, server, port)?;
        require_right(&broker.ask(lab, client, "find")?)?;
        broker.stop()?;
    }
    Ok(())
}

fn require_right(said: &str) -> Result<()> {
    if said.trim() != "all right" {
        fail!("rabbit.py printed {said:?}");
    }
    Ok(())
}

fn rate(lab: &Lab, side: Side) -> Result<f64> {
    let broker = Broker::start(lab, side, free_port()?)?;
    let rate = rates::number(&broker.ask(lab, side, "rate")?)?;
    broker.stop()?;
    Ok(rate)
}
