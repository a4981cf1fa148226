//! `sd run`: the program gets exactly what `sd` was given, plus the library and the monitor.

mod support;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{Folder, Manner, errors, harmless_library, sd, stand_in, stdout};

fn good_status() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(r#"{{"version":"{version}","pid":1,"clients":[],"connections":[],"listeners":[]}}"#)
}

#[test]
fn status_and_environment_are_the_programs() {
    let folder = Folder::new();
    stand_in(&folder, Manner::Tells(good_status()));
    let script = "echo \"$LD_PRELOAD\"; echo \"$SD_MONITOR\"; exit 7";
    let output = sd(&folder, &["run", "--", "sh", "-c", script]).output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(errors(&output), Vec::<String>::new());
    let library = harmless_library().display().to_string();
    let socket = folder.join("monitor.sock").display().to_string();
    assert_eq!(stdout(&output).lines().collect::<Vec<_>>(), [library, socket]);
}

#[test]
fn process_id_stays() {
    let folder = Folder::new();
    stand_in(&folder, Manner::Tells(good_status()));
    let mut command = sd(&folder, &["run", "sh", "-c", "echo $$"]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(stdout(&output).trim(), pid.to_string());
}

#[test]
fn an_earlier_preload_stays_behind_ours() {
    let folder = Folder::new();
    let mut command = sd(&folder, &["run", "--no-start", "--", "sh", "-c", "echo $LD_PRELOAD"]);
    let output = command.env("LD_PRELOAD", "libm.so.6").output().unwrap();
    assert_eq!(stdout(&output).trim(), format!("{}:libm.so.6", harmless_library().display()));
}

#[test]
fn missing_and_forbidden_programs_end_as_with_env() {
    let folder = Folder::new();
    stand_in(&folder, Manner::Tells(good_status()));
    let file = folder.join("file");
    std::fs::write(&file, "").unwrap();
    let file = file.to_str().unwrap();
    for (program, status) in [("no-such-program-anywhere", 127), (file, 126), ("/", 126)] {
        let output = sd(&folder, &["run", "--", program]).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{program}");
        assert_eq!(errors(&output).len(), 1, "{program}");
    }
    let output = sd(&folder, &["run", "--", "true"]).env("SD_LIB", "/no/libsd.so").output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert_eq!(errors(&output).len(), 1);
}

#[test]
fn without_a_monitor_one_line_warns_and_the_program_runs() {
    let folder = Folder::new();
    let file = folder.join("not-a-directory");
    std::fs::write(&file, "").unwrap();
    for (socket, flags) in [
        (file.join("monitor.sock"), &["run", "--"][..]),
        ("/proc/self/monitor.sock".into(), &["run", "--"][..]),
        (folder.join("none.sock"), &["run", "--no-start", "--"][..]),
    ] {
        let mut command = sd(&folder, flags);
        let output = command.args(["echo", "ran"]).env("SD_MONITOR", &socket).output().unwrap();
        assert!(output.status.success());
        assert_eq!(stdout(&output), "ran\n");
        let lines = errors(&output);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].starts_with("sd: warning: ") && lines[0].ends_with("over the kernel"), "{lines:?}");
    }
}

#[test]
fn a_monitor_of_another_version_is_not_used_silently() {
    let folder = Folder::new();
    stand_in(&folder, Manner::Tells(r#"{"version":"9.9.9","pid":1}"#.to_owned()));
    let output = sd(&folder, &["run", "echo", "ran"]).output().unwrap();
    assert_eq!(stdout(&output), "ran\n");
    assert!(errors(&output)[0].contains("version 9.9.9"), "{:?}", errors(&output));
}

#[test]
fn a_stuck_monitor_holds_nobody_up() {
    let folder = Folder::new();
    stand_in(&folder, Manner::Stuck);
    // It stays stuck: who waited for it would wait still.
    let output = sd(&folder, &["run", "echo", "ran"]).output().unwrap();
    assert_eq!(stdout(&output), "ran\n");
    assert_eq!(errors(&output).len(), 1);
}

/// The line of /proc/self/status of a program under `sd run`, SIGPIPE ignored or not by our caller.
fn signal_line(folder: &Folder, ignored: bool) -> String {
    let mut command = sd(folder, &["run", "--no-start", "--", "grep", "SigIgn", "/proc/self/status"]);
    // SAFETY: one system call between fork and exec.
    unsafe {
        command.pre_exec(move || {
            libc::signal(libc::SIGPIPE, if ignored { libc::SIG_IGN } else { libc::SIG_DFL });
            Ok(())
        });
    }
    stdout(&command.output().unwrap())
}

#[test]
fn signal_dispositions_are_handed_on() {
    let folder = Folder::new();
    let bit = 1u64 << (libc::SIGPIPE - 1);
    for ignored in [false, true] {
        let line = signal_line(&folder, ignored);
        let mask = u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap();
        assert_eq!(mask & bit != 0, ignored, "{line}");
    }
}

#[test]
fn descriptors_are_handed_on() {
    let folder = Folder::new();
    stand_in(&folder, Manner::Tells(good_status()));
    let plain = Command::new("ls").arg("/proc/self/fd").stdin(Stdio::null()).output().unwrap();
    let ours = sd(&folder, &["run", "ls", "/proc/self/fd"]).output().unwrap();
    assert_eq!(stdout(&ours), stdout(&plain));
    let mut closed = sd(&folder, &["run", "sh", "-c", "[ -e /proc/self/fd/0 ] && echo open || echo closed"]);
    // SAFETY: one system call between fork and exec.
    unsafe {
        closed.pre_exec(|| {
            libc::close(0);
            Ok(())
        });
    }
    assert_eq!(stdout(&closed.output().unwrap()), "closed\n");
}

#[test]
fn standard_input_is_the_programs() {
    let folder = Folder::new();
    let mut command = sd(&folder, &["run", "--no-start", "cat"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"through");
}

/// Several starters at once: one monitor, and no child of the program that it does not know of.
#[test]
fn a_monitor_is_started_once_and_belongs_to_nobody() {
    let folder = Folder::new();
    let script = "for child in $(cat /proc/$$/task/$$/children); do echo $child; done";
    let start = || sd(&folder, &["run", "--", "sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let children: Vec<_> = (0..4).map(|_| start()).collect();
    let outputs: Vec<_> = children.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
    let status = sd(&folder, &["ss", "--json"]).output().unwrap();
    let status: serde_json::Value = serde_json::from_str(&stdout(&status)).unwrap();
    let monitor = status["monitor"]["pid"].as_i64().unwrap() as i32;
    // SAFETY: the monitor that this test started.
    assert_eq!(unsafe { libc::kill(monitor, libc::SIGTERM) }, 0);
    for output in outputs {
        assert!(output.status.success());
        assert_eq!(errors(&output), Vec::<String>::new());
        // The shell's only child is the `cat` that it has waited for.
        assert!(stdout(&output).lines().count() <= 1, "{}", stdout(&output));
    }
    let end = Instant::now() + Duration::from_secs(5);
    while folder.join("monitor.sock").exists() {
        assert!(Instant::now() < end, "the monitor does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The dynamic linker preloads nothing into a program that its exec gives rights; `sd run` says so, once.
#[test]
fn programs_that_gain_rights_are_named() {
    let folder = Folder::new();
    stand_in(&folder, Manner::Tells(good_status()));
    let program = folder.join("echo");
    std::fs::copy("/bin/echo", &program).unwrap();
    // Only root can give files away.
    if std::os::unix::fs::chown(&program, Some(2003), Some(2003)).is_err() {
        return;
    }
    let mode = |mode| std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).unwrap();
    for (bits, lines) in [(0o4755, 1), (0o2755, 1), (0o755, 0)] {
        mode(bits);
        let output = sd(&folder, &["run", "--", program.to_str().unwrap(), "ran"]).output().unwrap();
        assert_eq!(stdout(&output), "ran\n");
        assert_eq!(errors(&output).len(), lines, "{bits:o}: {:?}", errors(&output));
        assert!(
            errors(&output).iter().all(|line| line.ends_with("over the kernel")),
            "{:?}",
            errors(&output)
        );
    }
}

/// A socket that others could have put there is not used, and the warning says why.
#[test]
fn a_place_that_others_can_change_is_named() {
    let folder = Folder::new();
    stand_in(&folder, Manner::Tells(good_status()));
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
    let output = sd(&folder, &["run", "--", "echo", "ran"]).output().unwrap();
    assert_eq!(stdout(&output), "ran\n");
    let expected = format!("{}: can be changed by others", folder.path().display());
    assert!(errors(&output).len() == 1 && errors(&output)[0].contains(&expected), "{:?}", errors(&output));
}

/// A static program that the library is not brought into runs, and the warning says why. It is `exit(7)`, as no compiler makes it.
#[cfg(target_arch = "x86_64")]
#[test]
fn static_programs_that_are_left_alone_are_named() {
    const GLIBC: &[u8] = b"\x04\0\0\0\x10\0\0\0\x01\0\0\0GNU\0";
    const OTHER: &[u8] = b"\x04\0\0\0\0\0\0\0\x01\0\0\0abc\0";
    const CODE: &[u8] = &[0x31, 0xff, 0xb0, 60, 0x40, 0xb7, 7, 0x0f, 0x05];
    // And `wrgsbase %rax` behind it.
    const GS: &[u8] = &[0x31, 0xff, 0xb0, 60, 0x40, 0xb7, 7, 0x0f, 0x05, 0xf3, 0x48, 0x0f, 0xae, 0xd8, 0xc3];
    let folder = Folder::new();
    stand_in(&folder, Manner::Tells(good_status()));
    let program = folder.join("program");
    let (read, write, execute) = (libc::PF_R, libc::PF_W, libc::PF_X);
    for (note, flags, code, reason) in [
        (GLIBC, read | execute, CODE, "may be a system call, or not"),
        (OTHER, read | write | execute, CODE, "both written and executed"),
        (OTHER, read | execute, CODE, "may be a system call, or not"),
        (OTHER, read | execute, GS, "takes the register GS"),
    ] {
        std::fs::write(&program, elf(note, flags, code)).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let output = sd(&folder, &["run", "--", program.to_str().unwrap()]).output().unwrap();
        assert_eq!(output.status.code(), Some(7), "{reason}");
        let said = errors(&output);
        assert!(said.len() == 1 && said[0].contains(reason), "{reason}: {said:?}");
    }
}

/// A program of 64 bits (elf(5)) with one segment, all of the file, and a note in it.
#[cfg(target_arch = "x86_64")]
fn elf(note: &[u8], flags: u32, code: &[u8]) -> Vec<u8> {
    const ADDRESS: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 2 * 56;
    let len = HEADERS + (note.len() + code.len()) as u64;
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    // ET_EXEC for x86-64; then the entry, the table of segments, and how long the parts are.
    for (value, bytes) in
        [(2, 2), (62, 2), (1, 4), (ADDRESS + HEADERS + note.len() as u64, 8), (64, 8), (0, 8)]
            .into_iter()
            .chain([(0, 4), (64, 2), (56, 2), (2, 2), (64, 2), (0, 2), (0, 2)])
    {
        file.extend(&u64::to_le_bytes(value)[..bytes]);
    }
    for (kind, flags, at, len) in
        [(libc::PT_LOAD, flags, 0, len), (libc::PT_NOTE, libc::PF_R, HEADERS, note.len() as u64)]
    {
        file.extend([kind, flags].iter().flat_map(|word| word.to_le_bytes()));
        file.extend(
            [at, ADDRESS + at, ADDRESS + at, len, len, 4096].iter().flat_map(|word| word.to_le_bytes()),
        );
    }
    [&file[..], note, code].concat()
}
