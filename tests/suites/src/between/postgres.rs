//! PostgreSQL's regression tests: the server on the other host; here `pg_regress`, which runs `psql` for each file, up to twenty at once.
//!
//! Files that the server reads and writes lie where both hosts have them.

use super::{PORT, Pair, SOON};
use crate::compare::Outcomes;
use crate::stage::Stage;
use crate::{Choice, Item, sources};
use harness::process::Proc;
use harness::user::User;
use harness::{Result, postgres};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// For all files.
const LIMIT: Duration = Duration::from_secs(1200);
/// Where its programs look for others.
const PROGRAMS: &str = "--bindir=/usr/lib/postgresql/15/bin";

pub(super) fn item(name: &'static str) -> Item {
    let source = Some(sources::postgres_tests as fn() -> _);
    let needs = &["/usr/lib/postgresql", "gcc", "make"];
    Item { suite: "postgres", name, needs, is_fast: false, source, run }
}

/// In a repetition all files run again: they build on each other.
fn run(stage: &Stage, item: &Item, choice: &Choice) -> Result<Outcomes> {
    let tree = sources::postgres_tests()?;
    let pair = Pair::new(stage)?;
    let [here, there] = pair.hosts.each_ref().map(|host| &host.lab);
    let data = postgres::cluster(there, "regress")?;
    let mut command = postgres::server(there, pair.side, (&pair.address(), PORT), &data)?;
    let server = Proc::start(&mut command, "postgres", there.path())?;
    postgres::wait_ready(&server, 1)?;

    let user = User::named("postgres")?;
    let folder = here.path().join("regress");
    copy(&tree, &folder)?;
    let folder = folder.display().to_string();
    let program = format!("{folder}/pg_regress");
    let (input, output) = (format!("--inputdir={folder}"), format!("--outputdir={folder}"));
    let (library, schedule) =
        (format!("--dlpath={folder}"), format!("--schedule={folder}/parallel_schedule"));
    let (host, port) = (format!("--host={}", pair.address()), format!("--port={PORT}"));
    let args = [&input, &output, &library, &schedule, &host, &port, PROGRAMS, "--user=postgres"];
    let mut command = user.command(here, pair.side, &program, &args)?;
    let (word, text) = pair.test(command.current_dir(&folder), "pg_regress", LIMIT)?;
    let differences = std::fs::read_to_string(format!("{folder}/regression.diffs")).unwrap_or_default();
    stage.write_log("pg_regress", &(text.clone() + &differences), word.clone())?;
    let mut outcomes: Outcomes = text.lines().filter_map(outcome).collect();
    outcomes.insert("(all)".to_owned(), word);
    outcomes.retain(|test, _| choice.has(test));
    server.terminate(SOON)?;
    pair.finish(item, choice, 100)?;
    Ok(outcomes)
}

/// The tests, where the server's user may read and write.
fn copy(tree: &Path, folder: &Path) -> Result<()> {
    let mut command = Command::new("cp");
    let output = command.arg("-r").arg(tree).arg(folder).output()?;
    let own = Command::new("chown").args(["-R", "postgres:"]).arg(folder).output()?;
    match output.status.success() && own.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&[output.stderr, own.stderr].concat()).into()),
    }
}

/// Of a line like `test boolean ... ok 52 ms`, or, of several at once, `     boolean   ... FAILED   52 ms`.
fn outcome(line: &str) -> Option<(String, String)> {
    let (name, rest) = line.split_once(" ... ")?;
    let name = name.trim().trim_start_matches("test ").trim();
    let word = match rest.trim() {
        rest if rest.starts_with("ok") => "pass",
        rest if rest.starts_with("failed (ignored)") => "ignored",
        rest if rest.starts_with("FAILED") => "fail",
        _ => return None,
    };
    Some((name.to_owned(), word.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_pg_regress() {
        let seen = |line| outcome(line).map(|(name, word)| format!("{name} {word}"));
        assert_eq!(
            seen("test tablespace                   ... ok          310 ms"),
            Some("tablespace pass".to_owned())
        );
        assert_eq!(
            seen("     char                         ... FAILED       52 ms"),
            Some("char fail".to_owned())
        );
        assert_eq!(seen("parallel group (20 tests):  char boolean"), None);
        assert_eq!(seen("============== shutting down =============="), None);
    }
}
