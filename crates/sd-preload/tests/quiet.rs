//! Which programs are executed without the library, and what those see (ADR 90).

mod common;

use common::run;

/// What a command of dash's prints, which has the library; dash itself does not matter.
fn in_shell(script: &str) -> String {
    // Cargo sets it.
    let script = format!("unset LD_LIBRARY_PATH; {script}");
    let output = run(&["dash", "-c", &script], true);
    assert!(output.status.success(), "{script}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn loads(command: &str) -> bool {
    in_shell(&format!("{command} | cat; :")).contains("libsd.so")
}

#[test]
fn a_program_that_makes_no_socket_is_without_it() {
    assert!(!loads("cat /proc/self/maps"));
    assert!(!loads("/bin/cat /proc/self/maps"));
    assert!(!loads("tail -n +1 /proc/self/maps"));
    let spawn = "import os; pid = os.%s('cat', ['cat', '/proc/self/maps'], os.environ); os.waitpid(pid, 0)";
    let spawn = |call| loads(&format!("python3 -c \"{}\"", spawn.replace("%s", call)));
    assert!(!spawn("posix_spawnp"));
    let exec = "python3 -c \"import os; os.execvp('cat', ['cat', '/proc/self/maps'])\"";
    assert!(!loads(exec));
}

#[test]
fn others_have_it() {
    assert!(loads(
        "bash -c 'read -r line < /proc/self/environ; mapfile -t all < /proc/self/maps; echo ${all[@]}'"
    ));
    assert!(loads("python3 -c \"print(open('/proc/self/maps').read())\""));
    assert!(loads("LD_BIND_NOW=1 cat /proc/self/maps"));
    assert!(loads("LD_LIBRARY_PATH=/nonexistent cat /proc/self/maps"));
    // The other library is behind ours, and may need it.
    assert!(loads("LD_PRELOAD=$LD_PRELOAD:/nonexistent.so cat /proc/self/maps 2>/dev/null"));
    // A number is not to be taken beside other threads.
    let beside = "import os, threading; threading.Thread(target=threading.Event().wait, daemon=True).start(); \
        pid = os.posix_spawnp('cat', ['cat', '/proc/self/maps'], os.environ); os.waitpid(pid, 0)";
    assert!(loads(&format!("python3 -c \"{beside}\"")));
}

#[test]
fn the_environment_looks_the_same() {
    let listed = in_shell("env | grep ^LD_; printenv | grep -c ^LD_");
    let library = common::library();
    assert_eq!(listed, format!("LD_PRELOAD={}\n1\n", library.display()));
    // Asks getenv(3), and nothing else.
    if run(&["envsubst", "--version"], false).status.success() {
        assert!(!loads("envsubst < /proc/self/maps"));
        let told = in_shell("echo '$LD_PRELOAD $SD_MONITOR' | envsubst");
        assert_eq!(told, format!("{} /nonexistent/monitor.sock\n", library.display()));
    }
}
