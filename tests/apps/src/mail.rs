//! Dovecot as Debian configures it: login processes in a root directory of their own, as a user of their own, that may start
//! no process (RLIMIT_NPROC), and pass the connection on to a process of the user who has logged in. Postfix, whose master listens
//! as root, and whose servers inherit the listener, change their root directory and become a user of their own.

use super::table::Row;
use super::{Scenario, python};
use harness::lab::{Lab, Side, each};
use harness::process::{Proc, free_port};
use harness::{Result, fail};
use std::os::unix::fs::chown;
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("mail-dovecot", DOVECOT, |lab| imap(lab, STAYS, 24)).limit_s(120),
    Scenario::new("mail-dovecot-process-for-each", DOVECOT, |lab| imap(lab, "", 24)).limit_s(120).extra(),
    Scenario::new("mail-postfix", &["postfix", "python3"], smtp).limit_s(180).extra(),
];

pub(crate) const ROWS: &[Row] = &[
    Row {
        application: "Dovecot",
        version: &["dovecot", "--version"],
        scenarios: "mail-dovecot",
        features: "login processes that may not fork pass each connection on, with its inode told; chroot, three users",
        load: None,
    },
    Row {
        application: "Postfix",
        version: &["dpkg-query", "-W", "-f", "${Version}", "postfix"],
        scenarios: "mail-postfix",
        features: "servers that inherit root's listener by exec, change their root and their user; kept and short sessions",
        load: None,
    },
];

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

/// `master.cf`: what a server that delivers here needs. `$port` is where it listens.
const SERVICES: &str = "127.0.0.1:$port inet n - y - - smtpd\n\
     pickup unix n - y 60 1 pickup\n\
     cleanup unix n - y - 0 cleanup\n\
     qmgr unix n - n 300 1 qmgr\n\
     rewrite unix - - y - - trivial-rewrite\n\
     bounce unix - - y - 0 bounce\n\
     defer unix - - y - 0 bounce\n\
     trace unix - - y - 0 bounce\n\
     proxymap unix - - n - - proxymap\n\
     error unix - - y - - error\n\
     retry unix - - y - - error\n\
     local unix - n n - - local\n\
     anvil unix - - y - 1 anvil\n\
     postlog unix-dgram n - n - 1 postlogd\n";

fn serve_smtp(lab: &Lab, side: Side) -> Result<(Proc, u16)> {
    let port = free_port()?;
    let root = lab.path().join(format!("postfix-{port}"));
    for name in ["", "etc", "spool", "data", "mail"] {
        std::fs::create_dir(root.join(name))?;
    }
    let Some(user) = nix::unistd::User::from_name("postfix")? else { fail!("there is no user postfix") };
    chown(root.join("data"), Some(user.uid.as_raw()), Some(user.gid.as_raw()))?;
    let etc = root.join("etc").display().to_string();
    let root = root.display();
    let text = format!(
        "compatibility_level = 3.6\nqueue_directory = {root}/spool\ndata_directory = {root}/data\n\
         command_directory = /usr/sbin\ndaemon_directory = /usr/lib/postfix/sbin\n\
         maillog_file = {root}/log\nmaillog_file_prefixes = {root}\nmyhostname = localhost\n\
         mydestination = localhost\ninet_interfaces = 127.0.0.1\ninet_protocols = ipv4\nlocal_transport = local\n\
         alias_maps =\nlocal_recipient_maps =\nmail_spool_directory = {root}/mail/\nmulti_instance_enable = yes\n\
         mynetworks = 127.0.0.0/8\nsmtpd_recipient_restrictions = permit_mynetworks, reject\nbiff = no\n\
         import_environment = MAIL_CONFIG LANG=C LD_PRELOAD SD_MONITOR\n"
    );
    std::fs::write(format!("{etc}/main.cf"), text)?;
    std::fs::write(format!("{etc}/master.cf"), SERVICES.replace("$port", &port.to_string()))?;
    // Makes the queue's directories.
    lab.run(Side::Kernel, "postfix", &["-c", &etc, "check"], LIMIT)?;
    let master = format!("exec /usr/lib/postfix/sbin/master -c {etc} -d");
    let server = lab.serve(side, port, "sh", &["-c", &master])?;
    Ok((server, port))
}

/// Mails by several sessions at a time, each of which is delivered whole.
fn smtp(lab: &mut Lab) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let client_py = python::script(lab, "smtp_client.py")?;
    each(|server, client| {
        let (process, port) = serve_smtp(lab, server)?;
        let watch = lab.watch(port);
        let root = lab.path().join(format!("postfix-{port}"));
        std::fs::create_dir_all(root.join("mail").join("root").join("new"))?;
        let folder = root.join("mail").join("root").join("new").display().to_string();
        let output = lab.run(client, "python3", &[&client_py, &port.to_string(), "40", &folder], LIMIT)?;
        let said = String::from_utf8_lossy(&output.stdout);
        if said.trim() != "done 40" {
            let log = std::fs::read_to_string(root.join("log")).unwrap_or_default();
            fail!("the client said {said:?}; the log: {log}");
        }
        // A session for which a server has to be started first goes over the kernel: master and servers are two users.
        let seen = watch.map(|watch| watch.finish()).transpose()?.unwrap_or_default();
        let is_fast = seen.iter().any(|connection| connection.path == "shm");
        if !lab.is_oracle() && is_fast != ((server, client) == (Side::Sd, Side::Sd)) {
            fail!("connections over shared memory: {is_fast}");
        }
        process.terminate(LIMIT)?;
        Ok(())
    })
}
