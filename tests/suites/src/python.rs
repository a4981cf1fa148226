//! Tests of Python's networking libraries: Twisted, as Debian packages it, and gevent, as the package index has it.
//!
//! Twisted's are unit tests like CPython's, a process per module. gevent's files are programs; what counts is how each
//! ends, how many tests it ran, and which of them failed.

use super::compare::Outcomes;
use super::cpython::{MODULE, PYTHON, run_names};
use super::stage::Stage;
use super::{Choice, Item, each, sources};
use harness::Result;
use std::path::Path;
use std::time::Duration;

const TWISTED: &str = "/usr/lib/python3/dist-packages/twisted";

const TWISTED_NEEDS: &[&str] = &[
    "/usr/lib/python3/dist-packages/twisted/test/test_tcp.py",
    "/usr/lib/python3/dist-packages/OpenSSL",
    "/usr/lib/python3/dist-packages/service_identity",
];

const TIMEOUT: Duration = Duration::from_secs(120);

/// Names of the modules of `twisted.test` that are about connections, events or processes.
const TWISTED_CORE: &[&str] = &[
    "abstract",
    "amp",
    "fdesc",
    "finger",
    "ftp",
    "ident",
    "internet",
    "iutils",
    "loopback",
    "pcp",
    "policies",
    "postfix",
    "process",
    "protocols",
    "socks",
    "ssl",
    "sslverify",
    "stateful",
    "stdio",
    "tcp",
    "tcp_internals",
    "threads",
    "udp",
    "unix",
];

pub(crate) fn items() -> impl Iterator<Item = Item> {
    let twisted = ["internet", "core", "web", "names", "mail", "protocols"].map(|name| Item {
        suite: "twisted",
        name,
        needs: TWISTED_NEEDS,
        is_fast: false,
        source: None,
        run: twisted,
    });
    let gevent = Item {
        suite: "gevent",
        name: "all",
        needs: &["python3", "/usr/bin/pip3"],
        is_fast: false,
        source: Some(sources::gevent),
        run: gevent,
    };
    twisted.into_iter().chain([gevent])
}

fn twisted(stage: &Stage, item: &Item, choice: &Choice) -> Result<Outcomes> {
    let package = if item.name == "core" { "test".to_owned() } else { format!("{}.test", item.name) };
    let folder = Path::new(TWISTED).join(package.replace('.', "/"));
    let mut outcomes = Outcomes::new();
    for file in each::files(&folder, "test_", &["py"])? {
        let name = file.trim_end_matches(".py");
        if item.name == "core" && !TWISTED_CORE.contains(&name.trim_start_matches("test_")) {
            continue;
        }
        let module = format!("twisted.{package}.{name}");
        let Some(names) = chosen(&module, choice) else { continue };
        for (test, word) in run_names(stage, &module, &names, choice)? {
            outcomes.insert(if test == MODULE { module.clone() } else { test }, word);
        }
    }
    Ok(outcomes)
}

/// What to load of a module: nothing, all, or the chosen tests.
fn chosen(module: &str, choice: &Choice) -> Option<Vec<String>> {
    let whole = || Some(vec![module.to_owned()]);
    let Some(only) = choice.only.as_ref().filter(|only| only.iter().all(|test| test.starts_with("twisted.")))
    else {
        return whole();
    };
    if only.contains(module) {
        return whole();
    }
    let start = format!("{module}.");
    let names: Vec<String> = only.iter().filter(|test| test.starts_with(&start)).cloned().collect();
    (!names.is_empty()).then_some(names)
}

fn gevent(stage: &Stage, _: &Item, choice: &Choice) -> Result<Outcomes> {
    let packages = sources::gevent()?;
    let mut outcomes = Outcomes::new();
    for file in each::files(&packages.join("gevent/tests"), "test_", &["py"])? {
        let name = file.trim_end_matches(".py");
        let is_chosen = choice.has(name)
            || choice
                .only
                .as_ref()
                .is_some_and(|only| only.iter().any(|test| test.starts_with(&format!("{name}: "))));
        if !is_chosen || choice.without.contains(name) {
            continue;
        }
        let module = format!("gevent.tests.{name}");
        let mut command = stage.command(PYTHON, &["-u", "-m", &module])?;
        command
            .env("PYTHONPATH", &packages)
            .env("GEVENTTEST_USE_RESOURCES", "-network")
            .current_dir(stage.path());
        let ended = stage.watch(&mut command, name, None, TIMEOUT)?;
        outcomes.insert(name.to_owned(), each::word(&ended).to_owned());
        outcomes.extend(failures(name, &ended.text));
    }
    Ok(outcomes)
}

/// The tests of a file that failed, and the summaries of those that did not: how many ran and were skipped.
fn failures(file: &str, text: &str) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for line in text.lines() {
        if let Some((word @ ("FAIL" | "ERROR"), test)) = line.split_once(": ") {
            outcomes.insert(format!("{file}: {test}"), word.to_lowercase());
        } else if let Some(rest) = line.strip_prefix("Ran ") {
            let count = rest.split_once(" in ").map_or(rest, |(count, _)| count);
            outcomes.insert(format!("{file}: ran"), count.to_owned());
        } else if line.starts_with("OK (") {
            outcomes.insert(format!("{file}: end"), line.to_owned());
        }
    }
    outcomes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_of_gevent_says() {
        let outcomes = failures("f", "FAIL: test_a (m.C)\nnoise\nRan 7 tests in 1.2s\nOK (skipped=2)\n");
        assert_eq!(outcomes["f: test_a (m.C)"], "fail");
        assert_eq!(outcomes["f: ran"], "7 tests");
        assert_eq!(outcomes["f: end"], "OK (skipped=2)");
    }

    #[test]
    fn a_choice_among_modules() {
        let only = ["twisted.test.test_tcp.A.b".to_owned(), "twisted.test.test_ssl".to_owned()];
        let choice = Choice { only: Some(only.into_iter().collect()), ..Choice::default() };
        assert_eq!(
            chosen("twisted.test.test_tcp", &choice),
            Some(vec!["twisted.test.test_tcp.A.b".to_owned()])
        );
        assert_eq!(chosen("twisted.test.test_ssl", &choice), Some(vec!["twisted.test.test_ssl".to_owned()]));
        assert_eq!(chosen("twisted.test.test_udp", &choice), None);
    }
}
