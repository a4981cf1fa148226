//! Tests of Go's own standard library, of the Go that is installed: as programs without libc, with it (cgo), and as static programs with it (`both`).
//!
//! A package of it is an item. Its tests are one program, which is compiled before the item is cut off from other machines.

use super::compare::{HANG, Outcomes};
use super::stage::Stage;
use super::{Choice, Item};
use harness::process::output;
use harness::{Result, fail, product};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The packages: whether with libc, and how that is linked, is the first word of their item's name.
const ITEMS: [&str; 21] = [
    "static net",
    "static net/http",
    "static os",
    "static os/exec",
    "static os/signal",
    "static syscall",
    "static runtime",
    "cgo net",
    "cgo net/http",
    "cgo os",
    "cgo os/exec",
    "cgo os/signal",
    "cgo syscall",
    "cgo runtime",
    "both net",
    "both net/http",
    "both os",
    "both os/exec",
    "both os/signal",
    "both syscall",
    "both runtime",
];

/// Some tests of the runtime's say nothing for long.
const TIMEOUT: Duration = Duration::from_secs(240);

pub(crate) fn items() -> impl Iterator<Item = Item> {
    ITEMS.iter().map(|name| Item {
        suite: "go",
        name,
        needs: &["go", "gcc", "/usr/include/stdio.h", "strace"],
        is_fast: false,
        source: Some(compile),
        run,
    })
}

/// All of them: those that are there are compiled already.
fn compile() -> Result<PathBuf> {
    let folder = product::target().join("suites/src/go");
    std::fs::create_dir_all(&folder)?;
    for item in ITEMS {
        let (libc, package) = split(item);
        let program = program(&folder, item);
        if program.exists() {
            continue;
        }
        let new = program.with_extension("new");
        let mut command = Command::new("go");
        command.args(["test", "-c", "-o"]).arg(&new).arg(package);
        if libc == "both" {
            command.arg("-ldflags=-linkmode=external -extldflags=-static");
        }
        command.env("CGO_ENABLED", if libc == "static" { "0" } else { "1" });
        command.env("GOCACHE", folder.join("cache")).env("GOTOOLCHAIN", "local").env("GOFLAGS", "");
        output(&mut command)?;
        std::fs::rename(new, program)?;
    }
    Ok(folder)
}

fn split(item: &str) -> (&str, &str) {
    item.split_once(' ').unwrap_or((item, ""))
}

fn program(folder: &Path, item: &str) -> PathBuf {
    folder.join(item.replace([' ', '/'], "-"))
}

fn run(stage: &Stage, item: &Item, choice: &Choice) -> Result<Outcomes> {
    let program = program(&compile()?, item.name).display().to_string();
    let (_, package) = split(item.name);
    let root = output(Command::new("go").args(["env", "GOROOT"]))?;
    let mut args = vec!["-test.short".to_owned(), "-test.v".to_owned()];
    if let Some(only) = &choice.only {
        args.push(format!("-test.run={}", pattern(only)));
    }
    if !choice.without.is_empty() {
        args.push(format!("-test.skip={}", pattern(&choice.without)));
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut command = stage.command(&program, &args)?;
    command.current_dir(Path::new(root.trim()).join("src").join(package));
    let ended = stage.watch(&mut command, "tests", None, TIMEOUT)?;
    let (mut outcomes, mut begun) = (Outcomes::new(), BTreeSet::new());
    for line in ended.text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["===", "RUN", name] => _ = begun.insert((*name).to_owned()),
            ["---", word @ ("PASS:" | "FAIL:" | "SKIP:"), name, ..] => {
                outcomes.insert((*name).to_owned(), word.trim_end_matches(':').to_lowercase());
            }
            _ => {}
        }
    }
    if outcomes.is_empty() {
        fail!("no test of {package} has ended: {}", harness::process::tail(&ended.text, 500));
    }
    if ended.is_hung {
        let open = begun.into_iter().filter(|name| !outcomes.contains_key(name)).collect::<Vec<_>>();
        outcomes.extend(open.into_iter().map(|name| (name, HANG.to_owned())));
    }
    Ok(outcomes)
}

/// Of the tests; their parts are run with them.
fn pattern(tests: &BTreeSet<String>) -> String {
    let names: BTreeSet<&str> = tests.iter().map(|name| name.split('/').next().unwrap_or(name)).collect();
    format!("^({})$", names.into_iter().collect::<Vec<_>>().join("|"))
}
