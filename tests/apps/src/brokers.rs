//! Message brokers: Mosquitto and a bridge between two of them; Erlang nodes, which RabbitMQ is made of.

use super::table::{Load, Row};
use super::{Scenario, files, rates};
use harness::lab::{Lab, Side};
use harness::process::{Proc, free_port, tail};
use harness::{Result, fail, nginx};
use std::time::{Duration, Instant};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("mosquitto-messages", MOSQUITTO, messages).limit_s(120).extra(),
    Scenario::new("mosquitto-bridge", MOSQUITTO, bridge).limit_s(120).extra(),
    Scenario::new("erlang-nodes", &["erl", "epmd"], nodes).limit_s(120).extra(),
];

pub(crate) const ROWS: &[Row] = &[
    Row {
        application: "Mosquitto",
        version: &["mosquitto", "-h"],
        scenarios: "mosquitto-",
        features: "subscriptions of three qualities, retained messages, sessions kept over a restart, bridge",
        load: Some(Load {
            unit: "messages/s of quality 1, 20,000 from one client to one",
            rate: messages_rate,
        }),
    },
    Row {
        application: "Erlang",
        version: &[
            "erl",
            "-noshell",
            "-eval",
            "io:format(\"~s.0\", [erlang:system_info(otp_release)]), halt().",
        ],
        scenarios: "erlang-",
        features: "epmd, distribution between nodes, gen_tcp, a node that is killed",
        load: Some(Load { unit: "calls/s between two nodes, one at a time", rate: calls_rate }),
    },
];

const MOSQUITTO: &[&str] = &["mosquitto", "mosquitto_pub", "mosquitto_sub"];
const LIMIT: Duration = Duration::from_secs(40);
const SIDES: [(Side, Side); 3] = [(Side::Sd, Side::Sd), (Side::Sd, Side::Kernel), (Side::Kernel, Side::Sd)];

fn broker(lab: &Lab, side: Side, port: u16, extra: &str) -> Result<Proc> {
    let store = lab.path().join(format!("store-{port}"));
    std::fs::create_dir_all(&store)?;
    let configuration = lab.path().join(format!("mosquitto-{port}.conf"));
    let text = format!(
        "listener {port} 127.0.0.1\nallow_anonymous true\nuser {}\npersistence true\npersistence_location {}/\n{extra}",
        nginx::own_user(),
        store.display()
    );
    std::fs::write(&configuration, text)?;
    lab.serve(side, port, "mosquitto", &["-c", &configuration.display().to_string()])
}

fn subscribe(lab: &Lab, side: Side, port: u16, extra: &[&str]) -> Result<Proc> {
    let port = port.to_string();
    let mut args = vec!["-oL", "mosquitto_sub", "-h", "127.0.0.1", "-p", &port, "-d"];
    args.extend(extra);
    let mut subscriber = lab.start(side, "stdbuf", &args)?;
    subscriber.wait_for_text("Subscribed (mid", LIMIT)?;
    Ok(subscriber)
}

fn publish(lab: &Lab, side: Side, port: u16, extra: &[&str]) -> Result<()> {
    let port = port.to_string();
    let mut args = vec!["-h", "127.0.0.1", "-p", &port];
    args.extend(extra);
    lab.run(side, "mosquitto_pub", &args, LIMIT)?;
    Ok(())
}

/// The lines of a subscriber that are messages; with `-d` it says other things too.
fn require_lines(subscriber: &mut Proc, count: usize) -> Result<()> {
    subscriber.wait_for_text(&format!("message-{}\n", count - 1), LIMIT)?;
    let text = subscriber.stdout_so_far();
    let got: Vec<&str> = text.lines().filter(|line| line.starts_with("message-")).collect();
    let wanted: Vec<String> = (0..count).map(|index| format!("message-{index}")).collect();
    if got != wanted {
        fail!("{} messages, not {count} in order: {:?}", got.len(), tail(&text, 200));
    }
    Ok(())
}

/// Each quality of service in order, a large and a retained message, and what waited for an absent subscriber.
fn messages(lab: &mut Lab) -> Result<()> {
    const COUNT: usize = 500;
    let lines = lab.path().join("lines");
    std::fs::write(&lines, (0..COUNT).map(|index| format!("message-{index}\n")).collect::<String>())?;
    let large = lab.path().join("large");
    std::fs::write(&large, files::bytes(3_000_000))?;
    let large = large.display().to_string();
    for (server, client) in SIDES {
        let port = free_port()?;
        let mut process = broker(lab, server, port, "max_queued_messages 2000\n")?;
        let watch = lab.watch(port);
        let text = port.to_string();
        for quality in ["0", "1", "2"] {
            let mut subscriber = subscribe(lab, client, port, &["-t", "news/#", "-q", quality])?;
            let args = ["-h", "127.0.0.1", "-p", &text, "-t", "news/a", "-q", quality, "-l"];
            lab.run_with_input(client, &lines, "mosquitto_pub", &args, LIMIT)?;
            require_lines(&mut subscriber, COUNT)?;
            subscriber.terminate(LIMIT)?;
        }
        publish(lab, client, port, &["-t", "kept", "-r", "-q", "1", "-f", &large])?;
        let args = ["-h", "127.0.0.1", "-p", &text, "-t", "kept", "-C", "1", "-N"];
        let got = lab.run(client, "mosquitto_sub", &args, LIMIT)?.stdout;
        files::require_same("a retained message", &got, &files::bytes(3_000_000))?;
        let session = ["-t", "later", "-q", "1", "-i", "one", "-c"];
        subscribe(lab, client, port, &session)?.terminate(LIMIT)?;
        let args = ["-h", "127.0.0.1", "-p", &text, "-t", "later", "-q", "1", "-l"];
        lab.run_with_input(client, &lines, "mosquitto_pub", &args, LIMIT)?;
        lab.check(watch, server, client)?;
        process.terminate(LIMIT)?.ok()?;
        process = broker(lab, server, port, "max_queued_messages 2000\n")?;
        let mut subscriber = subscribe(lab, client, port, &session)?;
        require_lines(&mut subscriber, COUNT)?;
        subscriber.terminate(LIMIT)?;
        process.terminate(LIMIT)?.ok()?;
    }
    Ok(())
}

fn messages_rate(lab: &Lab, side: Side) -> Result<f64> {
    const COUNT: usize = 20_000;
    let lines = lab.path().join("lines");
    std::fs::write(&lines, "message\n".repeat(COUNT))?;
    let port = free_port()?;
    let process = broker(lab, side, port, "max_queued_messages 0\n")?;
    let count = COUNT.to_string();
    let subscriber = subscribe(lab, side, port, &["-t", "news", "-q", "1", "-C", &count])?;
    let start = Instant::now();
    let args = ["-h", "127.0.0.1", "-p", &port.to_string(), "-t", "news", "-q", "1", "-l"];
    lab.run_with_input(side, &lines, "mosquitto_pub", &args, LIMIT)?;
    subscriber.wait(LIMIT)?.ok()?;
    let rate = COUNT as f64 / start.elapsed().as_secs_f64();
    process.terminate(LIMIT)?.ok()?;
    Ok(rate)
}

/// Two brokers, one of which is a client of the other; the bridge comes back after the other's restart.
fn bridge(lab: &mut Lab) -> Result<()> {
    let ports = [free_port()?, free_port()?];
    let mut first = broker(lab, Side::Sd, ports[0], "")?;
    let watch = lab.watch(ports[0]);
    let connection = format!(
        "connection between\naddress 127.0.0.1:{}\ntopic # both 1\nrestart_timeout 1\ncleansession false\n",
        ports[0]
    );
    let second = broker(lab, Side::Sd, ports[1], &connection)?;
    for round in 0..2 {
        for (from, to) in [(ports[0], ports[1]), (ports[1], ports[0])] {
            let topic = format!("round-{round}-{from}");
            let subscriber = subscribe(lab, Side::Sd, to, &["-t", &topic])?;
            let end = Instant::now() + LIMIT;
            // Until the bridge is there, messages stay where they are.
            while !subscriber.stdout_so_far().contains("across") {
                publish(lab, Side::Sd, from, &["-t", &topic, "-q", "1", "-m", "across"])?;
                std::thread::sleep(Duration::from_millis(100));
                if Instant::now() > end {
                    fail!("nothing comes across the bridge in round {round}");
                }
            }
            subscriber.terminate(LIMIT)?;
        }
        if round == 0 {
            first.terminate(LIMIT)?.ok()?;
            first = broker(lab, Side::Sd, ports[0], "")?;
        }
    }
    lab.check(watch, Side::Sd, Side::Sd)?;
    second.terminate(LIMIT)?.ok()?;
    first.terminate(LIMIT)?.ok()?;
    Ok(())
}

/// Serves as node `b`: stays until told to end.
const SERVER: &str = "register(main, self()), io:format(\"ready~n\"), receive stop -> halt() end.";

/// As node `a`: calls with large terms, many messages in order, gen_tcp with the other node, and its death.
const CLIENT: &str = "
    pong = net_adm:ping(b@localhost),
    Large = binary:copy(<<\"0123456789abcdef\">>, 500000),
    Large = rpc:call(b@localhost, binary, copy, [Large]),
    8000000 = rpc:call(b@localhost, erlang, byte_size, [Large]),
    Self = self(),
    spawn(b@localhost, erlang, apply, [fun() -> [Self ! {number, N} || N <- lists:seq(1, 50000)] end, []]),
    [receive {number, N} -> ok end || N <- lists:seq(1, 50000)],
    true = erlang:monitor_node(b@localhost, true),
    exit(rpc:call(b@localhost, erlang, whereis, [main]), kill),
    rpc:cast(b@localhost, erlang, halt, [0]),
    receive {nodedown, b@localhost} -> io:format(\"all right~n\") after 20000 -> io:format(\"no nodedown~n\") end,
    halt().";

/// The mapper of names and the port that the serving node has.
struct Nodes {
    names: String,
    mapper: Proc,
    distribution: u16,
}

impl Nodes {
    fn new(lab: &Lab, side: Side) -> Result<Nodes> {
        let (names, distribution) = (free_port()?, free_port()?);
        let mapper =
            lab.serve(side, names, "epmd", &["-port", &names.to_string(), "-address", "127.0.0.1"])?;
        Ok(Nodes { names: names.to_string(), mapper, distribution })
    }

    fn start(&self, lab: &Lab, side: Side, name: &str, program: &str, port: u16) -> Result<Proc> {
        let port = port.to_string();
        let mut args = vec!["-noinput", "-sname", name, "-setcookie", "lab", "-start_epmd", "false"];
        args.extend(["-kernel", "inet_dist_use_interface", "{127,0,0,1}"]);
        args.extend(["inet_dist_listen_min", &port, "inet_dist_listen_max", &port, "-eval", program]);
        let mut command = lab.command(side, "erl", &args)?;
        command.env("ERL_EPMD_PORT", &self.names).env("HOME", lab.path());
        Proc::start(&mut command, name, lab.path())
    }

    fn serve(&self, lab: &Lab, side: Side) -> Result<Proc> {
        let mut serving = self.start(lab, side, "b@localhost", SERVER, self.distribution)?;
        serving.wait_for_text("ready", LIMIT)?;
        Ok(serving)
    }
}

/// The mapper of names, a node that serves, and one that uses it.
fn nodes(lab: &mut Lab) -> Result<()> {
    for (server, client) in SIDES {
        let nodes = Nodes::new(lab, server)?;
        let serving = nodes.serve(lab, server)?;
        let watch = lab.watch(nodes.distribution);
        let output = nodes.start(lab, client, "a@localhost", CLIENT, free_port()?)?.wait(LIMIT)?;
        if output.text() != "all right\n" {
            fail!("the nodes: {:?} {:?}", output.text(), output.stderr);
        }
        lab.check(watch, server, client)?;
        serving.wait(LIMIT)?;
        nodes.mapper.terminate(LIMIT)?;
    }
    Ok(())
}

fn calls_rate(lab: &Lab, side: Side) -> Result<f64> {
    const PROGRAM: &str = "
        Call = fun() -> b@localhost = rpc:call(b@localhost, erlang, node, []) end,
        [Call() || _ <- lists:seq(1, 1000)],
        {Time, _} = timer:tc(fun() -> [Call() || _ <- lists:seq(1, 20000)] end),
        io:format(\"~.1f~n\", [20000 * 1.0e6 / Time]),
        rpc:cast(b@localhost, erlang, halt, [0]), timer:sleep(100), halt().";
    let nodes = Nodes::new(lab, side)?;
    let serving = nodes.serve(lab, side)?;
    let said = nodes.start(lab, side, "a@localhost", PROGRAM, free_port()?)?.wait(LIMIT)?.text();
    serving.wait(LIMIT)?;
    nodes.mapper.terminate(LIMIT)?;
    rates::number(&said)
}
