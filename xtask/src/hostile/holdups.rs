//! Nobody is held up: not the monitor, not servers, not clients.

use super::Test;
use super::honest::{contact, contact_by, patiently, watched};
use super::world::{TIMEOUT, User, With, World};
use harness::process::{Proc, free_port};
use harness::{Result, fail, procfs};
use nix::sys::resource::{Resource, setrlimit};
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

pub(super) const TESTS: &[Test] = &[
    ("finding-04-hang-zero", |world| stand(world, &["hang", "zero"])),
    ("finding-04-hang-one", |world| stand(world, &["hang", "1"])),
    ("finding-04-hang-nine", |world| stand(world, &["hang", "9"])),
    ("finding-04-hang-many", |world| stand(world, &["hang", "60"])),
    ("finding-04-hang-garbage", |world| stand(world, &["hang", "garbage"])),
    ("finding-04-hang-long", |world| stand(world, &["hang", "long"])),
    ("hang-fuse", |world| hold(world, "fuse")),
    ("lock-epoll", |world| hold(world, "epoll")),
    ("lock-slab", |world| hold(world, "slab")),
    ("lock-segment", |world| hold(world, "segment")),
    ("lock-server", lock_server),
    ("lock-remains", lock_remains),
    ("lock-pair", |world| hold(world, "pair")),
    ("finding-05-eventfd", eventfd),
    ("finding-05-server", server_wakes),
    ("wakes-without-aio", without_aio),
    ("finding-08-flood", flood),
    ("finding-08-synflood", synflood),
    ("finding-09-squatted-directory", squatted_directory),
    ("finding-13-keeper-silent", |world| keeper(world, "silent")),
    ("finding-13-keeper-full", |world| keeper(world, "full")),
    ("finding-14-eat", |world| limited(world, &["eat-channels", "12000"])),
    ("finding-14-answers", |world| limited(world, &["eat-answers", "100"])),
    ("finding-14-forks", |world| limited(world, &["eat-forks", "6000"])),
    ("finding-14-clients", |world| limited(world, &["eat-clients", "3000"])),
    ("finding-14-fat", fat),
];

/// Alice goes on while an attack stands.
fn stand(world: &mut World, attack: &[&str]) -> Result<String> {
    let port = free_port()?;
    let _server = world.serve(With::Sd, port, "threads")?;
    watched(world, port, || world.attack(attack))
}

/// Mallory is inside a call with a lock of the kernel's, at a page that does not come. She begins as root, as a page of that
/// kind is not everybody's in every configuration.
fn hold(world: &mut World, way: &str) -> Result<String> {
    let port = free_port()?;
    let _server = world.serve(With::Sd, port, "threads")?;
    let user = (User::Mallory as u32).to_string();
    let mut said = String::new();
    let note = watched(world, port, || {
        let mut attack = world.start(User::Root, With::Kernel, &["hold", way, &user])?;
        attack.wait_for_text("ready", TIMEOUT)?;
        said = attack.stdout_so_far();
        Ok(attack)
    })?;
    Ok(match said.lines().next() {
        Some(skipped) if skipped.starts_with("skipped") => skipped.to_owned(),
        _ => note,
    })
}

/// The lock is of the file that she shares with the server, which has one thread.
fn lock_server(world: &mut World) -> Result<String> {
    let port = free_port()?;
    let _server = world.serve(With::Sd, port, "poll")?;
    let (user, way) = ((User::Mallory as u32).to_string(), format!("server:{port}"));
    watched(world, port, || {
        let mut attack = world.start(User::Root, With::Kernel, &["hold", &way, &user])?;
        attack.wait_for_text("ready", TIMEOUT)?;
        Ok(attack)
    })
}

/// The lock is of a segment whose maker ends, and which is to be emptied: by a process that waits, and holds up nobody.
fn lock_remains(world: &mut World) -> Result<String> {
    let port = free_port()?;
    let swallowing = free_port()?.to_string();
    let mut server = world.start(User::Bob, With::Sd, &["swallow", &swallowing])?;
    server.wait_for_text("listening", TIMEOUT)?;
    let _honest = world.serve(With::Sd, port, "threads")?;
    let (user, way) = ((User::Mallory as u32).to_string(), format!("remains:{swallowing}"));
    let mut said = String::new();
    let note = watched(world, port, || {
        let mut attack = world.start(User::Root, With::Kernel, &["hold", &way, &user])?;
        attack.wait_for_text("ready", TIMEOUT)?;
        said = attack.stdout_so_far();
        if !said.contains("skipped") && !waits_soon(true) {
            fail!("nobody waits for the lock ({said:?})");
        }
        Ok(attack)
    })?;
    if !waits_soon(false) {
        fail!("somebody waits though the lock is free");
    }
    Ok(match said.lines().next() {
        Some(skipped) if skipped.starts_with("skipped") => skipped.to_owned(),
        _ => note,
    })
}

/// Whether there is, or is not, a process that empties segments and waits where it cannot be interrupted, soon.
fn waits_soon(expected: bool) -> bool {
    let is_there = || {
        let names = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let stats = names.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
        stats.into_iter().any(|stat| stat.contains("(sd-empty) D "))
    };
    let end = Instant::now() + TIMEOUT;
    while is_there() != expected {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// A race, which is given a while.
fn eventfd(world: &mut World) -> Result<String> {
    let port = free_port()?;
    let _server = world.serve(With::Sd, port, "threads")?;
    watched(world, port, || {
        let attack = world.attack(&["eventfd"])?;
        std::thread::sleep(Duration::from_secs(6));
        Ok(attack)
    })
}

/// The same race, with the thread of a server that wakes its client.
fn server_wakes(world: &mut World) -> Result<String> {
    let port = free_port()?;
    let _server = world.serve(With::Sd, port, "poll")?;
    let mut said = String::new();
    let note = watched(world, port, || {
        let attack = world.attack(&["wakes", &port.to_string()])?;
        std::thread::sleep(Duration::from_secs(6));
        said = attack.stdout_so_far();
        Ok(attack)
    });
    note.map_err(|error| format!("{error} ({said:?})").into())
}

/// Users who may not have asynchronous I/O (fs.aio-max-nr is used up) wake each other by way of the monitor, whether both
/// may not or one.
fn without_aio(world: &mut World) -> Result<String> {
    let mut longest = 0.0_f64;
    for (server_may, client_may) in [(false, true), (true, false), (false, false)] {
        let port = free_port()?;
        let start = |user, may: bool, args: &[&str]| -> Result<Proc> {
            let mut command = world.command(user, With::Sd, args)?;
            if !may {
                // SAFETY: between fork and exec only prctl(2) is called.
                unsafe { command.pre_exec(forbid_aio) };
            }
            Proc::start(&mut command, args[0], world.path())
        };
        let mut server = start(User::Bob, server_may, &["serve", &port.to_string(), "bob", "poll"])?;
        server.wait_for_text("listening", TIMEOUT)?;
        let pace = start(User::Alice, client_may, &["pace", &port.to_string(), "1000"])?;
        let contact = start(User::Alice, client_may, &["contact", &port.to_string(), "hello", "4000"])?;
        let said = contact.wait(TIMEOUT)?.ok()?.text();
        if !said.contains(" shm bob hello") {
            fail!("server {server_may}, client {client_may}: {said:?}");
        }
        longest = longest.max(super::honest::longest(pace)?);
    }
    if longest > 1_000_000.0 {
        fail!("an answer took {longest:.0} us");
    }
    Ok(format!("longest answer {longest:.0} us"))
}

/// io_setup(2) fails as where there are no requests left.
fn forbid_aio() -> std::io::Result<()> {
    use nix::libc::{SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO};
    let step = |code, jt, jf, k| nix::libc::sock_filter { code, jt, jf, k };
    let mut steps = [
        step(0x20, 0, 0, 0),
        step(0x15, 0, 1, nix::libc::SYS_io_setup as u32),
        step(0x06, 0, 0, SECCOMP_RET_ERRNO | nix::libc::EAGAIN as u32),
        step(0x06, 0, 0, SECCOMP_RET_ALLOW),
    ];
    let filter = nix::libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    let mode = nix::libc::SECCOMP_MODE_FILTER;
    // SAFETY: the kernel reads the filter.
    let done = unsafe {
        nix::libc::prctl(nix::libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && nix::libc::prctl(nix::libc::PR_SET_SECCOMP, mode, &raw const filter) == 0
    };
    if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// A client spends its own descriptors, not the server's; what it has used comes back.
fn flood(world: &mut World) -> Result<String> {
    let port = free_port()?;
    let mut command = world.command(User::Bob, With::Sd, &["serve", &port.to_string(), "bob"])?;
    // SAFETY: between fork and exec only setrlimit(2) is called.
    unsafe { command.pre_exec(|| Ok(setrlimit(Resource::RLIMIT_NOFILE, 1024, 1024)?)) };
    let mut server = Proc::start(&mut command, "serve", world.path())?;
    server.wait_for_text("listening", TIMEOUT)?;
    let greet = |user, with, line: &'static str| patiently(|| contact(world, user, with, port, line));
    greet(User::Alice, With::Sd, "hello")?;
    let before = procfs::fd_count(server.pid());
    let mut most = 0;
    let note = watched(world, port, || {
        let attack = world.attack(&["flood", &port.to_string(), "3000"])?;
        most = procfs::fd_count(server.pid());
        greet(User::Alice, With::Kernel, "hello")?;
        Ok(attack)
    })?;
    let end = Instant::now() + Duration::from_secs(10);
    for user in [User::Alice, User::Bob] {
        greet(user, With::Sd, "after")?;
        greet(user, With::Kernel, "after")?;
    }
    while procfs::fd_count(server.pid()) > before + 8 {
        if Instant::now() > end {
            fail!(
                "the server had {before} descriptors, {most} under attack, and has {}",
                procfs::fd_count(server.pid())
            );
        }
        greet(User::Alice, With::Sd, "after")?;
    }
    Ok(format!("{note}; {before} descriptors, {most} under attack"))
}

/// A backlog is the server's: who asks for more connections than it holds costs its existing ones nothing.
fn synflood(world: &mut World) -> Result<String> {
    let port = free_port()?;
    let server = world.serve(With::Sd, port, "one")?;
    let mut pace = world.start(User::Alice, With::Sd, &["pace", &port.to_string(), "5000"])?;
    pace.wait_for_text("connected", TIMEOUT)?;
    std::thread::sleep(Duration::from_millis(300));
    let attack = world.attack(&["synflood", &port.to_string(), "100"])?;
    let longest = super::honest::longest(pace)?;
    let said = attack.stdout_so_far();
    drop(attack);
    if longest > 1_000_000.0 {
        fail!("an answer took {longest:.0} us beside {}", said.lines().next().unwrap_or_default());
    }
    contact(world, User::Alice, With::Sd, port, "after")?;
    drop(server);
    Ok(format!("longest answer {longest:.0} us beside {}", said.lines().next().unwrap_or_default()))
}

/// A library that looks for its monitor where anybody can put a socket.
fn squatted_directory(world: &mut World) -> Result<String> {
    let port = free_port()?;
    let _server = world.serve(With::Kernel, port, "threads")?;
    let folder = format!("/tmp/socksdirect-{}", User::Alice as u32);
    let attack = world.attack(&["squat-directory", &(User::Alice as u32).to_string()])?;
    let mut command = world.command(User::Alice, With::Kernel, &["contact", &port.to_string(), "hello"])?;
    command.env("LD_PRELOAD", world.path().join("libsd.so")).env_remove("SD_MONITOR");
    let said = Proc::start(&mut command, "contact", world.path())?.wait(TIMEOUT);
    // It is over while what could hold it up stands, and would stand for ever.
    drop(attack);
    std::fs::remove_dir_all(&folder)?;
    let said = said?.ok()?.text();
    if !said.contains("bob hello") {
        fail!("{said:?}");
    }
    Ok(format!("{} us", said.split(' ').next().unwrap_or_default()))
}

/// Receiving a descriptor does not mean waiting for its sender's friends.
fn keeper(world: &mut World, way: &str) -> Result<String> {
    let folder = world.path().join("open");
    std::fs::create_dir_all(&folder)?;
    std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
    let path = folder.join("receiver").to_string_lossy().into_owned();
    let mut receiver = world.start(User::Alice, With::Sd, &["receiver", &path])?;
    receiver.wait_for_text("listening\n", TIMEOUT)?;
    let _attack = world.attack(&["keeper", &path, way])?;
    // While the keeper stands, which never says anything.
    receiver.wait_for_text("Ok(", Duration::from_secs(3))?;
    let said = receiver.stdout_so_far();
    let took: f64 = said.lines().nth(1).and_then(|line| line.split(' ').next()?.parse().ok()).unwrap_or(1e9);
    Ok(format!("recvmsg took {took:.0} us"))
}

/// What one user can have of the monitor leaves enough for others: alice is accelerated all the while.
fn limited(world: &mut World, attack: &[&str]) -> Result<String> {
    let monitor = world.monitor_pid() as i32;
    // SAFETY: the kernel reads one rlimit.
    unsafe {
        let limit = nix::libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
        nix::libc::prlimit(monitor, nix::libc::RLIMIT_NOFILE, &limit, std::ptr::null_mut());
    }
    let port = free_port()?;
    let _server = world.serve(With::Sd, port, "threads")?;
    let (mut most, mut said) = (0, String::new());
    let note = watched(world, port, || {
        let attack = world.attack(attack)?;
        most = procfs::fd_count(monitor as u32);
        said = attack.stdout_so_far().replace('\n', ", ");
        for _ in 0..3 {
            let (_, path) = patiently(|| contact_by(world, User::Alice, With::Sd, port, "hello"))?;
            if path != "shm" {
                fail!("alice gets the {path}; the monitor has {most} descriptors");
            }
        }
        Ok(attack)
    })?;
    Ok(format!("{note}; the monitor had {most} descriptors; mallory: {said}"))
}

/// Nor does it build endless documents, or look through endless lists.
fn fat(world: &mut World) -> Result<String> {
    let before = super::world::rss(world.monitor_pid());
    let note = stand(world, &["fat", "2000000"])?;
    // The slab's own pages count as the monitor's where it has looked at them.
    let after = super::world::rss(world.monitor_pid());
    if after > before + 600 * 1024 {
        fail!("{note}; the monitor had {before} KiB and has {after} KiB");
    }
    Ok(format!("{note}; the monitor had {before} KiB and has {after}"))
}
