//! `cargo xtask instructions`: how many instructions each operation takes, held against a budget.
//!
//! `sd bench-peer count` repeats every operation on connections to itself, so that nothing waits, under valgrind's
//! callgrind, which counts the same instructions every time. Counted is what runs outside of that program itself: the
//! library, and what it calls in the C library. System calls count as one instruction.
//!
//! The budgets are in `xtask/instructions.json`, with the compiler that they hold for. More than 3 % beyond its budget is a
//! failure, and the parts that grew are named. Another compiler, or other settings of the release profile, make other
//! code: then the comparison is shown, and fails nothing.

mod budget;
mod callgrind;

use crate::lab::{Lab, Side};
use crate::report::{Count, table};
use crate::{Result, fail, install, process, product};
use budget::{Budgets, Verdict};
use callgrind::Operation;
use std::time::Duration;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Make what is counted now the budgets
    #[arg(long)]
    write: bool,
    /// Print what each part of each operation takes, as tables of Markdown
    #[arg(long)]
    parts: bool,
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
    let lab = Lab::new(false)?;
    let out = lab.path().join("callgrind.out");
    let out_arg = format!("--callgrind-out-file={}", out.display());
    let sd = product::sd().display().to_string();
    let args = [
        "-q",
        "--tool=callgrind",
        "--collect-atstart=no",
        "--compress-strings=no",
        "--compress-pos=no",
        &out_arg,
        &sd,
        "bench-peer",
        "count",
    ];
    let output = lab.run(Side::Sd, "valgrind", &args, Duration::from_secs(120))?;
    let operations = callgrind::read(&output.text(), &out, &sd)?;
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
            vec![verdict.name.clone(), format!("{:.1}", verdict.now), budget, change]
        })
        .collect();
    table(&["operation", "instructions", "budget", "change"], &rows)
}

/// What each source file contributes to each operation.
fn parts(operations: &[Operation]) -> String {
    let mut text = String::new();
    for operation in operations {
        let files = operation.by_file();
        text.push_str(&format!("\n| {} | {:.1} |\n|---|---:|\n", operation.name, operation.total()));
        for (file, cost) in &files {
            text.push_str(&format!("| {file} | {cost:.1} |\n"));
        }
    }
    text
}
