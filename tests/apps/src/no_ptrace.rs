//! Static programs where ptrace(2) is refused, by a filter here: the library's file is executed in their place, and loads them.

use super::Scenario;
use super::mixed_tools::compile;
use super::own_calls::{OPTIONS, PROGRAM, WAYS, compile_musl, run_watched};
use harness::lab::{Lab, Side};
use harness::process::free_port;
use harness::ss::Watch;
use harness::{Result, fail, refusal};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("no-ptrace", &["gcc", "/usr/include/stdio.h", "musl-gcc", "python3"], echo).limit_s(90),
    Scenario::new("no-ptrace-own-file", &["gcc", "/usr/include/stdio.h", "musl-gcc"], own_file).limit_s(60),
];

/// Of `own_file.c`, which is executed twice.
const LINES: usize = 18;

/// What a program says that is executed where it is refused.
fn said(lab: &Lab, side: Side, way: &[&str], words: &[&str], watch: Option<&Watch>) -> Result<String> {
    let words = [way, words].concat();
    let mut command = lab.command(side, words[0], &words[1..])?;
    refusal::without_ptrace(&mut command);
    Ok(run_watched(lab, command.env("A_VARIABLE", "is there"), watch)?.text())
}

/// Each is a server and its client, over shared memory.
fn echo(lab: &mut Lab) -> Result<()> {
    let musl = compile_musl(lab, PROGRAM, &["-static"])?.display().to_string();
    let own = [OPTIONS, &["-static"]].concat();
    let programs = [
        (musl, None),
        (compile(lab, "glibc", PROGRAM, &["-static"])?, None),
        (compile(lab, "anywhere", PROGRAM, &["-static-pie"])?, None),
        (compile(lab, "own", include_str!("../c/own_calls.c"), &own)?, Some(["8", "20000"])),
    ];
    for (program, more) in &programs {
        for way in WAYS.into_iter().chain([&[] as &[&str]]) {
            let port = free_port()?;
            let watch = lab.watch(port);
            let text = port.to_string();
            let words: Vec<&str> =
                [program.as_str(), &text].into_iter().chain(more.iter().flatten().copied()).collect();
            let said = said(lab, Side::Sd, way, &words, watch.as_ref())?;
            if said != "echoed\n" {
                fail!("{program} by {way:?} said {said:?}");
            }
            lab.check(watch, Side::Sd, Side::Sd).map_err(|error| format!("{program} by {way:?}: {error}"))?;
        }
    }
    Ok(())
}

/// What the program learns of its own file is as without the library.
fn own_file(lab: &mut Lab) -> Result<()> {
    let text = include_str!("../c/own_file.c");
    let programs = [
        compile_musl(lab, text, &["-static"])?.display().to_string(),
        compile(lab, "own-file", text, &["-static"])?,
        compile(lab, "own-file-anywhere", text, &["-static-pie"])?,
    ];
    for program in &programs {
        let [plain, ours] =
            [Side::Kernel, Side::Sd].map(|side| said(lab, side, &[], &[program.as_str(), program], None));
        let (plain, ours) = (plain?, ours?);
        if plain != ours || plain.lines().count() != LINES {
            fail!("{program} says {ours}\nand without the library {plain}");
        }
    }
    Ok(())
}
