//! Servers of files that fork for each connection: rsync and git.

use super::table::Row;
use super::{Scenario, files};
use crate::lab::{Lab, Side};
use crate::process::free_port;
use crate::{Result, fail};
use std::path::Path;
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("rsync-daemon", &["rsync"], rsync).limit_s(120).extra(),
    Scenario::new("git-daemon", &["git"], git).limit_s(150).extra(),
];

pub(crate) const ROWS: &[Row] = &[
    Row {
        application: "rsync",
        version: &["rsync", "--version"],
        scenarios: "rsync-",
        features: "daemon that forks and changes its root; receiver and generator share a socket",
        load: None,
    },
    Row {
        application: "git",
        version: &["git", "--version"],
        scenarios: "git-",
        features: "daemon that executes a program for each connection: clone, fetch, push",
        load: None,
    },
];

const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const SIDES: [(Side, Side); 3] =
    [(Side::Sd, Side::Sd), (Side::Sd, Side::Kernel), (Side::Kernel, Side::Sd)];

pub(crate) fn tree(root: &Path) -> Result<()> {
    for folder in ["a", "a/b", "c"] {
        std::fs::create_dir_all(root.join(folder))?;
        for len in [0, 1, 1000, 70_000, 3_000_000] {
            std::fs::write(root.join(folder).join(format!("{len}.bin")), files::bytes(len + folder.len()))?;
        }
    }
    Ok(())
}

pub(crate) fn same_trees(lab: &Lab, one: &Path, two: &Path) -> Result<()> {
    let (one, two) = (one.display().to_string(), two.display().to_string());
    lab.run(Side::Kernel, "diff", &["-r", &one, &two], LIMIT)?;
    Ok(())
}

/// A tree up, a changed one as differences, down again; and what the module refuses.
fn rsync(lab: &mut Lab) -> Result<()> {
    for (server, client) in SIDES {
        let port = free_port()?;
        let [from, there, back] =
            ["from", "there", "back"].map(|name| lab.path().join(format!("{name}-{port}")));
        tree(&from)?;
        std::fs::create_dir(&there)?;
        let configuration = lab.path().join(format!("rsyncd-{port}.conf"));
        let root = nix::unistd::geteuid().is_root();
        let owner = if root { "uid = root\ngid = root\nuse chroot = yes\n" } else { "use chroot = no\n" };
        let text = format!(
            "{owner}[files]\npath = {}\nread only = no\n[locked]\npath = {}\nread only = yes\n",
            there.display(),
            there.display()
        );
        std::fs::write(&configuration, text)?;
        let (text, config) = (format!("--port={port}"), format!("--config={}", configuration.display()));
        let args = ["--daemon", "--no-detach", "--address=127.0.0.1", &text, &config];
        let process = lab.serve(server, port, "rsync", &args)?;
        let watch = lab.watch(port);
        let (source, target) = (format!("{}/", from.display()), format!("rsync://127.0.0.1:{port}/files/"));
        for round in 0..3 {
            lab.run(client, "rsync", &["-a", "--delete", "--checksum", &source, &target], LIMIT)?;
            same_trees(lab, &from, &there)?;
            let mut data = files::bytes(3_000_000);
            data[1_000_000 + round] ^= 1;
            std::fs::write(from.join("changed.bin"), data)?;
            std::fs::write(from.join(format!("new-{round}")), "new")?;
        }
        lab.run(client, "rsync", &["-a", "--checksum", &source, &target], LIMIT)?;
        lab.run(client, "rsync", &["-a", "-z", &target, &format!("{}/", back.display())], LIMIT)?;
        same_trees(lab, &from, &back)?;
        let locked = format!("rsync://127.0.0.1:{port}/locked/");
        let output = lab.start(client, "rsync", &["-a", &source, &locked])?.wait(LIMIT)?;
        if output.status.success() || !output.stderr.contains("read only") {
            fail!("rsync into a locked module ended with {}: {:?}", output.status, output.stderr);
        }
        lab.check(watch, server, client)?;
        process.terminate(LIMIT)?;
    }
    Ok(())
}

/// Clone, push, fetch; the daemon executes a program for each, whose standard input and output is the socket.
fn git(lab: &mut Lab) -> Result<()> {
    for (server, client) in SIDES {
        let port = free_port()?;
        let base = lab.path().join(format!("base-{port}"));
        std::fs::create_dir(&base)?;
        let in_folder = |side: Side, folder: &Path, args: &[&str]| -> Result<String> {
            let folder = folder.display().to_string();
            let mut all = vec![
                "-C",
                &folder,
                "-c",
                "user.name=x",
                "-c",
                "user.email=x@localhost",
                "-c",
                "protocol.version=2",
                "-c",
                "init.defaultBranch=main",
                "-c",
                "safe.directory=*",
            ];
            all.extend(args);
            Ok(lab.run(side, "git", &all, LIMIT)?.text())
        };
        in_folder(Side::Kernel, &base, &["init", "-q", "--bare", "store.git"])?;
        let (base_path, text) = (format!("--base-path={}", base.display()), format!("--port={port}"));
        let args = [
            "daemon",
            &base_path,
            &text,
            "--listen=127.0.0.1",
            "--export-all",
            "--enable=receive-pack",
            "--reuseaddr",
        ];
        let process = lab.serve(server, port, "git", &args)?;
        let watch = lab.watch(port);
        let url = format!("git://127.0.0.1:{port}/store.git");
        let [one, two] = ["one", "two"].map(|name| lab.path().join(format!("{name}-{port}")));
        in_folder(client, lab.path(), &["clone", "-q", &url, &one.display().to_string()])?;
        tree(&one.join("tree"))?;
        in_folder(Side::Kernel, &one, &["add", "-A"])?;
        in_folder(Side::Kernel, &one, &["commit", "-q", "-m", "tree"])?;
        in_folder(client, &one, &["push", "-q", "origin", "HEAD:main"])?;
        in_folder(client, lab.path(), &["clone", "-q", "-b", "main", &url, &two.display().to_string()])?;
        same_trees(lab, &one.join("tree"), &two.join("tree"))?;
        for round in 0..5 {
            std::fs::write(one.join("round"), format!("{round}"))?;
            in_folder(Side::Kernel, &one, &["add", "-A"])?;
            in_folder(Side::Kernel, &one, &["commit", "-q", "-m", "round"])?;
            in_folder(client, &one, &["push", "-q", "origin", "HEAD:main"])?;
            in_folder(client, &two, &["pull", "-q", "--ff-only", "origin", "main"])?;
            if std::fs::read_to_string(two.join("round"))? != round.to_string() {
                fail!("round {round} did not arrive");
            }
        }
        in_folder(Side::Kernel, &two, &["fsck", "--strict"])?;
        lab.check_executed(watch, server, client)?;
        process.terminate(LIMIT)?;
    }
    Ok(())
}
