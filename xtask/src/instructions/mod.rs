//! `cargo xtask instructions`: how many instructions each operation takes, held against a budget.
//!
//! `sd-bench peer count` repeats every operation on connections to itself, so that nothing waits, under valgrind's
//! callgrind, which counts the same instructions every time. Counted is what runs outside of that program itself: the
//! library, and what it calls in the C library. A system call counts as one instruction, and is counted by itself as well.
//! What static programs pay for calls that are the kernel's is counted by such a program, which steps through them (`entry.c`).
//!
//! The budgets are in `xtask/instructions.json`, with the compiler that they hold for. More than 3 % beyond its budget, or
//! one system call more, is a failure, and the parts that grew are named. Another compiler, or other settings of the release profile, make other
//! code: then the comparison is shown, and fails nothing.

mod budget;
mod callgrind;
mod entry;
pub(crate) mod lines;

use budget::{Budgets, Verdict};
use callgrind::Operation;
use harness::lab::{Lab, Side};
use harness::report::{Count, table};
use harness::{Result, fail, install, process, product};
use lines::Writes;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Make what is counted now the budgets
    #[arg(long)]
    write: bool,
    /// Print what each source file takes in each operation, as a table of Markdown
    #[arg(long)]
    parts: bool,
    /// Print the cache lines that send and recv write, and those that two pairs of threads contend for
    #[arg(long)]
    lines: bool,
    /// Use what is built already
    #[arg(long)]
    no_build: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    if !options.no_build {
        product::build()?;
    }
    if !install::is_there("valgrind") {
        println!("instructions: valgrind is not installed (cargo xtask install)");
        println!("{}", Count { skipped: 1, ..Count::default() }.line());
        return Ok(());
    }
    if options.lines {
        print!("{}", shown_lines(&lines::measure()?));
        return Ok(());
    }
    let operations = measure()?;
    if options.parts {
        print!("{}", parts(&operations));
        return Ok(());
    }
    let rustc = rustc()?;
    let settings = settings();
    if options.write {
        if let Some(setting) = settings {
            fail!("budgets are for the release profile as it stands in Cargo.toml, and {setting} is set");
        }
        return Budgets::of(&operations, rustc).store();
    }
    let budgets = Budgets::load()?;
    let stranger = settings
        .map(|setting| format!("{setting} is set"))
        .or_else(|| (rustc != budgets.rustc).then(|| format!("this is {rustc}")));
    let verdicts: Vec<Verdict> = operations.iter().map(|operation| budgets.judge(operation)).collect();
    print!("{}", shown(&verdicts));
    if let Some(reason) = stranger {
        println!(
            "\nThe budgets are for {}, and {reason}: nothing is judged. New budgets: cargo xtask instructions --write",
            budgets.rustc
        );
        println!("{}", Count { skipped: verdicts.len(), ..Count::default() }.line());
        return Ok(());
    }
    let mut count = Count::default();
    for verdict in &verdicts {
        count.add(Count::one(!verdict.has_grown()));
        print!("{}", verdict.remark());
    }
    println!("{}", count.line());
    if count.failed > 0 {
        fail!("more instructions than the budget; cargo xtask instructions --write if that is meant");
    }
    Ok(())
}

/// Counts all operations.
pub(crate) fn measure() -> Result<Vec<Operation>> {
    let lab = Lab::from_the_first_byte(false)?;
    let out = lab.path().join("callgrind.out");
    let out_arg = format!("--callgrind-out-file={}", out.display());
    let program = product::sd_bench().display().to_string();
    let args = [
        "-q",
        "--tool=callgrind",
        "--collect-atstart=no",
        "--collect-systime=yes",
        "--compress-strings=no",
        "--compress-pos=no",
        &out_arg,
        &program,
        "peer",
        "count",
    ];
    let output = lab.run(Side::Sd, "valgrind", &args, Duration::from_secs(120))?;
    let mut operations = callgrind::read(&output.text(), &out, &program)?;
    operations.extend(entry::measure(&lab)?);
    lab.finish()?;
    Ok(operations)
}

fn rustc() -> Result<String> {
    let program = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = process::output_of(program, &["--version"])?;
    Ok(output.trim().to_owned())
}

/// A variable of the environment that makes the release build another one.
fn settings() -> Option<String> {
    let makes_another = |name: &String| {
        name.starts_with("CARGO_PROFILE_RELEASE_")
            || ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_RUSTFLAGS"].contains(&name.as_str())
    };
    std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).find(makes_another)
}

fn shown(verdicts: &[Verdict]) -> String {
    let rows: Vec<Vec<String>> = verdicts
        .iter()
        .map(|verdict| {
            let budget = verdict.budget.map_or_else(|| "none".to_owned(), |budget| format!("{budget:.1}"));
            let change = verdict.change().map_or_else(String::new, |change| format!("{change:+.1} %"));
            let calls = format!("{:.2}", verdict.system_calls.0);
            vec![verdict.name.clone(), format!("{:.1}", verdict.now), budget, change, calls]
        })
        .collect();
    table(&["operation", "instructions", "budget", "change", "system calls"], &rows)
}

/// What each source file contributes to each operation, the greatest first.
fn parts(operations: &[Operation]) -> String {
    let files: Vec<Vec<(String, f64)>> = operations.iter().map(Operation::by_file).collect();
    let mut names: Vec<(&str, f64)> = Vec::new();
    for (name, cost) in files.iter().flatten() {
        match names.iter_mut().find(|(known, _)| known == name) {
            Some((_, sum)) => *sum += cost,
            None => names.push((name, *cost)),
        }
    }
    names.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut text = String::from("| source file |");
    operations.iter().for_each(|operation| text.push_str(&format!(" {} |", operation.name)));
    text.push_str(&format!("\n|---|{}\n", "---:|".repeat(operations.len())));
    for (name, _) in names {
        text.push_str(&format!("| {name} |"));
        for file in &files {
            let cost = file.iter().find(|(known, _)| known == name);
            text.push_str(&cost.map_or_else(|| " |".to_owned(), |(_, cost)| format!(" {cost:.0} |")));
        }
        text.push('\n');
    }
    text.push_str("| **all** |");
    operations.iter().for_each(|operation| text.push_str(&format!(" **{:.0}** |", operation.total())));
    text.push_str("\n| **system calls** |");
    operations.iter().for_each(|operation| text.push_str(&format!(" {:.0} |", operation.system_calls)));
    text.push('\n');
    text
}

fn shown_lines(writes: &[lines::Writes]) -> String {
    let rows: Vec<Vec<String>> = writes
        .iter()
        .map(|writes| {
            let Writes { operation, stores, lines, contended } = writes;
            vec![operation.clone(), format!("{stores:.2}"), format!("{lines:.2}"), contended.to_string()]
        })
        .collect();
    let header =
        ["operation", "stores to shared memory", "lines of it written", "lines contended by two pairs"];
    table(&header, &rows)
}
