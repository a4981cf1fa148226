//! What a static program pays for a call that is the kernel's: the instructions of its own wrapper, and those that the library adds.

use super::callgrind::Operation;
use harness::lab::{Lab, Side};
use harness::{Result, fail, install, process};
use std::time::Duration;

const SOURCE: &str = include_str!("entry.c");
const LIMIT: Duration = Duration::from_secs(20);

/// One for each kind of call; none without a compiler.
pub(super) fn measure(lab: &Lab) -> Result<Vec<Operation>> {
    if !install::is_there("gcc") {
        return Ok(Vec::new());
    }
    let (source, program) = (lab.path().join("entry.c"), lab.path().join("entry"));
    std::fs::write(&source, SOURCE)?;
    let [program, source] = [program, source].map(|path| path.display().to_string());
    process::output_of("gcc", &["-O1", "-mno-red-zone", "-static", "-o", &program, &source])?;
    let count = |side| counts(&lab.run(side, &program, &[], LIMIT)?.text());
    let (alone, led) = (count(Side::Kernel)?, count(Side::Sd)?);
    let more = led.into_iter().zip(alone).map(|((name, led), (_, alone))| Operation {
        name: format!("static, {name}"),
        parts: [("the entry and its island".to_owned(), led - alone)].into(),
        system_calls: 0.0,
    });
    Ok(more.collect())
}

/// Lines of a name and a number.
fn counts(text: &str) -> Result<Vec<(String, f64)>> {
    let line = |line: &str| {
        Some(line.rsplit_once(' ')?).and_then(|(name, count)| Some((name.to_owned(), count.parse().ok()?)))
    };
    match text.lines().map(line).collect() {
        Some(counts) => Ok(counts),
        None => fail!("counts of instructions: {text:?}"),
    }
}
