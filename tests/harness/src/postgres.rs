//! A PostgreSQL server of a test's own.

use crate::lab::{Lab, Side};
use crate::process::Proc;
use crate::user::User;
use crate::{Result, fail, retry};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// The folder of initdb and postgres of the newest version.
fn programs() -> Result<PathBuf> {
    let entries = std::fs::read_dir("/usr/lib/postgresql")?;
    let newest = entries.filter_map(|entry| Some(entry.ok()?.path().join("bin"))).max();
    newest.ok_or_else(|| "no version below /usr/lib/postgresql".into())
}

/// Makes a cluster, whose name is new; its folder. Everybody may connect to it as `postgres`.
pub fn cluster(lab: &Lab, name: &str) -> Result<String> {
    let user = User::named("postgres")?;
    let data = user.directory(lab, &format!("postgres-{name}"))?;
    let initdb = programs()?.join("initdb").display().to_string();
    let args = ["-D", &data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync"];
    let mut command = user.command(lab, Side::Kernel, &initdb, &args)?;
    Proc::start(&mut command, "initdb", lab.path())?.wait(LIMIT)?.ok()?;
    // Only for networks that the test has made.
    let conf = format!("{data}/pg_hba.conf");
    let text = std::fs::read_to_string(&conf)?;
    std::fs::write(&conf, text + "host all all 10.0.0.0/8 trust\n")?;
    Ok(data)
}

/// A command that serves a cluster.
pub fn server(lab: &Lab, side: Side, (address, port): (&str, u16), data: &str) -> Result<Command> {
    let program = programs()?.join("postgres").display().to_string();
    let (listen, port) = (format!("listen_addresses={address}"), port.to_string());
    let mut args = vec!["-D", data, "-p", &port];
    let settings =
        [&listen, "fsync=off", "unix_socket_directories=", "max_connections=60", "restart_after_crash=on"];
    settings.iter().for_each(|setting| args.extend(["-c", setting]));
    User::named("postgres")?.command(lab, side, &program, &args)
}

/// It listens before it lets anybody in, and says so each time that it has begun.
pub fn wait_ready(server: &Proc, times: usize) -> Result<()> {
    const READY: &str = "database system is ready to accept connections";
    retry(LIMIT, || {
        if server.stderr_so_far().matches(READY).count() < times {
            fail!("the server lets nobody in: {}", server.last_words());
        }
        Ok(())
    })
}
