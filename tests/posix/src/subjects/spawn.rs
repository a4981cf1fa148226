//! posix_spawn, system, popen: programs that libc starts, with sockets of their starter.

use std::ffi::CString;
use std::mem::MaybeUninit;

use super::exec::ask;
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("spawn/inherited_stream", inherited_stream),
    solo("spawn/on_standard_input", on_standard_input),
    solo("spawn/searched", searched),
    solo("spawn/attributes", attributes),
    solo("spawn/actions", actions),
    solo("spawn/failure", failure),
    solo("spawn/popen_reads", popen_reads),
    solo("spawn/popen_writes", popen_writes),
    solo("spawn/system_status", system_status),
];

/// What a program is started with; read by posix_spawn only.
struct Plan {
    actions: libc::posix_spawn_file_actions_t,
    attributes: libc::posix_spawnattr_t,
}

impl Plan {
    fn new() -> Plan {
        // SAFETY: both objects are initialised by libc.
        unsafe {
            let mut plan: Plan = MaybeUninit::zeroed().assume_init();
            libc::posix_spawn_file_actions_init(&mut plan.actions);
            libc::posix_spawnattr_init(&mut plan.attributes);
            plan
        }
    }

    fn dup2(mut self, from: i32, to: i32) -> Plan {
        // SAFETY: an initialised list.
        unsafe { libc::posix_spawn_file_actions_adddup2(&mut self.actions, from, to) };
        self
    }

    fn close(mut self, fd: i32) -> Plan {
        // SAFETY: as above.
        unsafe { libc::posix_spawn_file_actions_addclose(&mut self.actions, fd) };
        self
    }

    /// Starts a program; its process id.
    fn start(&mut self, path: &str, words: &[&str], is_searched: bool) -> Result<i32, i32> {
        let [path, words @ ..] =
            &[path].iter().chain(words).map(|w| CString::new(*w).expect("no NUL")).collect::<Vec<_>>()[..]
        else {
            return Err(0);
        };
        let argv: Vec<*mut libc::c_char> =
            words.iter().map(|w| w.as_ptr().cast_mut()).chain([std::ptr::null_mut()]).collect();
        let mut pid = 0;
        let start = if is_searched { libc::posix_spawnp } else { libc::posix_spawn };
        // SAFETY: initialised objects, and strings that live until the call returns.
        let errno = unsafe {
            start(&mut pid, path.as_ptr(), &self.actions, &self.attributes, argv.as_ptr(), environ.cast())
        };
        if errno == 0 { Ok(pid) } else { Err(errno) }
    }

    fn helper(&mut self, what: &str, fds: &[i32]) -> Result<i32, i32> {
        let fds: Vec<String> = fds.iter().map(i32::to_string).collect();
        let words: Vec<&str> =
            ["sd-posix", "helper", what].into_iter().chain(fds.iter().map(String::as_str)).collect();
        self.start("/proc/self/exe", &words, false)
    }
}

unsafe extern "C" {
    pub(super) static environ: *const *const libc::c_char;
}

fn wait(started: Result<i32, i32>) -> String {
    started.map_or_else(|errno| format!("not started: {}", errno_name(errno)), wait_child)
}

fn inherited_stream() {
    let pair = connected();
    let started = Plan::new().close(pair.client).helper("upper", &[pair.server]);
    close(pair.server);
    let answers = ["one", "two"].map(|word| ask(pair.client, word));
    shutdown(pair.client, libc::SHUT_WR);
    say!("program: {}", wait(started));
    say!("answers {answers:?}");
    await_readable(pair.client);
    show_recv("client", pair.client, 32, 0);
}

fn on_standard_input() {
    let pair = connected();
    fcntl(pair.server, libc::F_SETFD, libc::FD_CLOEXEC);
    fcntl(pair.client, libc::F_SETFD, libc::FD_CLOEXEC);
    let started = Plan::new().dup2(pair.server, 0).helper("upper", &[0]);
    close(pair.server);
    let answer = ask(pair.client, "on standard input");
    close(pair.client);
    say!("program: {}", wait(started));
    say!("answer {answer}");
}

fn searched() {
    let pair = connected();
    let mut plan =
        Plan::new().dup2(pair.server, 0).dup2(pair.server, 1).close(pair.client).close(pair.server);
    let started = plan.start("cat", &["cat"], true);
    close(pair.server);
    show_send("client", pair.client, b"through cat", 0);
    shutdown(pair.client, libc::SHUT_WR);
    say!("cat: {}", wait(started));
    await_readable(pair.client);
    show_recv("client", pair.client, 32, 0);
    await_events(pair.client, libc::POLLRDHUP);
    show_recv("client", pair.client, 32, 0);
}

/// A session of its own, default signals, an empty mask.
fn attributes() {
    let pair = connected();
    let mut plan = Plan::new().dup2(pair.server, 1);
    // SAFETY: initialised objects.
    unsafe {
        let mut set = MaybeUninit::uninit();
        libc::sigemptyset(set.as_mut_ptr());
        libc::posix_spawnattr_setsigmask(&mut plan.attributes, set.as_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGPIPE);
        libc::posix_spawnattr_setsigdefault(&mut plan.attributes, set.as_ptr());
        let flags = libc::POSIX_SPAWN_SETSIGDEF | libc::POSIX_SPAWN_SETSIGMASK | 0x80;
        libc::posix_spawnattr_setflags(&mut plan.attributes, flags as libc::c_short);
    }
    let script = "test $(cut -d' ' -f6 /proc/self/stat) = $$ && echo session; grep -E 'Sig(Blk|Ign)' /proc/self/status";
    let started = plan.start("sh", &["sh", "-c", script], true);
    close(pair.server);
    say!("sh: {}", wait(started));
    await_bytes(pair.client, 58);
    show_recv("client", pair.client, 100, 0);
}

fn actions() {
    let pair = connected();
    let mut plan = Plan::new();
    // SAFETY: an initialised list and C strings.
    unsafe {
        libc::posix_spawn_file_actions_addopen(
            &mut plan.actions,
            0,
            c"/dev/null".as_ptr(),
            libc::O_RDONLY,
            0,
        );
        libc::posix_spawn_file_actions_addopen(
            &mut plan.actions,
            30,
            c"/dev/zero".as_ptr(),
            libc::O_RDONLY,
            0,
        );
    }
    let mut plan = plan.dup2(pair.server, pair.server).dup2(pair.server, 31).close(pair.client).close(500);
    say!("program: {}", wait(plan.helper("describe", &[0, 30, 31, pair.server, pair.client])));
    show_send("server", pair.server, b"still here", 0);
    show_recv("client", pair.client, 32, 0);
}

fn failure() {
    let pair = connected();
    say!("no such program: {}", wait(Plan::new().start("/nonexistent", &["x"], false)));
    say!("no such program: {}", wait(Plan::new().start("no-such-program", &["x"], true)));
    say!("not a program: {}", wait(Plan::new().start("/etc/passwd", &["x"], false)));
    say!("bad action: {}", wait(Plan::new().dup2(99, 0).start("/bin/true", &["true"], false)));
    show_send("server", pair.server, b"still here", 0);
    show_recv("client", pair.client, 32, 0);
    show_send("client", pair.client, b"and back", 0);
    show_recv("server", pair.server, 32, 0);
}

fn popen_reads() {
    let pair = connected();
    let low = dup2(pair.server, 9).fd();
    // SAFETY: C strings; the stream is closed below.
    let (line, status) = unsafe {
        let stream = libc::popen(c"echo to the socket >&9; echo to the pipe".as_ptr(), c"r".as_ptr());
        let mut buffer = [0u8; 64];
        let got = libc::fread(buffer.as_mut_ptr().cast(), 1, 64, stream);
        (text(&buffer[..got]), libc::pclose(stream))
    };
    say!("pipe: {line} status {status}");
    await_bytes(pair.client, 14);
    show_recv("client", pair.client, 64, 0);
    close(low);
}

fn popen_writes() {
    let pair = connected();
    let low = dup2(pair.server, 9).fd();
    // SAFETY: C strings; the streams are closed below.
    let statuses = unsafe {
        let first = libc::popen(c"cat >&9".as_ptr(), c"w".as_ptr());
        let second = libc::popen(c"cat >/dev/null; exit 3".as_ptr(), c"we".as_ptr());
        libc::fputs(c"from the first".as_ptr(), first);
        // The second shell must not keep the first one's pipe.
        (libc::pclose(first), libc::WEXITSTATUS(libc::pclose(second)))
    };
    say!("statuses {statuses:?}");
    await_bytes(pair.client, 14);
    show_recv("client", pair.client, 64, 0);
    close(low);
}

fn system_status() {
    let pair = connected();
    let statuses = [c"exit 3", c"kill -9 $$", c"no-such-command 2>/dev/null", c"true"]
        // SAFETY: C strings.
        .map(|command| unsafe { libc::system(command.as_ptr()) });
    say!("statuses {statuses:?}");
    show_send("client", pair.client, b"after", 0);
    show_recv("server", pair.server, 32, 0);
}
