//! A set-user-id program with the library in /etc/ld.so.preload: every hook leads to libc's function, and nothing that
//! its caller chose is looked at.

mod common;

use common::{library, products};
use harness::scratch::Scratch;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// Copies a program, which then runs as root whoever starts it.
fn set_user_id(folder: &Path, program: &Path) -> PathBuf {
    let copy = folder.join(program.file_name().unwrap());
    fs::copy(program, &copy).unwrap();
    chown(&copy, Some(0), Some(0)).unwrap();
    fs::set_permissions(&copy, Permissions::from_mode(0o4755)).unwrap();
    copy
}

/// Runs a program as another user, in a mount namespace whose /etc/ld.so.preload is ours.
fn run(etc: &Path, program: &Path, monitor: &Path) -> Output {
    let script =
        "mount --bind \"$1\" /etc && exec setpriv --reuid 2003 --regid 2003 --clear-groups \"$2\" -u";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]).args([etc, program]);
    command.env_remove("LD_PRELOAD").env("SD_MONITOR", monitor).current_dir("/");
    command.output().unwrap()
}

#[test]
fn the_library_does_nothing() {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    // Everybody can look into it.
    let scratch = Scratch::new("secure").unwrap();
    let folder = scratch.path();
    let etc = [folder.join("etc"), folder.join("etc-plain")];
    for etc in &etc {
        assert!(Command::new("cp").args(["-a", "/etc"]).arg(etc).status().unwrap().success());
    }
    let copied = folder.join("libsd.so");
    fs::copy(library(), &copied).unwrap();
    fs::write(etc[0].join("ld.so.preload"), copied.to_str().unwrap()).unwrap();
    fs::write(etc[1].join("ld.so.preload"), "").unwrap();
    let monitor = folder.join("monitor.sock");
    let listener = sd_sys::msg::listen_unix(monitor.as_os_str().as_encoded_bytes()).unwrap();
    fs::set_permissions(&monitor, Permissions::from_mode(0o666)).unwrap();
    static VISITORS: AtomicU32 = AtomicU32::new(0);
    std::thread::spawn(move || {
        loop {
            // SAFETY: null addresses are allowed.
            let visitor = unsafe { libc::accept(listener.raw(), std::ptr::null_mut(), std::ptr::null_mut()) };
            VISITORS.fetch_add(1, Ordering::Relaxed);
            sd_sys::fd::close(visitor);
        }
    });
    let has_visitors = || VISITORS.load(Ordering::Relaxed) != 0;

    let id = run(&etc[1], &set_user_id(folder, Path::new("/usr/bin/id")), &monitor);
    if id.stdout != b"0\n" {
        // No private mounts, or no set-user-id programs, here.
        return;
    }
    let program = set_user_id(folder, &products().join("examples/every_call"));
    let (ours, plain) = (run(&etc[0], &program, &monitor), run(&etc[1], &program, &monitor));
    assert!(plain.status.success(), "{plain:?}");
    assert_eq!(ours, plain);
    assert!(!has_visitors(), "a monitor of the caller's choice was looked for");

    // The same program without the bit.
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let _ = run(&etc[0], &program, &monitor);
    assert!(has_visitors(), "the library is not loaded at all");
}
