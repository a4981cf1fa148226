//! Redis' own test suite, in Tcl, with the packaged programs.
//!
//! A unit of it is an item. The servers it starts and the clients in Tcl are all on one side.

use super::compare::{CRASH, HANG, Outcomes};
use super::stage::Stage;
use super::{Choice, Item, sources};
use harness::Result;
use std::path::Path;
use std::time::Duration;

const UNITS: &[&str] = &[
    "unit/protocol",
    "unit/networking",
    "unit/pubsub",
    "unit/introspection",
    "unit/limits",
    "unit/obuf-limits",
    "unit/client-eviction",
    "unit/querybuf",
    "unit/pendingquerybuf",
    "unit/replybufsize",
    "unit/tracking",
    "unit/multi",
    "unit/pause",
    "unit/wait",
    "unit/shutdown",
    "unit/other",
    "unit/auth",
    "unit/acl",
    "unit/aofrw",
    "unit/expire",
    "unit/scripting",
    "unit/type/list",
    "unit/type/stream",
    "unit/cluster",
    "integration/replication",
    "integration/replication-2",
    "integration/replication-3",
    "integration/replication-4",
    "integration/replication-psync",
    "integration/replication-buffer",
    "integration/block-repl",
    "integration/psync2",
    "integration/psync2-reg",
    "integration/failover",
    "integration/aof",
    "integration/rdb",
    "integration/shutdown",
    "integration/redis-cli",
    "integration/redis-benchmark",
];

const PROGRAMS: &[&str] =
    &["redis-server", "redis-cli", "redis-benchmark", "redis-check-aof", "redis-check-rdb"];

/// Some tests load data for minutes and say nothing.
const TIMEOUT: Duration = Duration::from_secs(240);

pub(crate) fn items() -> impl Iterator<Item = Item> {
    let needs = &["redis-server", "redis-cli", "tclsh"];
    let source = Some((|| sources::source("redis")) as fn() -> _);
    UNITS.iter().map(move |name| Item { suite: "redis", name, needs, is_fast: false, source, run })
}

fn run(stage: &Stage, item: &Item, _: &Choice) -> Result<Outcomes> {
    let tree = sources::source("redis")?;
    link_programs(&tree)?;
    let script = ["tests/test_helper.tcl", "--clients", "1", "--single", item.name];
    let mut command = stage.command("tclsh", &script)?;
    let ended = stage.watch(command.current_dir(&tree), item.name, None, TIMEOUT)?;
    let mut outcomes = Outcomes::new();
    for line in ended.text.lines() {
        add(line, &mut outcomes);
    }
    let word = match ended.code {
        _ if ended.is_hung => HANG,
        Some(0) => "pass",
        Some(_) => "fail",
        None => CRASH,
    };
    outcomes.insert("(the unit)".to_owned(), word.to_owned());
    Ok(outcomes)
}

/// The packaged programs, where the tests look for them.
pub(crate) fn link_programs(tree: &Path) -> Result<()> {
    for program in PROGRAMS {
        let link = tree.join("src").join(program);
        if !link.exists() {
            std::os::unix::fs::symlink(Path::new("/usr/bin").join(program), &link)?;
        }
    }
    Ok(())
}

/// Adds a line like `[ok]: name (12 ms)`. Numbers in names are random in some, or say how much was done in a time, so
/// that they stand for each other, whatever their length; of several with one name the worst counts.
pub(crate) fn add(line: &str, outcomes: &mut Outcomes) {
    let plain = without_colours(line);
    let Some((word, rest)) = plain.strip_prefix('[').and_then(|text| text.split_once("]: ")) else { return };
    let word = match word {
        "ok" => "pass",
        "err" | "exception" => "fail",
        "skip" | "ignore" => "skip",
        _ => return,
    };
    let name = rest.rsplit_once(" (").filter(|(_, end)| end.ends_with("ms)")).map_or(rest, |(name, _)| name);
    // The reason follows the name of a failed test.
    let name = name.split(" in tests/").next().unwrap_or(name);
    let seen = outcomes.entry(without_numbers(name)).or_insert_with(|| word.to_owned());
    if word == "fail" {
        word.clone_into(seen);
    }
}

fn without_numbers(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        match letter.is_ascii_digit() {
            true if text.ends_with('#') => {}
            true => text.push('#'),
            false => text.push(letter),
        }
    }
    text
}

fn without_colours(line: &str) -> String {
    let mut parts = line.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    first + &parts.map(|part| part.split_once('m').map_or("", |(_, text)| text)).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_runner() {
        let mut outcomes = Outcomes::new();
        add("[ok]: a key of 7 bytes (3 ms)", &mut outcomes);
        add("\x1b[0;31m[\x1b[1;31merr\x1b[0m]: b in tests/unit/b.tcl", &mut outcomes);
        add("[1/1 done]: unit/protocol (1 seconds)", &mut outcomes);
        add("words", &mut outcomes);
        add("[ok]: a key of 12345 bytes (3 ms)", &mut outcomes);
        assert_eq!(outcomes.len(), 2);
        assert_eq!(outcomes["a key of # bytes"], "pass");
        assert_eq!(outcomes["b"], "fail");
    }
}
