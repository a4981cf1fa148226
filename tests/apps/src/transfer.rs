//! Servers of files that fork for each connection: rsync and git.

use super::table::{Load, Row};
use super::{Scenario, files, rates};
use harness::lab::{Lab, Side};
use harness::process::{Proc, free_port};
use harness::{Result, fail};
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
        load: Some(Load { unit: "MB/s, a file of 100 MB, one after the other", rate: rsync_rate }),
    },
    Row {
        application: "git",
        version: &["git", "--version"],
        scenarios: "git-",
        features: "daemon that executes a program for each connection: clone, fetch, push",
        load: Some(Load { unit: "clones/s of 9 MB, one after the other", rate: git_rate }),
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

/// A daemon whose modules `files` and `locked` are one new folder.
fn start_rsync(lab: &Lab, side: Side, port: u16, folder: &Path) -> Result<Proc> {
    std::fs::create_dir(folder)?;
    let folder = folder.display();
    let root = nix::unistd::geteuid().is_root();
    let owner = if root { "uid = root\ngid = root\nuse chroot = yes\n" } else { "use chroot = no\n" };
    let text = format!(
        "{owner}[files]\npath = {folder}\nread only = no\n[locked]\npath = {folder}\nread only = yes\n"
    );
    let configuration = lab.path().join(format!("rsyncd-{port}.conf"));
    std::fs::write(&configuration, text)?;
    let (text, config) = (format!("--port={port}"), format!("--config={}", configuration.display()));
    lab.serve(side, port, "rsync", &["--daemon", "--no-detach", "--address=127.0.0.1", &text, &config])
}

fn rsync_rate(lab: &Lab, side: Side) -> Result<f64> {
    let port = free_port()?;
    let (there, back) = (lab.path().join(format!("there-{port}")), lab.path().join(format!("back-{port}")));
    let process = start_rsync(lab, side, port, &there)?;
    std::fs::write(there.join("file"), files::bytes(100_000_000))?;
    let args = ["-aW", &format!("rsync://127.0.0.1:{port}/files/file"), &back.display().to_string()];
    let rate = rates::per_second(|| {
        let _ = std::fs::remove_file(&back);
        lab.run(side, "rsync", &args, LIMIT).map(|_| ())
    })?;
    process.terminate(LIMIT)?;
    Ok(rate * 100.0)
}

/// A tree up, a changed one as differences, down again; and what the module refuses.
fn rsync(lab: &mut Lab) -> Result<()> {
    for (server, client) in SIDES {
        let port = free_port()?;
        let [from, there, back] =
            ["from", "there", "back"].map(|name| lab.path().join(format!("{name}-{port}")));
        tree(&from)?;
        let process = start_rsync(lab, server, port, &there)?;
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

/// git in a folder; its output.
fn git_in(lab: &Lab, side: Side, folder: &Path, args: &[&str]) -> Result<String> {
    let folder = folder.display().to_string();
    let mut all = vec!["-C", &folder];
    for setting in [
        "user.name=x",
        "user.email=x@localhost",
        "protocol.version=2",
        "init.defaultBranch=main",
        "safe.directory=*",
    ] {
        all.extend(["-c", setting]);
    }
    all.extend(args);
    Ok(lab.run(side, "git", &all, LIMIT)?.text())
}

/// A daemon with an empty store in a new folder.
fn start_git(lab: &Lab, side: Side, port: u16, base: &Path) -> Result<Proc> {
    std::fs::create_dir(base)?;
    git_in(lab, Side::Kernel, base, &["init", "-q", "--bare", "store.git"])?;
    let (base_path, text) = (format!("--base-path={}", base.display()), format!("--port={port}"));
    let mut args = vec!["daemon", &base_path, &text, "--listen=127.0.0.1"];
    args.extend(["--export-all", "--enable=receive-pack", "--reuseaddr"]);
    lab.serve(side, port, "git", &args)
}

fn git_rate(lab: &Lab, side: Side) -> Result<f64> {
    let port = free_port()?;
    let [base, work, clone] = ["base", "work", "clone"].map(|name| lab.path().join(format!("{name}-{port}")));
    let process = start_git(lab, side, port, &base)?;
    let url = format!("git://127.0.0.1:{port}/store.git");
    let fetch = |to: &Path| {
        git_in(lab, side, lab.path(), &["clone", "-q", "-b", "main", &url, &to.display().to_string()])
    };
    git_in(lab, side, lab.path(), &["clone", "-q", &url, &work.display().to_string()])?;
    tree(&work.join("tree"))?;
    git_in(lab, Side::Kernel, &work, &["add", "-A"])?;
    git_in(lab, Side::Kernel, &work, &["commit", "-q", "-m", "tree"])?;
    git_in(lab, side, &work, &["push", "-q", "origin", "HEAD:main"])?;
    let rate = rates::per_second(|| {
        let _ = std::fs::remove_dir_all(&clone);
        fetch(&clone).map(|_| ())
    })?;
    process.terminate(LIMIT)?;
    Ok(rate)
}

/// Clone, push, fetch; the daemon executes a program for each, whose standard input and output is the socket.
fn git(lab: &mut Lab) -> Result<()> {
    for (server, client) in SIDES {
        let port = free_port()?;
        let base = lab.path().join(format!("base-{port}"));
        let in_folder = |side, folder: &Path, args: &[&str]| git_in(lab, side, folder, args);
        let process = start_git(lab, server, port, &base)?;
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
