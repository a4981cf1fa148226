//! `sd doctor` where something is missing: in namespaces of its own, as containers are, and about processes that run already.

mod support;

use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::{Folder, listen, sd, stdout};

/// What a check of that name says: its verdict, and all of its words.
fn check(document: &str, name: &str) -> (String, String) {
    let json: Value = serde_json::from_str(document).unwrap_or_else(|_| panic!("{document:?}"));
    let found = json["checks"].as_array().unwrap().iter().find(|check| check["name"] == name);
    let found = found.unwrap_or_else(|| panic!("no {name} in {document}"));
    let word = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    (word("verdict"), format!("{} -> {}", word("detail"), word("advice")))
}

/// Runs it behind other commands; nothing where those may not do what they are to do.
fn doctor_in(folder: &Folder, before: &[&str]) -> Option<String> {
    let plain = sd(folder, &["doctor", "--json"]);
    let (program, arguments) = before.split_first().unwrap();
    let mut command = Command::new(program);
    command.args(arguments).arg(plain.get_program()).args(plain.get_args());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let output = command.stdin(Stdio::null()).output().unwrap();
    if output.stdout.is_empty() {
        println!("skipped: {}", String::from_utf8_lossy(&output.stderr));
        return None;
    }
    Some(stdout(&output))
}

/// Ended when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn monitor(folder: &Folder) -> Running {
    monitor_with(folder, &[])
}

fn monitor_with(folder: &Folder, options: &[&str]) -> Running {
    monitor_by(folder, sd(folder, &[&["monitor"], options].concat()))
}

/// Waits until the monitor that the command starts answers.
fn monitor_by(folder: &Folder, mut command: Command) -> Running {
    let child = Running(command.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
    let end = Instant::now() + Duration::from_secs(10);
    while !sd(folder, &["ss"]).output().unwrap().status.success() {
        assert!(Instant::now() < end, "no monitor");
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}

#[test]
fn another_network_namespace() {
    let folder = Folder::new();
    let _monitor = monitor(&folder);
    let here = stdout(&sd(&folder, &["doctor", "--json"]).output().unwrap());
    assert_eq!(check(&here, "monitor's network").0, "ok");
    let Some(there) = doctor_in(&folder, &["unshare", "--net"]) else { return };
    let (verdict, text) = check(&there, "monitor's network");
    assert!(verdict == "warn" && text.contains("the monitor is in network namespace"), "{text}");
    let (verdict, text) = check(&there, "loopback");
    assert!(verdict == "fail" && text.contains("ip link set lo up"), "{text}");
    assert_eq!(check(&there, "monitor").0, "ok");
}

/// The monitor was not told to, may read sequence numbers or not, and has a policy.
#[test]
fn connections_that_the_kernel_has_made() {
    // Whether a monitor started here may.
    let (verdict, has) =
        if sd_sys::origins::may_ask() { ("ok", "also between") } else { ("warn", "TCP_REPAIR") };
    let folder = Folder::new();
    let policies = [folder.join("some"), folder.join("none")];
    std::fs::write(&policies[0], "stay port=80\n").unwrap();
    std::fs::write(&policies[1], "stay\n").unwrap();
    let [some, none] = policies.each_ref().map(|path| path.to_str().unwrap());
    for (options, verdict, has) in [
        (vec!["--promote=off"], "ok", "--promote"),
        (vec!["--promote=earned"], verdict, has),
        (vec!["--promote=earned", "--policy", some], verdict, "but those that the policy keeps"),
        (vec!["--promote=earned", "--policy", none], "warn", "the policy keeps all connections of this user"),
    ] {
        let _monitor = monitor_with(&folder, &options);
        let document = stdout(&sd(&folder, &["doctor", "--json"]).output().unwrap());
        let (found, text) = check(&document, "promotion");
        assert!(found == verdict && text.contains(has), "{options:?}: {found}: {text}");
    }
    let plain = sd(&folder, &["monitor", "--promote=earned"]);
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-net_admin", "--inh-caps=-net_admin"]);
    command.arg(plain.get_program()).args(plain.get_args());
    plain.get_envs().for_each(|(name, value)| _ = value.map(|value| command.env(name, value)));
    if !sd_sys::origins::may_ask() {
        return;
    }
    let _monitor = monitor_by(&folder, command);
    let document = stdout(&sd(&folder, &["doctor", "--json"]).output().unwrap());
    let (verdict, text) = check(&document, "promotion");
    assert!(verdict == "warn" && text.contains("CAP_NET_ADMIN"), "{text}");
}

#[test]
fn another_user_namespace() {
    let folder = Folder::new();
    let Some(nobody) = doctor_in(&folder, &["unshare", "--user"]) else { return };
    let (verdict, text) = check(&nobody, "user namespace");
    assert!(verdict == "fail" && text.contains("no number here"), "{text}");
    let Some(root) = doctor_in(&folder, &["unshare", "--user", "--map-root-user"]) else { return };
    let (verdict, text) = check(&root, "user namespace");
    assert!(verdict == "ok" && text.contains("user 0 is user"), "{text}");
}

#[test]
fn a_socket_that_was_not_mounted() {
    let folder = Folder::new();
    let text = stdout(&sd(&folder, &["doctor", "--json"]).output().unwrap());
    let (verdict, text) = check(&text, "monitor");
    assert!(verdict == "warn" && text.contains("which SD_MONITOR names") && text.contains("mount"), "{text}");
}

/// The monitor of a socket that was mounted by itself was started again: what is mounted is the old one.
#[test]
fn a_socket_that_is_an_old_one() {
    let folder = Folder::new();
    drop(listen(&folder.join("old.sock")));
    std::fs::write(folder.join("monitor.sock"), "").unwrap();
    let [old, place] = ["old.sock", "monitor.sock"].map(|name| folder.join(name).display().to_string());
    let script = format!("mount --bind {old} {place} && exec \"$@\"");
    let Some(text) = doctor_in(&folder, &["unshare", "--mount", "sh", "-c", &script, "sh"]) else { return };
    let (verdict, text) = check(&text, "monitor");
    assert!(verdict == "fail" && text.contains("mount its directory instead"), "{text}");
}

#[test]
fn a_library_that_is_not_in_this_mount_namespace() {
    let folder = Folder::new();
    let mut command = sd(&folder, &["doctor", "--json"]);
    let text = stdout(&command.env("LD_PRELOAD", "/nowhere/libsd.so").output().unwrap());
    let (verdict, text) = check(&text, "LD_PRELOAD");
    assert!(verdict == "fail" && text.contains("/nowhere/libsd.so"), "{text}");
}

/// seccomp(2)'s answers.
const KILL: u32 = 0x8000_0000;
const REFUSE: u32 = 0x0005_0000 | libc::EPERM as u32;

/// Gives the next program of this process a filter with that answer to membarrier(2), which the library calls and sd does not.
fn filter(answer: u32) -> std::io::Result<()> {
    let code = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        code(0x20, 0, 0, 0),
        code(0x15, 0, 1, libc::SYS_membarrier as u32),
        code(0x06, 0, 0, answer),
        code(0x06, 0, 0, 0x7fff_0000),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the filter is valid during the call.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const filter) == 0
    };
    if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[test]
fn filters_that_kill_and_filters_that_refuse() {
    let folder = Folder::new();
    for (answer, verdict, words) in [(KILL, "fail", "kills for calls"), (REFUSE, "warn", "is in force")] {
        let mut command = sd(&folder, &["doctor", "--json"]);
        // SAFETY: between fork and exec only prctl(2) is called.
        unsafe { command.pre_exec(move || filter(answer)) };
        let text = stdout(&command.output().unwrap());
        let (found, text) = check(&text, "confinement");
        assert!(found == verdict && text.contains(words), "{text}");
    }
}

/// What it says of a process.
fn of_process(folder: &Folder, pid: u32) -> String {
    stdout(&sd(folder, &["doctor", "--json", "--pid"]).arg(pid.to_string()).output().unwrap())
}

/// A process that sleeps, once it has become that.
fn sleeper(change: impl FnOnce(&mut Command)) -> Running {
    let mut command = Command::new("sleep");
    command.arg("60").env_remove("LD_PRELOAD").env_remove("SD_MONITOR").stderr(Stdio::null());
    change(&mut command);
    let child = Running(command.spawn().unwrap());
    let end = Instant::now() + Duration::from_secs(10);
    while std::fs::read_to_string(format!("/proc/{}/comm", child.0.id())).unwrap().trim() != "sleep" {
        assert!(Instant::now() < end, "it does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

#[test]
fn processes_that_have_lost_the_library() {
    let folder = Folder::new();
    let lost = sleeper(|_| ());
    let text = of_process(&folder, lost.0.id());
    let (verdict, words) = check(&text, "library");
    assert!(verdict == "fail" && words.contains("LD_PRELOAD is not in the environment"), "{words}");
    assert_eq!(check(&text, "process").0, "ok");
    assert_eq!(check(&text, "network namespace").0, "ok");
    let missing = sleeper(|command| {
        command.env("LD_PRELOAD", "/nowhere/libsd.so").env("SD_MONITOR", "/nowhere/monitor.sock");
    });
    let text = of_process(&folder, missing.0.id());
    let (verdict, words) = check(&text, "library");
    assert!(verdict == "fail" && words.contains("not in its mount namespace"), "{words}");
    let (verdict, words) = check(&text, "monitor's socket");
    assert!(verdict == "fail" && words.contains("SD_MONITOR is /nowhere/monitor.sock"), "{words}");
}

#[test]
fn processes_that_are_elsewhere() {
    let folder = Folder::new();
    let mut command = Command::new("unshare");
    command.args(["--net", "sleep", "60"]).stderr(Stdio::null());
    let mut child = Running(command.spawn().unwrap());
    let end = Instant::now() + Duration::from_secs(10);
    while std::fs::read_to_string(format!("/proc/{}/comm", child.0.id())).unwrap_or_default().trim()
        != "sleep"
    {
        if child.0.try_wait().unwrap().is_some() {
            println!("skipped: no network namespace can be made");
            return;
        }
        assert!(Instant::now() < end, "it does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    let (verdict, words) = check(&of_process(&folder, child.0.id()), "network namespace");
    assert!(verdict == "warn" && words.contains("net:["), "{words}");
}

#[test]
fn processes_that_are_not() {
    let folder = Folder::new();
    let output = sd(&folder, &["doctor", "--json", "--pid", "4194304"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(check(&stdout(&output), "process").0, "fail");
}
