//! FTP: a server that forks twice for each connection, with data connections in either direction.

use super::table::{Load, Row};
use super::transfer::{SIDES, same_trees, tree};
use super::{Scenario, files, rates};
use harness::Result;
use harness::lab::{Lab, Side};
use harness::process::{Proc, free_port};
use harness::user::User;
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("ftp-vsftpd", &["vsftpd", "curl"], |lab| ftp(lab, false)).limit_s(120).extra(),
    Scenario::new("ftp-lftp-mirror", &["vsftpd", "lftp"], |lab| mirror(lab, false)).limit_s(120).extra(),
    Scenario::new("ftp-vsftpd-confined", &["vsftpd", "curl"], |lab| ftp(lab, true)).limit_s(120).extra(),
];

pub(crate) const ROWS: &[Row] = &[Row {
    application: "vsftpd",
    version: &["dpkg-query", "-W", "-f", "${Version}", "vsftpd"],
    scenarios: "ftp-",
    features: "fork for each connection, chroot, active and passive data connections, lftp",
    load: Some(Load { unit: "MB/s, curl, 20 MB a session, one after the other", rate }),
}];

const LIMIT: Duration = Duration::from_secs(60);

/// An anonymous server whose sessions see only their directory, and may write in `upload`. As it comes it also makes
/// its children by clone(2), in namespaces of their own, and filters their system calls.
fn serve_ftp(lab: &Lab, side: Side, is_confined: bool) -> Result<(Proc, u16)> {
    let port = free_port()?;
    let (root, empty) = (lab.path().join(format!("ftp-{port}")), lab.path().join("empty"));
    std::fs::create_dir(&root)?;
    std::fs::create_dir_all(&empty)?;
    std::fs::write(root.join("file"), files::bytes(20_000_003))?;
    let user = User::named("ftp")?;
    std::fs::create_dir(root.join("upload"))?;
    user.own(&root.join("upload"))?;
    let confinement = if is_confined { "" } else { "isolate=NO\nisolate_network=NO\nseccomp_sandbox=NO\n" };
    let text = format!(
        "{confinement}listen=YES\nbackground=NO\nlisten_address=127.0.0.1\nlisten_port={port}\nanonymous_enable=YES\n\
         local_enable=NO\nno_anon_password=YES\nftp_username=ftp\nanon_root={}\nsecure_chroot_dir={}\n\
         write_enable=YES\nanon_upload_enable=YES\nanon_mkdir_write_enable=YES\nanon_other_write_enable=YES\nanon_umask=022\n\
         anon_world_readable_only=NO\nport_enable=YES\npasv_enable=YES\nconnect_from_port_20=NO\nxferlog_enable=NO\n",
        root.display(),
        empty.display()
    );
    let configuration = lab.path().join(format!("vsftpd-{port}.conf"));
    std::fs::write(&configuration, text)?;
    let server = lab.serve(side, port, "vsftpd", &[&configuration.display().to_string()])?;
    Ok((server, port))
}

/// Down, up and down again, with the client connecting for the data, and with the server connecting.
fn ftp(lab: &mut Lab, is_confined: bool) -> Result<()> {
    let data = files::bytes(20_000_003);
    let sample = lab.path().join("sample");
    std::fs::write(&sample, &data)?;
    let sample = sample.display().to_string();
    for (server, client) in SIDES {
        let (process, port) = serve_ftp(lab, server, is_confined)?;
        let watch = lab.watch(port);
        for mode in [&["--disable-epsv"][..], &[], &["-P", "127.0.0.1", "--disable-eprt"], &["-P", "-"]] {
            let fetch = |what: &str| -> Result<()> {
                let url = format!("ftp://127.0.0.1:{port}/{what}");
                let mut args = vec!["-sS", "--fail", "--max-time", "40", &url];
                args.extend(mode);
                let got = lab.run(client, "curl", &args, LIMIT)?.stdout;
                files::require_same(&format!("{what} {mode:?}"), &got, &data)
            };
            fetch("file")?;
            let url = format!("ftp://127.0.0.1:{port}/upload/there");
            let mut args = vec!["-sS", "--fail", "--max-time", "40", "-T", &sample, &url];
            args.extend(mode);
            lab.run(client, "curl", &args, LIMIT)?;
            fetch("upload/there")?;
        }
        lab.check_executed(watch, server, client)?;
        process.terminate(LIMIT)?;
    }
    Ok(())
}

/// A tree of files over four connections at once.
fn mirror(lab: &mut Lab, is_confined: bool) -> Result<()> {
    let from = lab.path().join("from");
    tree(&from)?;
    for (server, client) in SIDES {
        let (process, port) = serve_ftp(lab, server, is_confined)?;
        let back = lab.path().join(format!("back-{port}"));
        let watch = lab.watch(port);
        let script = format!(
            "set net:max-retries 1; set cmd:fail-exit yes; open 127.0.0.1 -p {port}; \
             mirror -R -P 4 {} upload/tree; mirror -P 4 upload/tree {}; exit",
            from.display(),
            back.display()
        );
        lab.run(client, "lftp", &["-c", &script], LIMIT)?;
        same_trees(lab, &from, &back)?;
        lab.check_executed(watch, server, client)?;
        process.terminate(LIMIT)?;
    }
    Ok(())
}

fn rate(lab: &Lab, side: Side) -> Result<f64> {
    let (process, port) = serve_ftp(lab, side, false)?;
    let args = ["-sS", "--fail", "-o", "/dev/null", &format!("ftp://127.0.0.1:{port}/file")];
    let rate = rates::per_second(|| lab.run(side, "curl", &args, LIMIT).map(|_| ()))?;
    process.terminate(LIMIT)?;
    Ok(rate * 20.0)
}
