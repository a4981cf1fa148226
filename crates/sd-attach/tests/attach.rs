//! A library is brought into static programs, which find of themselves what they would find without it.
//!
//! `examples/attach_caller.rs` makes the tracer and execs, in one of several ways; `program.c` says what it finds,
//! `library.c` what it is given. The oracle is the same caller without a tracer (`-` for a library).
#![cfg(target_arch = "x86_64")]

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const LIBRARY: &str = "sd-attach-library";
const STATIC: &str = "program-static";
const DYNAMIC: &str = "program-dynamic";
/// Nobody's child that could be waited for.
const GONE: &str = "library: tracer has gone\n";

/// Compiles what is executed, once, and says where it is.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let compile = |source: &str, name: &str, flags: &[&str]| {
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(source);
            let mut command = Command::new("cc");
            command.arg("-O1").args(flags).arg(source).arg("-o").arg(folder.join(name));
            assert!(command.status().unwrap().success(), "{command:?}");
        };
        compile(
            "library.c",
            LIBRARY,
            &["-static-pie", "-nostdlib", "-ffreestanding", "-fno-stack-protector", "-fPIE"],
        );
        compile("program.c", STATIC, &["-static"]);
        compile("program.c", DYNAMIC, &[]);
        folder
    })
}

/// What the caller and the program say on standard output, and the code that they end with. `library` and `program`:
/// names of files in the folder, or paths.
fn outcome(way: &str, library: &str, program: &str) -> (String, Option<i32>) {
    let test = std::env::current_exe().unwrap();
    let caller = test.parent().and_then(Path::parent).unwrap().join("examples/attach_caller");
    let library = if library == "-" { PathBuf::from(library) } else { folder().join(library) };
    let program = folder().join(program);
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "60"]).arg(caller).arg(way).arg(library).arg(program).args(["one", "two"]);
    let output = command.env("WORD", "a word").output().unwrap();
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    (String::from_utf8(output.stdout).unwrap(), output.status.code())
}

/// What is to be seen where there is a library: all that is seen without it, and the library.
fn with_library(way: &str, program: &str, first: &str) -> (String, Option<i32>) {
    let (without, code) = outcome(way, "-", program);
    assert!(without.contains("library mapped 0"), "{without}");
    (first.to_owned() + &without.replace("library mapped 0", "library mapped 1"), code)
}

/// What is to be seen of a program that the tracer has left alone: nothing else.
fn as_without(way: &str, program: &str) -> (String, Option<i32>) {
    let (without, code) = outcome(way, "-", program);
    assert!(without.contains("children -1 none"), "{without}");
    (without, code)
}

#[test]
fn the_library_comes_first_and_all_else_is_as_without_it() {
    for way in ["plainly", "in-fork", "in-vfork", "with-pending", "stopped", "in-a-storm"] {
        let expected = with_library(way, STATIC, GONE);
        assert_eq!(outcome(way, LIBRARY, STATIC), expected, "{way}");
        assert_eq!(expected.1, Some(7));
    }
}

#[test]
fn any_thread_may_exec() {
    assert_eq!(outcome("in-a-thread", LIBRARY, STATIC), with_library("in-a-thread", STATIC, GONE));
}

#[test]
fn blocked_and_ignored_signals_stay_as_they_are() {
    for way in ["with-blocked", "with-ignored"] {
        assert_eq!(outcome(way, LIBRARY, STATIC), with_library(way, STATIC, GONE), "{way}");
    }
}

/// The tracer's end is a SIGCHLD there.
#[test]
fn who_gets_orphans_waits_for_the_tracer() {
    let expected = with_library("as-the-reaper", STATIC, "library: tracer has ended\n");
    assert_eq!(outcome("as-the-reaper", LIBRARY, STATIC), expected);
}

#[test]
fn a_large_caller_pays_nothing() {
    assert_eq!(outcome("large", LIBRARY, STATIC), with_library("large", STATIC, GONE));
}

#[test]
fn a_dynamic_program_is_left_alone() {
    for way in ["plainly", "in-a-thread"] {
        assert_eq!(outcome(way, LIBRARY, DYNAMIC), as_without(way, DYNAMIC), "{way}");
    }
}

#[test]
fn what_fails_in_the_program_is_undone() {
    for way in ["unwritable", "unmappable"] {
        assert_eq!(outcome(way, LIBRARY, STATIC), as_without(way, STATIC), "{way}");
    }
}

#[test]
fn an_exec_that_fails_leaves_nothing() {
    let missing = "no such program\n".repeat(2);
    assert_eq!(outcome("in-vain", LIBRARY, "no-program"), (missing, Some(0)));
}

#[test]
fn a_tracer_that_is_killed_is_none() {
    assert_eq!(outcome("killed", LIBRARY, STATIC), as_without("killed", STATIC));
}

#[test]
fn another_threads_exec_is_left_alone() {
    for way in ["elsewhere", "elsewhere-by-leader"] {
        assert_eq!(outcome(way, LIBRARY, STATIC), as_without(way, STATIC), "{way}");
    }
}

/// Those of the caller's that do not return a tracer; then it execs without.
#[test]
fn what_refuses_is_an_error() {
    let (plain, code) = outcome("plainly", "-", STATIC);
    let refused = |errno: i32| (format!("Errno({errno})\n{plain}"), code);
    assert_eq!(outcome("refused", "no-library", STATIC), refused(libc::ENOENT));
    assert_eq!(outcome("refused", "../tmp", STATIC), refused(libc::EISDIR));
    assert_eq!(outcome("refused", STATIC, STATIC), refused(libc::ENOEXEC));
    assert_eq!(outcome("refused", DYNAMIC, STATIC), refused(libc::ENOEXEC));
    assert_eq!(outcome("refused", "/proc/version", STATIC), refused(libc::ENOEXEC));
    let (long, name) = ("x/".repeat(2100), libc::ENAMETOOLONG);
    assert_eq!(outcome("refused", &long, STATIC), refused(name));
    assert_eq!(outcome("filtered", LIBRARY, STATIC), refused(libc::EACCES));
    assert_eq!(outcome("killed-by-filter", LIBRARY, STATIC), refused(libc::ESRCH));
}

#[test]
fn a_second_tracer_is_refused() {
    let (expected, code) = with_library("plainly", STATIC, &format!("Err(Errno({}))\n{GONE}", libc::EPERM));
    assert_eq!(outcome("twice", LIBRARY, STATIC), (expected, code));
}

/// The tracer would be the first process there, and the namespace would end with it: the program could make none.
#[test]
fn a_new_pid_namespace_gets_no_tracer() {
    if !is_root() {
        return;
    }
    let (plain, code) = outcome("plainly", "-", STATIC);
    let expected = format!("Errno({})\n{plain}", libc::EOPNOTSUPP);
    assert_eq!(outcome("in-new-namespace", LIBRARY, STATIC), (expected, code));
}

#[test]
fn a_library_that_is_replaced_meanwhile_is_none() {
    let copy = "sd-attach-library-copy";
    std::fs::copy(folder().join(LIBRARY), folder().join(copy)).unwrap();
    assert_eq!(outcome("replaced", copy, STATIC), as_without("replaced", STATIC));
}

/// Copies where everybody can go.
struct Open(PathBuf);

impl Open {
    fn new(name: &str) -> Open {
        let open = std::env::temp_dir().join(format!("sd-attach-{name}-{}", std::process::id()));
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, Permissions::from_mode(0o755)).unwrap();
        Open(open)
    }

    /// `owner`, if it is not this user.
    fn copy(&self, name: &str, owner: Option<u32>, mode: u32) -> String {
        let to = self.0.join(format!("{name}-{mode:o}"));
        std::fs::copy(folder().join(name), &to).unwrap();
        std::os::unix::fs::chown(&to, owner, None).unwrap();
        std::fs::set_permissions(&to, Permissions::from_mode(mode)).unwrap();
        to.to_str().unwrap().to_owned()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn is_root() -> bool {
    // SAFETY: no pointers.
    unsafe { libc::geteuid() == 0 }
}

#[test]
fn another_user_may_if_it_could_be_debugged() {
    if !is_root() {
        return;
    }
    let open = Open::new("user");
    let (library, program) = (open.copy(LIBRARY, None, 0o755), open.copy(STATIC, None, 0o755));
    assert_eq!(outcome("as-nobody", &library, &program), with_library("as-nobody", &program, GONE));
    let (plain, code) = outcome("undumpable", "-", &program);
    let refused = (format!("Errno({})\n{plain}", libc::EPERM), code);
    assert_eq!(outcome("undumpable", &library, &program), refused);
    let unreadable = open.copy(STATIC, None, 0o711);
    // Its memory is not to be read, unless the machine says so of all programs (proc_sys_fs(5), "suid_dumpable").
    let is_readable = std::fs::read_to_string("/proc/sys/fs/suid_dumpable").unwrap().trim() == "1";
    let expected = match is_readable {
        true => with_library("as-nobody", &unreadable, GONE),
        false => as_without("as-nobody", &unreadable),
    };
    assert_eq!(outcome("as-nobody", &library, &unreadable), expected);
}

/// To root's tracer the kernel leaves them.
#[test]
fn a_program_that_has_been_given_rights_is_left_alone() {
    if !is_root() {
        return;
    }
    let open = Open::new("rights");
    let program = open.copy(STATIC, Some(65534), 0o4755);
    let is_given = outcome("plainly", "-", &program).0.contains("secure 1");
    // Not where the file system gives none (nosuid).
    if is_given {
        assert_eq!(outcome("plainly", LIBRARY, &program), as_without("plainly", &program));
    }
}
