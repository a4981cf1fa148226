//! Processes that may start no other one (RLIMIT_NPROC, pids.max) give their connections away, and let go of rights.

use super::exec::{ask, exec_stranger};
use super::odd::inode;
use super::others::{pass, take};
use super::pass::{answer_in_upper_case, receiver};
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("no_forks/pass", pass_one),
    solo("no_forks/pass_as_another_user", pass_as_another_user),
    solo("no_forks/pass_under_pids_max", pass_under_pids_max),
    solo("no_forks/pass_in_a_pid_namespace", pass_in_a_pid_namespace),
    solo("no_forks/pass_many", pass_many),
    solo("no_forks/pass_bulk", pass_bulk),
    solo("no_forks/pass_under_a_filter", pass_under_a_filter),
    solo("no_forks/exec", exec),
    solo("no_forks/drop_rights", drop_rights),
    solo("no_forks/inode_arrives", inode_arrives),
    solo("no_forks/in_an_empty_network", in_an_empty_network),
    solo("no_forks/inode_of_server", || inode_by_each_name(connected().server)),
    solo("no_forks/inode_of_client", || inode_by_each_name(connected().client)),
];

const USER: libc::uid_t = 4711;

/// Root, and who has its capabilities, may have as many processes as it likes. Silent, where a parent prints at the same time.
fn forbid_forks(user: libc::uid_t) {
    call!(libc::setresuid(USER, user, user));
    let (header, none) = ([0x2008_0522u32, 0], [0u32; 6]);
    call!(libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()));
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    call!(libc::setrlimit(libc::RLIMIT_NPROC, &raw const none));
}

/// The connection is passed, and whoever has it then can use it.
fn pass_after(forbid: impl FnOnce()) {
    let (child, to) = receiver(answer_in_upper_case);
    let pair = connected();
    forbid();
    show("pass", pass(to, pair.server));
    close(to);
    close(pair.server);
    say!("answer {}", ask(pair.client, "word"));
    show_recv("client", pair.client, 16, 0);
    say!("receiver: {}", wait_child(child));
}

fn pass_one() {
    pass_after(|| forbid_forks(0));
}

fn pass_as_another_user() {
    pass_after(|| forbid_forks(USER));
}

/// As in a container: processes have other numbers there than where the monitor is.
fn pass_in_a_pid_namespace() {
    call!(libc::unshare(libc::CLONE_NEWPID));
    let child = fork_child(|| {
        pass_after(|| forbid_forks(USER));
        0
    });
    say!("child: {}", wait_child(child));
}

/// The process may start no other one, and has all its rights: it is alone in a cgroup of the pids controller (v1 or v2)
/// that allows one. Where there is none, as above.
fn forbid_forks_by_cgroup() {
    let root = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"]
        .into_iter()
        .find(|root| std::path::Path::new(&format!("{root}/cgroup.procs")).exists())
        .unwrap_or("/nowhere");
    let folder = format!("{root}/sd-posix-{}", std::process::id());
    let is_limited = std::fs::create_dir(&folder).is_ok()
        && std::fs::write(format!("{folder}/pids.max"), "1").is_ok()
        && std::fs::write(format!("{folder}/cgroup.procs"), "0").is_ok();
    if !is_limited {
        forbid_forks(USER);
    }
}

fn leave_cgroup(pid: i32) {
    for root in ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"] {
        let _ = std::fs::write(format!("{root}/cgroup.procs"), "0");
        let _ = std::fs::remove_dir(format!("{root}/sd-posix-{pid}"));
    }
}

fn pass_under_pids_max() {
    pass_after(|| {
        forbid_forks_by_cgroup();
        show("fork", call!(libc::fork()));
    });
    leave_cgroup(std::process::id() as i32);
}

/// A filter that refuses new processes.
fn pass_under_a_filter() {
    let op = |code: u32, jt: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let mut program = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        op(equal, 3, libc::SYS_clone as u32),
        op(equal, 2, old_calls::SYS_fork as u32),
        op(equal, 1, libc::SYS_clone3 as u32),
        op(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
        op(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
    ];
    pass_after(|| {
        let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        show("no_new_privs", call!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)));
        show(
            "filter",
            call!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)),
        );
    });
}

/// One after the other, all open at once.
fn pass_many() {
    const MANY: usize = 12;
    let (_, [here, there]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    let child = fork_child(|| {
        close(here);
        let all: Vec<i32> = (0..MANY).map(|_| take(there).1).collect();
        all.into_iter().for_each(answer_in_upper_case);
        0
    });
    close(there);
    let pairs: Vec<_> = (0..MANY).map(|_| connected()).collect();
    forbid_forks(USER);
    let passed = pairs.iter().filter(|pair| pass(here, pair.server).ok()).count();
    say!("passed {passed}");
    for pair in &pairs {
        close(pair.server);
    }
    let answers = pairs.iter().filter(|pair| ask(pair.client, "each") == "EACH").count();
    say!("answers {answers}, child: {}", wait_child(child));
}

/// Much data both ways, and the end of each; the sender has ended.
fn pass_bulk() {
    let (child, to) = receiver(|fd| {
        let mut buffer = vec![0; 50_000];
        loop {
            let got = recv(fd, &mut buffer, 0).count();
            if got == 0 || !send_everything(fd, &buffer[..got]) {
                break;
            }
        }
    });
    let pair = connected();
    let sender = fork_child(|| {
        close(pair.client);
        forbid_forks_by_cgroup();
        i32::from(!pass(to, pair.server).ok())
    });
    close(to);
    close(pair.server);
    say!("sender: {}", wait_child(sender));
    leave_cgroup(sender);
    let data: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
    let back = std::thread::scope(|scope| {
        scope.spawn(|| {
            send_everything(pair.client, &data);
            shutdown(pair.client, libc::SHUT_WR);
        });
        let (mut back, mut buffer) = (Vec::new(), vec![0; 70_000]);
        loop {
            let got = recv(pair.client, &mut buffer, 0).count();
            if got == 0 {
                return back;
            }
            back.extend_from_slice(&buffer[..got]);
        }
    });
    say!("the same {}, child: {}", back == data, wait_child(child));
}

fn send_everything(fd: i32, data: &[u8]) -> bool {
    let mut at = 0;
    while at < data.len() {
        let sent = send(fd, &data[at..], libc::MSG_NOSIGNAL);
        if sent.value <= 0 {
            return false;
        }
        at += sent.count();
    }
    true
}

/// A program that does not load the library gets the connection.
fn exec() {
    let pair = connected();
    let child = fork_child(|| {
        close(pair.client);
        forbid_forks_by_cgroup();
        exec_stranger("upper", &[pair.server])
    });
    close(pair.server);
    let answers = ["first", "second"].map(|word| ask(pair.client, word));
    shutdown(pair.client, libc::SHUT_WR);
    say!("child: {}", wait_child(child));
    leave_cgroup(child);
    say!("answers {answers:?}");
    await_readable(pair.client);
    show_recv("client", pair.client, 32, 0);
}

/// A child that may not fork becomes another user, and has its connection still; so has its parent.
fn drop_rights() {
    let pair = connected();
    let child = fork_child(|| {
        close(pair.client);
        forbid_forks_by_cgroup();
        let changed = call!(libc::setresuid(USER, USER, USER)).ok();
        answer_in_upper_case(pair.server);
        i32::from(!changed)
    });
    say!("answer {}, child: {}", ask(pair.client, "to the child"), wait_child(child));
    leave_cgroup(child);
    send(pair.server, b"from the parent", 0);
    show_recv("client", pair.client, 32, 0);
}

/// Who has told a receiver of the socket's inode is believed: Dovecot compares it.
fn inode_arrives() {
    let (_, [here, there]) = socketpair(libc::AF_UNIX, libc::SOCK_STREAM);
    let child = fork_child(|| {
        close(here);
        let (_, fd) = take(there);
        let mut told = [0; 8];
        recv(fd, &mut told, 0);
        i32::from(inode(fd).to_ne_bytes() != told)
    });
    close(there);
    let pair = connected();
    let first = inode(pair.server);
    say!("for life {}", inode(pair.server) == first);
    forbid_forks(USER);
    show("pass", pass(here, pair.server));
    close(pair.server);
    show("tell", send(pair.client, &first.to_ne_bytes(), 0));
    say!("child: {}", wait_child(child));
}

/// A child gives rights up where no loopback interface is up, as vsftpd's do.
fn in_an_empty_network() {
    let pair = connected();
    let child = fork_child(|| {
        close(pair.client);
        call!(libc::unshare(libc::CLONE_NEWNET));
        let changed = call!(libc::setresuid(USER, USER, USER)).ok();
        answer_in_upper_case(pair.server);
        i32::from(!changed)
    });
    say!("answer {}, child: {}", ask(pair.client, "to the child"), wait_child(child));
}

unsafe extern "C" {
    fn __fxstat(version: i32, fd: i32, found: *mut libc::stat) -> i32;
    fn __fxstat64(version: i32, fd: i32, found: *mut libc::stat) -> i32;
    fn __fxstatat(v: i32, dir: i32, path: *const libc::c_char, found: *mut libc::stat, flags: i32) -> i32;
    fn __fxstatat64(v: i32, dir: i32, path: *const libc::c_char, found: *mut libc::stat, flags: i32) -> i32;
}

/// Each call that tells of a file tells of the same one.
fn inode_by_each_name(fd: i32) {
    // SAFETY: all-zero bytes are valid for both.
    let (mut found, mut more): (libc::stat, libc::statx) = unsafe { std::mem::zeroed() };
    let (path, empty) = (c"".as_ptr(), libc::AT_EMPTY_PATH);
    let first = inode(fd);
    let at = &raw mut found;
    show("fchmod", call!(libc::fchmod(fd, 0o640)));
    show("fchown", call!(libc::fchown(fd, u32::MAX, u32::MAX)));
    show("fstat64", call!(libc::fstat64(fd, at.cast())));
    show("__fxstat", call!(__fxstat(1, fd, at)));
    show("__fxstat64", call!(__fxstat64(1, fd, at)));
    show("fstatat", call!(libc::fstatat(fd, path, at, empty)));
    show("fstatat64", call!(libc::fstatat64(fd, path, at.cast(), empty)));
    show("__fxstatat", call!(__fxstatat(1, fd, path, at, empty)));
    show("__fxstatat64", call!(__fxstatat64(1, fd, path, at, empty)));
    show("statx", call!(libc::statx(fd, path, empty, libc::STATX_INO, &raw mut more)));
    say!("the same {} {}", found.st_ino == first, more.stx_ino == first);
}
