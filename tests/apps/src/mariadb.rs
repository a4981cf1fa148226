//! MariaDB: a thread for each connection, or a pool of threads with an epoll instance for each group.

use super::table::{Load, Row};
use super::{Scenario, files};
use harness::lab::{Lab, Side};
use harness::process::{Proc, free_port};
use harness::{Result, fail, nginx, retry};
use std::io::Write;
use std::time::{Duration, Instant};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("mariadb-threads", PROGRAMS, |lab| load(lab, "one-thread-per-connection"))
        .limit_s(150)
        .extra(),
    Scenario::new("mariadb-pool", PROGRAMS, |lab| load(lab, "pool-of-threads")).limit_s(150).extra(),
    Scenario::new("mariadb-data-kill-restart", PROGRAMS, session).limit_s(150).extra(),
];

pub(crate) const ROWS: &[Row] = &[Row {
    application: "MariaDB",
    version: &["mariadbd", "--version"],
    scenarios: "mariadb-",
    features: "thread for each connection, pool of threads, LOAD DATA LOCAL, KILL, crash, restart",
    load: Some(Load { unit: "queries/s, mysqlslap, 8 connections", rate }),
}];

const PROGRAMS: &[&str] = &["mariadbd", "mariadb-install-db", "mariadb", "mysqlslap"];
const LIMIT: Duration = Duration::from_secs(60);

struct MariaDb {
    server: Proc,
    port: u16,
}

impl MariaDb {
    fn install(lab: &Lab, name: &str) -> Result<String> {
        let folder = lab.path().join(name).display().to_string();
        let (data, user) = (format!("--datadir={folder}"), format!("--user={}", nginx::own_user()));
        let args =
            ["--no-defaults", &data, &user, "--auth-root-authentication-method=normal", "--skip-test-db"];
        lab.run(Side::Kernel, "mariadb-install-db", &args, LIMIT)?;
        Ok(folder)
    }

    fn start(lab: &Lab, side: Side, folder: &str, handling: &str) -> Result<MariaDb> {
        let port = free_port()?;
        let options = [
            format!("--datadir={folder}"),
            format!("--user={}", nginx::own_user()),
            format!("--port={port}"),
            format!("--socket={folder}/socket"),
            format!("--thread-handling={handling}"),
        ];
        let mut args = vec!["--no-defaults", "--bind-address=127.0.0.1", "--local-infile=1"];
        args.extend(["--max-allowed-packet=64M", "--innodb-flush-log-at-trx-commit=2"]);
        args.extend(options.iter().map(String::as_str));
        Ok(MariaDb { server: lab.serve(side, port, "mariadbd", &args)?, port })
    }

    fn start_client(&self, lab: &Lab, side: Side, statement: &str) -> Result<Proc> {
        let port = self.port.to_string();
        let args = [
            "--no-defaults",
            "-h",
            "127.0.0.1",
            "-P",
            &port,
            "--protocol=tcp",
            "-u",
            "root",
            "-N",
            "-B",
            "--local-infile=1",
            "--max-allowed-packet=64M",
            "-e",
            statement,
        ];
        lab.start(side, "mariadb", &args)
    }

    fn query(&self, lab: &Lab, side: Side, statement: &str) -> Result<String> {
        Ok(self.start_client(lab, side, statement)?.wait(LIMIT)?.ok()?.text().trim_end().to_owned())
    }

    fn expect(&self, lab: &Lab, side: Side, statement: &str, wanted: &str) -> Result<()> {
        let got = self.query(lab, side, statement)?;
        if got != wanted {
            fail!("{statement:?}: got {got:?}, wanted {wanted:?}");
        }
        Ok(())
    }

    fn slap(&self, lab: &Lab, side: Side, queries: u32) -> Result<f64> {
        let (port, queries_text) = (format!("-P{}", self.port), format!("--number-of-queries={queries}"));
        let args = [
            "--no-defaults",
            "-h127.0.0.1",
            &port,
            "--protocol=tcp",
            "-uroot",
            "--concurrency=8",
            "--auto-generate-sql",
            "--auto-generate-sql-load-type=mixed",
            "--auto-generate-sql-secondary-indexes=1",
            &queries_text,
        ];
        let start = Instant::now();
        let output = lab.start(side, "mysqlslap", &args)?.wait(LIMIT)?.ok()?;
        if !output.stderr.is_empty() || !output.text().contains("Average number of seconds") {
            fail!("mysqlslap: {:?} {:?}", output.text(), output.stderr);
        }
        Ok(f64::from(queries) / start.elapsed().as_secs_f64())
    }

    fn stop(self) -> Result<()> {
        self.server.terminate(LIMIT)?.ok()?;
        Ok(())
    }
}

fn rate(lab: &Lab, side: Side) -> Result<f64> {
    let folder = MariaDb::install(lab, "data")?;
    let server = MariaDb::start(lab, side, &folder, "one-thread-per-connection")?;
    let rate = server.slap(lab, side, 20_000)?;
    server.stop()?;
    Ok(rate)
}

fn load(lab: &mut Lab, handling: &str) -> Result<()> {
    let folder = MariaDb::install(lab, "data")?;
    for (server, client) in [(Side::Sd, Side::Sd), (Side::Sd, Side::Kernel), (Side::Kernel, Side::Sd)] {
        let database = MariaDb::start(lab, server, &folder, handling)?;
        let watch = lab.watch(database.port);
        database.slap(lab, client, 2000)?;
        database.expect(lab, client, "SELECT 6 * 7", "42")?;
        lab.check(watch, server, client)?;
        database.stop()?;
    }
    Ok(())
}

/// A large table in, a large value and the table out; a killed query; a killed and an orderly ended server.
fn session(lab: &mut Lab) -> Result<()> {
    let path = lab.path().join("rows");
    let mut rows = Vec::new();
    for (index, chunk) in files::bytes(4_000_000).chunks(500).enumerate() {
        write!(rows, "{index}\t")?;
        chunk.iter().for_each(|byte| rows.extend_from_slice(format!("{byte:02x}").as_bytes()));
        rows.push(b'\n');
    }
    std::fs::write(&path, &rows)?;
    let folder = MariaDb::install(lab, "data")?;
    let mut database = MariaDb::start(lab, Side::Sd, &folder, "one-thread-per-connection")?;
    let watch = lab.watch(database.port);
    database.query(
        lab,
        Side::Sd,
        "CREATE DATABASE d; CREATE TABLE d.t (number int PRIMARY KEY, hex text)",
    )?;
    database.query(lab, Side::Sd, &format!("LOAD DATA LOCAL INFILE '{}' INTO TABLE d.t", path.display()))?;
    database.expect(lab, Side::Sd, "SELECT length(repeat('x', 20000000))", "20000000")?;
    let large = database.query(lab, Side::Sd, "SELECT repeat('xyz', 5000000)")?;
    files::require_same("a large value", large.as_bytes(), "xyz".repeat(5_000_000).as_bytes())?;
    kill_query(lab, &database)?;
    lab.check(watch, Side::Sd, Side::Sd)?;
    let select = "SELECT * FROM d.t ORDER BY number";
    for is_killed in [true, false] {
        if is_killed {
            database.server.kill();
        } else {
            database.query(lab, Side::Sd, "SHUTDOWN")?;
            database.server.wait(LIMIT)?.ok()?;
        }
        database = MariaDb::start(lab, Side::Sd, &folder, "one-thread-per-connection")?;
        for side in [Side::Sd, Side::Kernel] {
            let got = database.start_client(lab, side, select)?.wait(LIMIT)?.ok()?.stdout;
            files::require_same("the table after a restart", &got, &rows)?;
        }
    }
    database.stop()
}

/// KILL from another connection ends a statement, and one that waits ends when its client is killed.
fn kill_query(lab: &Lab, database: &MariaDb) -> Result<()> {
    let sleepers =
        "SELECT group_concat(id) FROM information_schema.processlist WHERE info LIKE 'SELECT sleep(%'";
    let wait_for = |is_right: &dyn Fn(&str) -> bool| -> Result<String> {
        retry(LIMIT, || {
            let id = database.query(lab, Side::Sd, sleepers)?;
            if !is_right(&id) {
                fail!("sleeping statements: {id:?}");
            }
            Ok(id)
        })
    };
    let waiting = database.start_client(lab, Side::Sd, "SELECT sleep(100)")?;
    let id = wait_for(&|id| id.parse::<u32>().is_ok())?;
    database.query(lab, Side::Sd, &format!("KILL {id}"))?;
    let output = waiting.wait(LIMIT)?;
    if output.status.success() || !output.stderr.contains("ERROR") {
        fail!("a killed client's statement went well: {:?} {:?}", output.text(), output.stderr);
    }
    let waiting = database.start_client(lab, Side::Sd, "SELECT sleep(100)")?;
    wait_for(&|id| id.parse::<u32>().is_ok())?;
    waiting.kill();
    wait_for(&|id| id == "NULL")?;
    Ok(())
}
