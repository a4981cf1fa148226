//! Suites with one program, or one file, per test.
//!
//! libuv, libevent and Node judge by the exit status. Perl and memcached print a line per assertion (TAP), and each of
//! these counts as a test.

use super::compare::{CRASH, HANG, OPEN, Outcomes};
use super::stage::{Ended, Stage};
use super::{Choice, Item, sources};
use harness::Result;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(45);

/// What libuv's runner exits with for a test that cannot run here.
const UV_SKIP: i32 = 7;

pub(crate) fn items() -> impl Iterator<Item = Item> {
    let items = [
        Item {
            suite: "libuv",
            name: "all",
            needs: &["gcc", "/usr/include/uv.h"],
            is_fast: false,
            source: Some(sources::libuv_tests),
            run: libuv,
        },
        Item {
            suite: "libevent",
            name: "all",
            needs: &["cmake", "make", "gcc"],
            is_fast: false,
            source: Some(sources::libevent_tests),
            run: libevent,
        },
        Item {
            suite: "memcached",
            name: "all",
            needs: sources::MEMCACHED_NEEDS,
            is_fast: false,
            source: Some(sources::memcached_tests),
            run: memcached,
        },
        Item {
            suite: "perl",
            name: "core",
            needs: &["perl"],
            is_fast: false,
            source: Some(|| sources::source("perl")),
            run: perl,
        },
    ];
    let groups = ["net", "http", "https", "http2", "tls", "cluster", "child-process", "stream"];
    let nodes = groups.map(|name| Item {
        suite: "node",
        name,
        needs: &["node"],
        is_fast: false,
        source: Some(|| sources::source("nodejs")),
        run: node,
    });
    items.into_iter().chain(nodes)
}

/// The word for a program that judges by its exit status.
pub(crate) fn word(ended: &Ended) -> &'static str {
    match ended.code {
        _ if ended.is_hung => HANG,
        Some(0) => "pass",
        Some(_) => "fail",
        None => CRASH,
    }
}

fn libuv(stage: &Stage, _: &Item, choice: &Choice) -> Result<Outcomes> {
    let program = sources::libuv_tests()?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let run = |name: &str| {
        let mut command = stage.command(&program.display().to_string(), &[name])?;
        stage.watch(command.current_dir(folder).env("UV_RUN_AS_ROOT", "1"), name, None, TIMEOUT)
    };
    let mut outcomes = Outcomes::new();
    for line in run("--list")?.text.lines() {
        let Some(name) = line.split_whitespace().next().filter(|name| choice.has(name)) else { continue };
        let ended = run(name)?;
        let word = if ended.code == Some(UV_SKIP) { "skip" } else { word(&ended) };
        outcomes.insert(name.to_owned(), word.to_owned());
    }
    Ok(outcomes)
}

fn libevent(stage: &Stage, _: &Item, choice: &Choice) -> Result<Outcomes> {
    let program = sources::libevent_tests()?.display().to_string();
    let run = |name: &str| stage.watch(&mut stage.command(&program, &[name])?, name, None, TIMEOUT);
    let mut outcomes = Outcomes::new();
    for name in run("--list-tests")?.text.lines().map(str::trim) {
        // A name is a word with a group; the other lines are explanations.
        if !name.contains('/') || name.contains(' ') || !choice.has(name) {
            continue;
        }
        let ended = run(name)?;
        let word = if ended.text.contains("SKIPPED") { "skip" } else { word(&ended) };
        outcomes.insert(name.to_owned(), word.to_owned());
    }
    Ok(outcomes)
}

/// Node's own tests, of the version that Debian has, under the node that is installed: what fails on the kernel
/// because of the difference fails here too.
fn node(stage: &Stage, item: &Item, choice: &Choice) -> Result<Outcomes> {
    let tree = sources::source("nodejs")?;
    let mut outcomes = Outcomes::new();
    for name in files(&tree.join("test/parallel"), &format!("test-{}-", item.name), &["js", "mjs"])? {
        if !choice.has(&name) {
            continue;
        }
        let path = tree.join("test/parallel").join(&name).display().to_string();
        let mut command = stage.command("node", &[&path])?;
        command.current_dir(&tree).env("NODE_TEST_DIR", stage.path());
        let ended = stage.watch(&mut command, &name, None, TIMEOUT)?;
        let is_skip = ended.text.starts_with("1..0 # Skipped");
        outcomes.insert(name, if is_skip { "skip" } else { word(&ended) }.to_owned());
    }
    Ok(outcomes)
}

fn perl(stage: &Stage, _: &Item, choice: &Choice) -> Result<Outcomes> {
    let tree = sources::source("perl")?;
    let folders = ["dist/IO", "cpan/Socket", "cpan/IO-Socket-IP", "cpan/libnet", "cpan/HTTP-Tiny"];
    let mut outcomes = Outcomes::new();
    for folder in folders.map(|folder| tree.join(folder)) {
        for file in files(&folder.join("t"), "", &["t"])? {
            let path = format!("t/{file}");
            tap(stage, &folder, "perl", &["-I.", "-It", "-It/lib", &path], &file, choice, &mut outcomes)?;
        }
    }
    let t = tree.join("t");
    for path in [
        "io/socket.t",
        "io/socketpair.t",
        "io/pipe.t",
        "io/dup.t",
        "op/fork.t",
        "op/select.t",
        "op/sselect.t",
    ] {
        tap(stage, &t, "perl", &["-I../lib", path], path, choice, &mut outcomes)?;
    }
    Ok(outcomes)
}

fn memcached(stage: &Stage, _: &Item, choice: &Choice) -> Result<Outcomes> {
    let tree = sources::memcached_tests()?;
    let mut outcomes = Outcomes::new();
    for file in files(&tree.join("t"), "", &["t"])? {
        let path = format!("t/{file}");
        tap(stage, &tree, "perl", &["-It/lib", &path], &file, choice, &mut outcomes)?;
    }
    Ok(outcomes)
}

/// Whether one of a file's tests is.
pub(crate) fn is_chosen(file: &str, choice: &Choice) -> bool {
    let is_chosen = match &choice.only {
        None => true,
        Some(only) => only.iter().any(|test| test == file || test.starts_with(&format!("{file}: "))),
    };
    is_chosen && !choice.without.contains(file)
}

/// Runs a file that prints a line per assertion, if one of its tests is chosen.
fn tap(
    stage: &Stage,
    folder: &Path,
    program: &str,
    args: &[&str],
    file: &str,
    choice: &Choice,
    outcomes: &mut Outcomes,
) -> Result<()> {
    if !is_chosen(file, choice) {
        return Ok(());
    }
    let mut command = stage.command(program, args)?;
    let ended = stage.watch(command.current_dir(folder), file, None, TIMEOUT)?;
    outcomes.insert(file.to_owned(), word(&ended).to_owned());
    outcomes.extend(assertions(file, &ended.text));
    Ok(())
}

/// What became of each assertion, by number. A plan, `1..N`, stands before them, or, where the file counts as it goes,
/// behind them: without one, the file has not come to its end.
pub(crate) fn assertions(file: &str, text: &str) -> Outcomes {
    let mut outcomes = Outcomes::new();
    let mut plan = "none";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("1..") {
            plan = match () {
                () if rest.starts_with('0') => "skip",
                () if outcomes.is_empty() => "ahead",
                () => OPEN,
            };
        }
        let (line, word) = match line.strip_prefix("not ok ") {
            Some(rest) => (rest, "fail"),
            None => match line.strip_prefix("ok ") {
                Some(rest) => (rest, "pass"),
                None => continue,
            },
        };
        let number: String = line.chars().take_while(char::is_ascii_digit).collect();
        let word = if line.contains("# skip") { "skip" } else { word };
        outcomes.insert(format!("{file}: {number}"), word.to_owned());
    }
    outcomes.insert(format!("{file}: plan"), plan.to_owned());
    outcomes
}

/// Names of the files in a folder with a beginning and one of some endings, in order.
pub(crate) fn files(folder: &Path, start: &str, ends: &[&str]) -> Result<BTreeSet<String>> {
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let has_end = |name: &str| name.rsplit_once('.').is_some_and(|(_, end)| ends.contains(&end));
    Ok(names.filter(|name| name.starts_with(start) && has_end(name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans() {
        let plan = |text| assertions("f", text)["f: plan"].clone();
        assert_eq!(plan("1..2\nok 1\nnot ok 2 - b\n"), "ahead");
        assert_eq!(plan("ok 1 - a\n1..1\n"), OPEN);
        assert_eq!(plan("1..0 # SKIP no TLS\n"), "skip");
        assert_eq!(plan("ok 1\nok 2\n"), "none");
        assert_eq!(assertions("f", "not ok 2 - b\nok 3 # skip c\n")["f: 2"], "fail");
        assert_eq!(assertions("f", "not ok 2 - b\nok 3 # skip c\n")["f: 3"], "skip");
    }
}
