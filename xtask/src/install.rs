//! Installs the programs that demo and test drive.
//!
//! Says what it installs, skips what is there, and lets no package start its service: for the time of the
//! installation a `policy-rc.d` forbids it. One that an administrator has put there is respected.

use crate::process::find_program;
use crate::{Result, fail};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// A Debian package, and the programs by which it is known to be there.
struct Package {
    name: &'static str,
    programs: &'static [&'static str],
}

const PACKAGES: &[Package] = &[
    Package { name: "redis-server", programs: &["redis-server"] },
    Package { name: "redis-tools", programs: &["redis-cli", "redis-benchmark"] },
    Package { name: "nginx-light", programs: &["nginx"] },
    Package { name: "wrk", programs: &["wrk"] },
    Package { name: "memcached", programs: &["memcached"] },
    Package { name: "libmemcached-tools", programs: &["memcslap"] },
    Package { name: "curl", programs: &["curl"] },
    Package { name: "socat", programs: &["socat"] },
    Package { name: "netcat-openbsd", programs: &["nc"] },
    Package { name: "iperf3", programs: &["iperf3"] },
    Package { name: "python3", programs: &["python3"] },
];

const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Names of the packages with a program that is not on this machine.
pub(crate) fn missing() -> Vec<&'static str> {
    let lacks = |package: &&Package| package.programs.iter().any(|program| find_program(program).is_none());
    PACKAGES.iter().filter(lacks).map(|package| package.name).collect()
}

pub(crate) fn run() -> Result<()> {
    let packages = missing();
    if packages.is_empty() {
        eprintln!("install: everything is there");
        return Ok(());
    }
    if find_program("apt-get").is_none() {
        fail!("this is not a Debian system; please install: {}", packages.join(" "));
    }
    if !nix::unistd::geteuid().is_root() {
        fail!("not root; please run: apt-get install --no-install-recommends {}", packages.join(" "));
    }
    eprintln!("install: {}", packages.join(" "));
    let _no_services = NoServices::new()?;
    apt(&["update", "-q"])?;
    let mut args = vec!["install", "-y", "-q", "--no-install-recommends"];
    args.extend(&packages);
    apt(&args)?;
    let still = missing();
    if !still.is_empty() {
        fail!("installed, yet not found: {}", still.join(" "));
    }
    Ok(())
}

fn apt(args: &[&str]) -> Result<()> {
    let status = Command::new("apt-get")
        .args(["-o", "DPkg::Lock::Timeout=120"])
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        // Standard output belongs to the command's own result.
        .stdout(std::io::stderr())
        .status()?;
    if !status.success() {
        fail!("apt-get {} failed", args[0]);
    }
    Ok(())
}

/// While it lives, packages do not start their services.
struct NoServices {
    is_ours: bool,
}

impl NoServices {
    fn new() -> Result<NoServices> {
        let is_ours = !Path::new(POLICY).exists();
        if is_ours {
            std::fs::write(POLICY, "#!/bin/sh\nexit 101\n")?;
            std::fs::set_permissions(POLICY, std::fs::Permissions::from_mode(0o755))?;
        }
        Ok(NoServices { is_ours })
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.is_ours {
            let _ = std::fs::remove_file(POLICY);
        }
    }
}
