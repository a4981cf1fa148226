//! What separates a program's own parts, and what a host's configuration says.

use super::Test;
use super::honest::contact;
use super::world::{TIMEOUT, User, With, World};
use harness::process::{Proc, free_port};
use harness::{Result, fail};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

pub(super) const TESTS: &[Test] = &[
    ("finding-06-privsep-read", |world| separation(world, "read")),
    ("finding-06-privsep-write", |world| separation(world, "write")),
    ("finding-06-threads-read", |world| separation(world, "threads-read")),
    ("finding-06-threads-write", |world| separation(world, "threads-write")),
    ("finding-06-threads-confined", |world| separation(world, "confined-read")),
    ("finding-11-nonlocal", nonlocal),
    ("finding-12-bridge", bridge),
    ("finding-15-secure", secure),
];

/// A child that has given its privileges up reaches nothing of its parent's.
fn separation(world: &mut World, way: &str) -> Result<String> {
    let port = free_port()?.to_string();
    let user = (User::Mallory as u32).to_string();
    let mut server = world.start(User::Root, With::Sd, &["privsep-serve", way, &port, &user])?;
    server.wait_for_text("listening", TIMEOUT)?;
    std::thread::sleep(Duration::from_millis(20));
    let client = world.start(User::Alice, With::Sd, &["privsep-talk", &port])?;
    let said = server.wait(Duration::from_secs(15))?.ok()?.text();
    client.wait(Duration::from_secs(15))?.ok()?;
    match said.lines().last() {
        Some("child: 7") => fail!("the child has found what its parent was told"),
        Some("child: 0") => Ok("child: 0".to_owned()),
        Some(other) if way.ends_with("write") => Ok(other.to_owned()),
        other => fail!("{other:?}"),
    }
}

/// Where every address can be bound, foreign ones are still foreign.
fn nonlocal(world: &mut World) -> Result<String> {
    let port = free_port()?;
    world.leave_network(&[("net/ipv4/ip_nonlocal_bind", "1")])?;
    // Somewhere to send what is for others.
    let routed = Command::new("ip").args(["route", "add", "93.184.216.0/24", "dev", "lo"]).status();
    if !routed.is_ok_and(|status| status.success()) {
        return Ok("skipped: no route can be made".to_owned());
    }
    let _server = world.serve(With::Sd, port, "any")?;
    contact(world, User::Alice, With::Sd, port, "hello")?;
    let args = ["reach", "93.184.216.34", &port.to_string(), "hello"];
    let said = world.start(User::Alice, With::Sd, &args)?.wait(TIMEOUT)?.text();
    if said.contains("bob") {
        fail!("93.184.216.34 said {said:?}");
    }
    Ok(said.trim().to_owned())
}

/// A connection that is passed on is the one that arrives, in a network with few ports, all of which mallory tries.
fn bridge(world: &mut World) -> Result<String> {
    let port = free_port()?;
    world.leave_network(&[("net/ipv4/ip_local_port_range", "41000 41063")])?;
    let folder = world.path().join("open");
    std::fs::create_dir_all(&folder)?;
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777))?;
    let path = folder.join("receiver").to_string_lossy().into_owned();
    let mut receiver = world.start(User::Bob, With::Kernel, &["echo-passed", &path])?;
    receiver.wait_for_text("listening", TIMEOUT)?;
    let _server = world.serve(With::Sd, port, &format!("pass:{path}"))?;
    let attack = world.attack(&["spray", "41000", "41063"])?;
    let end = std::time::Instant::now() + Duration::from_secs(6);
    let (mut whole, mut lost) = (0, 0);
    while std::time::Instant::now() < end {
        let args = ["contact", &port.to_string(), "password", "1000"];
        let said = world.start(User::Alice, With::Sd, &args)?.wait(TIMEOUT)?.text();
        if said.contains("HIJACKED") {
            fail!("after {whole} sessions: {said:?}; mallory: {}", attack.stdout_so_far());
        }
        // One without a port to be had is lost, as it would be over the kernel.
        if said.contains("bob password") { whole += 1 } else { lost += 1 }
    }
    super::authority::unheard(&attack.stdout_so_far())?;
    if whole == 0 {
        fail!("no session came about");
    }
    Ok(format!("{whole} sessions whole, {lost} without a port"))
}

/// A set-user-id program in a system whose ld.so.preload names the library has nothing of it but its hooks.
fn secure(world: &mut World) -> Result<String> {
    let folder = world.path();
    let program = folder.join("set-user-id");
    std::fs::copy(folder.join("sd-hostile"), &program)?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755))?;
    let user = (User::Mallory as u32).to_string();
    // /etc of another mount namespace, so that nobody else gets the library.
    let script = "set -e; mount --make-rprivate /; mkdir -p \"$1/etc\"; mount -t tmpfs tmpfs \"$1/etc\"
        cp -a /etc/. \"$1/etc/\"; echo \"$1/libsd.so\" > \"$1/etc/ld.so.preload\"
        mount --bind \"$1/etc\" /etc
        exec setpriv --reuid \"$2\" --regid \"$2\" --clear-groups \"$1/sd-hostile\" plant \"$1/set-user-id\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]).arg(folder).arg(user).stdin(Stdio::null());
    command.env("SD_MONITOR", world.socket());
    let output = Proc::start(&mut command, "secure", folder)?.wait(Duration::from_secs(20))?;
    let said = output.text();
    if !said.contains("euid 0") || !said.contains("library: true") {
        return Ok(format!("skipped: no such program can be made here: {said:?} {:?}", output.stderr));
    }
    super::authority::unheard(&said)
}
