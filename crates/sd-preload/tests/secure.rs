//! A set-user-id program with the library in /etc/ld.so.preload: every hook leads to libc's function, and nothing that
//! its caller chose is looked at.

mod common;

use common::{library, products};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that everybody can look into, and that goes away.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

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
    let folder = Folder(std::env::temp_dir().join(format!("sd-secure-{}", std::process::id())));
    fs::create_dir(&folder.0).unwrap();
    fs::set_permissions(&folder.0, Permissions::from_mode(0o755)).unwrap();
    let etc = [folder.0.join("etc"), folder.0.join("etc-plain")];
    for etc in &etc {
        assert!(Command::new("cp").args(["-a", "/etc"]).arg(etc).status().unwrap().success());
    }
    let copied = folder.0.join("libsd.so");
    fs::copy(library(), &copied).unwrap();
    fs::write(etc[0].join("ld.so.preload"), copied.to_str().unwrap()).unwrap();
    fs::write(etc[1].join("ld.so.preload"), "").unwrap();
    let monitor = folder.0.join("monitor.sock");
    let listener = sd_sys::msg::listen_unix(monitor.as_os_str().as_encoded_bytes()).unwrap();
    fs::set_permissions(&monitor, Permissions::from_mode(0o666)).unwrap();
    static VISITORS: AtomicU32 = AtomicU32::new(0);
    std::thread::spawn(move || {
        loop {
            // SAFETY: null addresses are allowed.
            let visitor = unsafe { libc::accept(listener, std::ptr::null_mut(), std::ptr::null_mut()) };
            VISITORS.fetch_add(1, Ordering::Relaxed);
            sd_sys::fd::close(visitor);
        }
    });
    let has_visitors = || VISITORS.load(Ordering::Relaxed) != 0;

    let id = run(&etc[1], &set_user_id(&folder.0, Path::new("/usr/bin/id")), &monitor);
    if id.stdout != b"0\n" {
        // No private mounts, or no set-user-id programs, here.
        return;
    }
    let program = set_user_id(&folder.0, &products().join("examples/every_call"));
    let (ours, plain) = (run(&etc[0], &program, &monitor), run(&etc[1], &program, &monitor));
    assert!(plain.status.success(), "{plain:?}");
    assert_eq!(ours, plain);
    assert!(!has_visitors(), "a monitor of the caller's choice was looked for");

    // The same program without the bit.
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let _ = run(&etc[0], &program, &monitor);
    assert!(has_visitors(), "the library is not loaded at all");
}
