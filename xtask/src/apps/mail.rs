//! Dovecot as Debian configures it: login processes in a root directory of their own, as a user of their own, that may start
//! no process (RLIMIT_NPROC), and pass the connection on to a process of the user who has logged in.

use super::table::Row;
use super::{Scenario, python};
use crate::lab::{Lab, Side, each};
use crate::process::{Proc, free_port};
use crate::{Result, fail};
use std::os::unix::fs::chown;
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("mail-dovecot", DOVECOT, |lab| imap(lab, STAYS, 24)).limit_s(120),
    Scenario::new("mail-dovecot-process-for-each", DOVECOT, |lab| imap(lab, "", 24)).limit_s(120).extra(),
];

pub(crate) const ROWS: &[Row] = &[Row {
    application: "Dovecot",
    version: &["dovecot", "--version"],
    scenarios: "mail-dovecot",
    features: "login processes that may not fork pass each connection on, with its inode told; chroot, three users",
    load: None,
}];

const DOVECOT: &[&str] = &["dovecot", "python3"];
const LIMIT: Duration = Duration::from_secs(60);
/// Login processes that serve one connection after the other, as Dovecot's manual proposes for busy servers.
const STAYS: &str = "service_count = 0\n  process_min_avail = 2";
/// Whoever has logged in; nobody's number.
const MAIL_USER: u32 = 54_242;

fn serve(lab: &Lab, side: Side, login: &str) -> Result<(Proc, u16)> {
    let port = free_port()?;
    let root = lab.path().join(format!("dovecot-{port}"));
    std::fs::create_dir(&root)?;
    for name in ["run", "state", "mail", "own"] {
        std::fs::create_dir(root.join(name))?;
    }
    for name in ["mail", "own"] {
        chown(root.join(name), Some(MAIL_USER), Some(MAIL_USER))?;
    }
    let root = root.display();
    let text = format!(
        "protocols = imap\nlisten = 127.0.0.1\nbase_dir = {root}/run\nstate_dir = {root}/state\n\
         log_path = {root}/log\nssl = no\ndisable_plaintext_auth = no\nmail_location = maildir:{root}/mail/%u\n\
         namespace inbox {{\n  inbox = yes\n}}\n\
         passdb {{\n  driver = static\n  args = password=secret\n}}\n\
         userdb {{\n  driver = static\n  args = uid={MAIL_USER} gid={MAIL_USER} home={root}/own/%u\n}}\n\
         service imap-login {{\n  {login}\n  inet_listener imap {{\n    port = {port}\n  }}\n  \
         inet_listener imaps {{\n    port = 0\n  }}\n}}\n"
    );
    let configuration = lab.path().join(format!("dovecot-{port}.conf"));
    std::fs::write(&configuration, text)?;
    let server = lab.serve(side, port, "dovecot", &["-F", "-c", &configuration.display().to_string()])?;
    Ok((server, port))
}

/// Sessions that log in, store and read mail; some stay open while others come.
fn imap(lab: &mut Lab, login: &str, logins: u32) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        // Its processes become other users.
        return Ok(());
    }
    let client_py = python::script(lab, "imap_client.py")?;
    each(|server, client| {
        let (process, port) = serve(lab, server, login)?;
        let watch = lab.watch(port);
        let (port_text, logins) = (port.to_string(), logins.to_string());
        let output = lab.run(client, "python3", &[&client_py, &port_text, &logins], LIMIT)?;
        let said = String::from_utf8_lossy(&output.stdout);
        if said.trim() != format!("done {logins}") {
            let log = std::fs::read_to_string(lab.path().join(format!("dovecot-{port}/log")));
            fail!("the client said {said:?}; the log: {}", log.unwrap_or_default());
        }
        let seen = watch.map(|watch| watch.finish()).transpose()?.unwrap_or_default();
        let is_passed_on = login == STAYS && (server, client) == (Side::Sd, Side::Sd);
        if is_passed_on && !lab.is_oracle() && !seen.iter().any(|connection| connection.path == "bridged") {
            fail!("no connection came over shared memory and was passed on");
        }
        process.terminate(LIMIT)?;
        Ok(())
    })
}
