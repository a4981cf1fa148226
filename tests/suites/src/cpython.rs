//! CPython's tests of sockets, events, processes and the protocols above, as Debian packages them.
//!
//! `tests/suites/cpython.py` runs a module and writes a line before and after each test. One that hangs or ends the
//! interpreter is noted, and the rest of its module is run without it.

use super::compare::{CRASH, HANG, Outcomes};
use super::stage::Stage;
use super::{Choice, Item};
use harness::{Result, fail, product};
use std::time::Duration;

/// Fast are modules that take a few seconds; slow ones come after them.
const FAST: &[&str] = &[
    "test_epoll",
    "test_select",
    "test_asyncio.test_server",
    "test_asyncio.test_sock_lowlevel",
    "test_asyncio.test_sendfile",
    "test_asyncio.test_streams",
    "test_ftplib",
    "test_smtplib",
    "test_asynchat",
    "test_httplib",
];

const SLOW: &[&str] = &[
    "test_socket",
    "test_selectors",
    "test_poll",
    "test_xmlrpc",
    "test_timeout",
    "test_asyncio.test_base_events",
    "test_asyncio.test_buffered_proto",
    "test_asyncio.test_context",
    "test_asyncio.test_events",
    "test_asyncio.test_futures",
    "test_asyncio.test_futures2",
    "test_asyncio.test_locks",
    "test_asyncio.test_pep492",
    "test_asyncio.test_proactor_events",
    "test_asyncio.test_protocols",
    "test_asyncio.test_queues",
    "test_asyncio.test_runners",
    "test_asyncio.test_selector_events",
    "test_asyncio.test_ssl",
    "test_asyncio.test_sslproto",
    "test_asyncio.test_subprocess",
    "test_asyncio.test_taskgroups",
    "test_asyncio.test_tasks",
    "test_asyncio.test_threads",
    "test_asyncio.test_timeouts",
    "test_asyncio.test_transports",
    "test_asyncio.test_unix_events",
    "test_asyncio.test_waitfor",
    "test_ssl",
    "test_httpservers",
    "test_socketserver",
    "test_smtpd",
    "test_asyncore",
    "test_urllib",
    "test_urllib2",
    "test_urllib2_localnet",
    "test_robotparser",
    "test_docxmlrpc",
    "test_poplib",
    "test_imaplib",
    "test_nntplib",
    "test_telnetlib",
    "test_wsgiref",
    "test_logging",
    "test_concurrent_futures",
    "test_multiprocessing_fork",
    "test_multiprocessing_forkserver",
    "test_multiprocessing_spawn",
    "test_subprocess",
    "test_popen",
    "test_fork1",
    "test_os",
    "test_posix",
    "test_io",
    "test_fcntl",
    "test_ioctl",
    "test_mmap",
    "test_pty",
    "test_openpty",
    "test_resource",
    "test_signal",
    "test_threadsignals",
    "test_eintr",
    "test_file_eintr",
    "test_thread",
    "test_threading",
    "test_queue",
    "test_faulthandler",
];

/// Debian's, whatever else is in the path.
pub(crate) const PYTHON: &str = "/usr/bin/python3.11";

/// The name of what became of a module as a whole.
pub(crate) const MODULE: &str = "(module)";

/// A test that says nothing for so long hangs. The longest of them that pass take half of it on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(90);

/// How many tests of a module may hang or crash.
const RESTARTS: usize = 12;

pub(crate) fn items() -> impl Iterator<Item = Item> {
    let item = |is_fast| {
        move |name: &&'static str| Item {
            suite: "cpython",
            name,
            needs: &["/usr/lib/python3.11/test/test_socket.py"],
            is_fast,
            source: None,
            run,
        }
    };
    FAST.iter().map(item(true)).chain(SLOW.iter().map(item(false)))
}

fn run(stage: &Stage, item: &Item, choice: &Choice) -> Result<Outcomes> {
    run_names(stage, item.name, &names(item, choice), choice)
}

/// Runs tests that Python's `unittest` loads by these names: modules, classes or methods.
pub(crate) fn run_names(stage: &Stage, title: &str, names: &[String], choice: &Choice) -> Result<Outcomes> {
    let script = product::root().join("tests/suites/cpython.py").display().to_string();
    let results = stage.path().join("results");
    let skip = stage.path().join("skip");
    let mut outcomes = Outcomes::new();
    for _ in 0..RESTARTS {
        let left_out: Vec<&str> = choice.without.iter().chain(outcomes.keys()).map(String::as_str).collect();
        std::fs::write(&skip, left_out.join("\n"))?;
        std::fs::write(&results, "")?;
        let (results_text, skip_text) = (results.display().to_string(), skip.display().to_string());
        let mut args = vec![script.clone(), results_text, skip_text];
        args.extend_from_slice(names);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut command = stage.command(PYTHON, &args)?;
        let ended = stage.watch(&mut command, title, Some(&results), TIMEOUT)?;
        let is_complete = read(&std::fs::read_to_string(&results)?, ended.is_hung, &mut outcomes);
        if is_complete {
            return Ok(outcomes);
        }
    }
    fail!("{RESTARTS} tests hang or end the interpreter")
}

/// What to load: the module, or the chosen tests. One of a class or module as a whole means the module.
fn names(item: &Item, choice: &Choice) -> Vec<String> {
    let module = || vec![format!("test.{}", item.name)];
    match &choice.only {
        Some(only) if only.iter().all(|test| test.starts_with("test.")) => only.iter().cloned().collect(),
        _ => module(),
    }
}

/// Adds what the lines say; returns whether all tests have run. The worst word about a test counts: a failure of a
/// subtest is followed by nothing, one of its clean-up may follow a pass.
fn read(lines: &str, is_hung: bool, outcomes: &mut Outcomes) -> bool {
    let mut running = None;
    for line in lines.lines() {
        match line.split_once(' ') {
            None if line == "end" => return true,
            Some(("start", test)) => running = Some(test.to_owned()),
            Some((word, test)) => {
                let seen = outcomes.entry(test.to_owned()).or_insert_with(|| word.to_owned());
                if matches!(word, "fail" | "error") {
                    word.clone_into(seen);
                }
            }
            None => {}
        }
    }
    let word = if is_hung { HANG } else { CRASH };
    // Without a running test it was the module itself.
    outcomes.insert(running.unwrap_or_else(|| MODULE.to_owned()), word.to_owned());
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_a_module() {
        let mut outcomes = Outcomes::new();
        assert!(read(
            "start a\nfail a\nstart b\nskip b\nstart c\npass c\nerror c\nend\n",
            false,
            &mut outcomes
        ));
        let words: Vec<&str> = outcomes.values().map(String::as_str).collect();
        assert_eq!(words, ["fail", "skip", "error"]);
    }

    #[test]
    fn a_hang_is_noted() {
        let mut outcomes = Outcomes::new();
        assert!(!read("start a\npass a\nstart b\n", true, &mut outcomes));
        assert_eq!(outcomes["b"], HANG);
    }
}
