//! PostgreSQL: a process for each connection, over TCP; and PgBouncer in front of it.

use super::table::{Load, Row};
use super::{Scenario, files, rates};
use harness::lab::{Lab, Side};
use harness::process::{Output, Proc, free_port};
use harness::scratch::send;
use harness::user::User;
use harness::{Result, fail, postgres, procfs};
use nix::sys::signal::Signal;
use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("postgres-pgbench", PROGRAMS, pgbench).limit_s(150).extra(),
    Scenario::new("postgres-copy-notify-cancel", PROGRAMS, session).limit_s(150).extra(),
    Scenario::new("postgres-crash-and-restart", PROGRAMS, crash).limit_s(150).extra(),
    Scenario::new("postgres-pgbouncer", &["pgbouncer", "pgbench", "psql", "setpriv"], bouncer)
        .limit_s(150)
        .extra(),
];

pub(crate) const ROWS: &[Row] = &[
    Row {
        application: "PostgreSQL",
        version: &["psql", "--version"],
        scenarios: "postgres-",
        features: "fork for each connection, COPY, LISTEN, cancel requests, crash of a backend, restart, PgBouncer, drop of privileges",
        load: Some(Load { unit: "transactions/s, pgbench -S, prepared, 8 connections", rate }),
    },
    Row {
        application: "PostgreSQL, a program for each query",
        version: &["psql", "--version"],
        scenarios: "postgres-",
        features: "a client that lives for milliseconds, and a process of the server's for each",
        load: Some(Load {
            unit: "programs/s, psql -c 'select 1' in dash, one after the other",
            rate: psql_rate,
        }),
    },
];

const PROGRAMS: &[&str] = &["pgbench", "psql", "setpriv", "/usr/lib/postgresql"];
const LIMIT: Duration = Duration::from_secs(60);

struct Postgres {
    server: Proc,
    port: u16,
    data: String,
}

impl Postgres {
    /// A cluster of its own, and its server.
    fn start(lab: &Lab, side: Side) -> Result<Postgres> {
        let port = free_port()?;
        let data = postgres::cluster(lab, &port.to_string())?;
        Postgres::restart(lab, side, port, data)
    }

    fn restart(lab: &Lab, side: Side, port: u16, data: String) -> Result<Postgres> {
        let mut command = postgres::server(lab, side, ("127.0.0.1", port), &data)?;
        let mut server = Proc::start(&mut command, "postgres", lab.path())?;
        server.wait_listening(port)?;
        let postgres = Postgres { server, port, data };
        postgres.wait_ready(1)?;
        Ok(postgres)
    }

    /// It listens before it lets anybody in.
    fn wait_ready(&self, times: usize) -> Result<()> {
        postgres::wait_ready(&self.server, times)
    }

    fn psql_args<'a>(&self, port: &'a str, extra: &[&'a str]) -> Vec<&'a str> {
        let mut args = vec!["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1"];
        args.extend(["-h", "127.0.0.1", "-p", port, "-U", "postgres", "-d", "postgres"]);
        args.extend(extra);
        args
    }

    fn start_psql(&self, lab: &Lab, side: Side, extra: &[&str]) -> Result<Proc> {
        let port = self.port.to_string();
        let mut command = lab.command(side, "psql", &self.psql_args(&port, extra))?;
        Proc::start(command.stdin(Stdio::piped()), "psql", lab.path())
    }

    fn query(&self, lab: &Lab, side: Side, text: &str) -> Result<String> {
        let port = self.port.to_string();
        let output = lab.run(side, "psql", &self.psql_args(&port, &["-c", text]), LIMIT)?;
        Ok(output.text().trim_end().to_owned())
    }

    fn expect(&self, lab: &Lab, side: Side, text: &str, wanted: &str) -> Result<()> {
        let got = self.query(lab, side, text)?;
        if got != wanted {
            fail!("{text:?}: got {got:?}, wanted {wanted:?}");
        }
        Ok(())
    }

    /// `fast` shutdown: clients are sent away.
    fn stop(self) -> Result<()> {
        self.server.signal(Signal::SIGINT);
        self.server.wait(LIMIT)?.ok()?;
        Ok(())
    }
}

fn run_pgbench(lab: &Lab, side: Side, port: u16, extra: &[&str]) -> Result<String> {
    let port = port.to_string();
    let mut args = vec!["-h", "127.0.0.1", "-p", &port, "-U", "postgres"];
    args.extend(extra);
    args.push("postgres");
    let Output { status, stderr, stdout, .. } = lab.start(side, "pgbench", &args)?.wait(LIMIT)?;
    let text = String::from_utf8_lossy(&stdout).into_owned();
    if !status.success() || stderr.contains("aborted") || stderr.contains("ERROR") {
        fail!("pgbench {extra:?} ended with {status}: {text:?} {stderr:?}");
    }
    Ok(text)
}

fn rate(lab: &Lab, side: Side) -> Result<f64> {
    let postgres = Postgres::start(lab, side)?;
    run_pgbench(lab, side, postgres.port, &["-i", "-s", "1", "-q"])?;
    let text = run_pgbench(lab, side, postgres.port, &["-c", "8", "-T", "3", "-n", "-S", "-M", "prepared"])?;
    postgres.stop()?;
    let rate = text.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
    rate.ok_or_else(|| format!("pgbench printed {text:?}").into())
}

fn psql_rate(lab: &Lab, side: Side) -> Result<f64> {
    const TIMES: u32 = 20;
    let postgres = Postgres::start(lab, side)?;
    let script = format!(
        "i=0; while [ $i -lt {TIMES} ]; do psql -XqAt -h 127.0.0.1 -p {} -U postgres -c 'select 1' postgres || exit 1; i=$((i+1)); done",
        postgres.port
    );
    let per_second = rates::per_second(|| lab.run(side, "dash", &["-c", &script], LIMIT).map(drop))?;
    postgres.stop()?;
    Ok(per_second * f64::from(TIMES))
}

/// Balances agree with the history after it, so no transaction was lost, doubled or torn.
const BALANCED: &str = "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM \
    pgbench_history) AND (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT sum(delta) FROM pgbench_history)";

/// Transactions of eight clients, a new connection for each transaction, prepared and pipelined protocols.
fn pgbench(lab: &mut Lab) -> Result<()> {
    for (server, client) in [(Side::Sd, Side::Sd), (Side::Sd, Side::Kernel), (Side::Kernel, Side::Sd)] {
        let postgres = Postgres::start(lab, server)?;
        let watch = lab.watch(postgres.port);
        run_pgbench(lab, client, postgres.port, &["-i", "-s", "2", "-q"])?;
        run_pgbench(lab, client, postgres.port, &["-c", "8", "-j", "2", "-t", "150", "-n"])?;
        run_pgbench(
            lab,
            client,
            postgres.port,
            &["-c", "8", "-j", "2", "-t", "400", "-n", "-S", "-M", "prepared"],
        )?;
        run_pgbench(lab, client, postgres.port, &["-c", "4", "-t", "25", "-n", "-C"])?;
        lab.check(watch, server, client)?;
        postgres.expect(lab, client, "SELECT count(*) FROM pgbench_history", "1300")?;
        postgres.expect(lab, client, BALANCED, "t")?;
        postgres.stop()?;
    }
    Ok(())
}

fn session(lab: &mut Lab) -> Result<()> {
    for (server, client) in [(Side::Sd, Side::Sd), (Side::Sd, Side::Kernel), (Side::Kernel, Side::Sd)] {
        let postgres = Postgres::start(lab, server)?;
        let watch = lab.watch(postgres.port);
        copy(lab, client, &postgres)?;
        notify(lab, client, &postgres)?;
        cancel(lab, client, &postgres)?;
        lab.check(watch, server, client)?;
        postgres.stop()?;
    }
    Ok(())
}

/// Twenty megabytes in through COPY FROM STDIN and out again through COPY TO STDOUT.
fn copy(lab: &Lab, client: Side, postgres: &Postgres) -> Result<()> {
    let path = lab.path().join("rows");
    let mut rows = Vec::new();
    for (index, chunk) in files::bytes(8_000_000).chunks(1000).enumerate() {
        write!(rows, "{index}\t")?;
        chunk.iter().for_each(|byte| rows.extend_from_slice(format!("{byte:02x}").as_bytes()));
        rows.push(b'\n');
    }
    std::fs::write(&path, &rows)?;
    postgres.query(lab, client, "CREATE TABLE big (number int, hex text)")?;
    let port = postgres.port.to_string();
    let args = postgres.psql_args(&port, &["-c", "COPY big FROM STDIN"]);
    lab.run_with_input(client, &path, "psql", &args, LIMIT)?;
    let args = postgres.psql_args(&port, &["-c", "COPY big TO STDOUT"]);
    let got = lab.run(client, "psql", &args, LIMIT)?.stdout;
    files::require_same("COPY out and in", &got, &rows)
}

/// A session that listens hears another one, also while it waits in a query.
fn notify(lab: &Lab, client: Side, postgres: &Postgres) -> Result<()> {
    let mut listener = postgres.start_psql(lab, client, &[])?;
    let mut input = listener.stdin()?;
    writeln!(input, "LISTEN news;\nSELECT 'listening';")?;
    listener.wait_for_text("listening", LIMIT)?;
    writeln!(input, "SELECT pg_sleep(0.5);\nSELECT 'slept';")?;
    postgres.query(lab, client, "NOTIFY news, 'hello'")?;
    listener.wait_for_text("slept", LIMIT)?;
    listener.wait_for_text("Asynchronous notification \"news\" with payload \"hello\"", LIMIT)?;
    drop(input);
    listener.wait(LIMIT)?.ok()?;
    Ok(())
}

/// Ctrl-C in psql opens a second connection from a signal handler, which cancels the query of the first.
fn cancel(lab: &Lab, client: Side, postgres: &Postgres) -> Result<()> {
    let mut sleeper = postgres.start_psql(lab, client, &[])?;
    let mut input = sleeper.stdin()?;
    writeln!(input, "SELECT 'begin';\nSELECT pg_sleep(100);")?;
    sleeper.wait_for_text("begin", LIMIT)?;
    let sleeping =
        "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(100);' AND state = 'active'";
    let end = Instant::now() + LIMIT;
    while postgres.query(lab, client, sleeping)? != "1" {
        if Instant::now() > end {
            fail!("the query does not begin");
        }
    }
    sleeper.signal(Signal::SIGINT);
    let output = sleeper.wait(Duration::from_secs(20))?;
    if !output.stderr.contains("canceling statement due to user request") {
        fail!("no query was cancelled: {} {:?}", output.status, output.stderr);
    }
    Ok(())
}

/// Under load a backend is killed, which makes the server end all and begin anew; then an orderly restart.
fn crash(lab: &mut Lab) -> Result<()> {
    let postgres = Postgres::start(lab, Side::Sd)?;
    run_pgbench(lab, Side::Sd, postgres.port, &["-i", "-s", "1", "-q"])?;
    let port = postgres.port.to_string();
    let args = ["-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-c", "6", "-T", "20", "-n", "postgres"];
    let load = lab.start(Side::Sd, "pgbench", &args)?;
    let mut idle = postgres.start_psql(lab, Side::Sd, &["-v", "ON_ERROR_STOP=0"])?;
    let mut input = idle.stdin()?;
    writeln!(input, "SELECT 'pid ' || pg_backend_pid();")?;
    idle.wait_for_text("pid ", LIMIT)?;
    std::thread::sleep(Duration::from_millis(500));
    let text = idle.stdout_so_far();
    let Some(Ok(pid)) = text.trim().strip_prefix("pid ").map(str::parse::<u32>) else {
        fail!("no pid in {text:?}")
    };
    send(pid, Signal::SIGKILL);
    let output = load.wait(LIMIT)?;
    if output.status.success() || !output.stderr.contains("terminating connection because of crash") {
        fail!("pgbench did not notice the crash: {} {:?}", output.status, output.stderr);
    }
    postgres.wait_ready(2)?;
    postgres.expect(lab, Side::Sd, BALANCED, "t")?;
    drop(input);
    idle.wait(LIMIT)?;
    let Postgres { server, port, data } = postgres;
    let backends = procfs::descendants(server.pid());
    server.signal(Signal::SIGINT);
    server.wait(LIMIT)?.ok()?;
    if let Some(left) = backends.iter().find(|p| procfs::is_alive(p.pid)) {
        fail!("{} ({}) outlived the server", left.comm, left.pid);
    }
    let postgres = Postgres::restart(lab, Side::Sd, port, data)?;
    postgres.expect(lab, Side::Sd, BALANCED, "t")?;
    let watch = lab.watch(port);
    run_pgbench(lab, Side::Sd, port, &["-c", "4", "-t", "50", "-n"])?;
    lab.check(watch, Side::Sd, Side::Sd)?;
    postgres.stop()
}

/// Twenty clients share four connections of a pool; the pool is reloaded and drained meanwhile.
fn bouncer(lab: &mut Lab) -> Result<()> {
    let postgres = Postgres::start(lab, Side::Sd)?;
    run_pgbench(lab, Side::Sd, postgres.port, &["-i", "-s", "1", "-q"])?;
    let user = User::named("postgres")?;
    let port = free_port()?;
    let folder = user.directory(lab, "bouncer")?;
    let configuration = format!(
        "[databases]\npostgres = host=127.0.0.1 port={} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
         listen_port = {port}\nunix_socket_dir =\nauth_type = any\nadmin_users = postgres\npool_mode = transaction\n\
         default_pool_size = 4\nmax_client_conn = 100\n",
        postgres.port
    );
    let path = format!("{folder}/pgbouncer.ini");
    std::fs::write(&path, configuration)?;
    let pool = user.serve(lab, Side::Sd, port, "pgbouncer", &[&path])?;
    let watches = [lab.watch(port), lab.watch(postgres.port)];
    let text = port.to_string();
    let args = [
        "-h",
        "127.0.0.1",
        "-p",
        &text,
        "-U",
        "postgres",
        "-c",
        "20",
        "-j",
        "2",
        "-t",
        "100",
        "-n",
        "postgres",
    ];
    let load = lab.start(Side::Sd, "pgbench", &args)?;
    std::thread::sleep(Duration::from_millis(300));
    pool.signal(Signal::SIGHUP);
    let output = load.wait(LIMIT)?.ok()?;
    if output.stderr.contains("aborted") {
        fail!("pgbench through the pool: {:?}", output.stderr);
    }
    run_pgbench(lab, Side::Sd, port, &["-c", "10", "-t", "20", "-n", "-C", "-S"])?;
    for watch in watches {
        lab.check(watch, Side::Sd, Side::Sd)?;
    }
    postgres.expect(lab, Side::Sd, "SELECT count(*) FROM pgbench_history", "2000")?;
    postgres.expect(lab, Side::Sd, BALANCED, "t")?;
    pool.signal(Signal::SIGINT);
    pool.wait(LIMIT)?.ok()?;
    postgres.stop()
}
