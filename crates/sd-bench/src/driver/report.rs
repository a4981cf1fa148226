//! Figures as JSON lines for machines, and as tables for people.

use super::rounds::{Series, median, ratio};
use super::stage::Outcome;
use super::{Plan, Stage};
use sd_cli::cli::System;
use sd_cli::cli::{BenchOptions, What};
use sd_cli::failure::{Context, Result, print, warn};
use sd_cli::table::{Align, render};
use serde::Serialize;
use std::borrow::Cow;
use std::io::{IsTerminal, Write};

/// One figure. Ratios are this system's value by the other's, whether that is good or bad.
#[derive(Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) bench: &'static str,
    /// Which of several figures, where a benchmark has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) item: Option<Cow<'static, str>>,
    pub(crate) system: System,
    pub(crate) size: usize,
    /// How many pairs, processes or connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) count: Option<usize>,
    /// Pairs of processes over which so many connections are spread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pairs: Option<usize>,
    pub(crate) unit: &'static str,
    pub(crate) median: f64,
    pub(crate) p99: Option<f64>,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) rounds: usize,
    pub(crate) ratio_to_ring: Option<f64>,
    pub(crate) ratio_to_tcp: Option<f64>,
    pub(crate) ratio_to_cacheline: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_to_futex: Option<f64>,
    /// To the same without what is measured here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_to_without: Option<f64>,
    /// To the same with the fewest connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio_to_fewest: Option<f64>,
    /// The path that the monitor reported, for SocksDirect; the benchmark fails when it is not shm.
    pub(crate) path: Option<&'static str>,
    pub(crate) congestion: Option<String>,
}

/// What a table shows.
#[derive(Clone, Copy)]
pub(crate) struct Figure {
    pub(crate) bench: &'static str,
    pub(crate) item: Option<&'static str>,
    pub(crate) unit: &'static str,
    pub(crate) size: usize,
    pub(crate) count: Option<usize>,
}

/// The rows of a benchmark with one figure.
pub(crate) fn rows(bench: What, size: usize, series: &[Series]) -> Vec<Row> {
    let (bench, unit, scale) = match bench {
        What::Latency => ("latency", "ns", 1.0),
        What::Wake => ("wake", "ns", 1.0),
        What::Rate => ("rate", "messages/s", 1.0),
        _ => ("bandwidth", "MB/s", size as f64 / 1e6),
    };
    let figure = Figure { bench, item: None, unit, size, count: None };
    rows_of(figure, series, |outcome| {
        Some((outcome.client.value * scale, outcome.client.p99.map(|p99| p99 * scale)))
    })
}

/// One row for each system that has the figure `pick` looks for.
pub(crate) fn rows_of(
    figure: Figure,
    series: &[Series],
    pick: impl Fn(&Outcome) -> Option<(f64, Option<f64>)>,
) -> Vec<Row> {
    let of = |s: &Series| -> Vec<(f64, Option<f64>)> { s.outcomes.iter().filter_map(&pick).collect() };
    let values = |s: &Series| -> Vec<f64> { of(s).into_iter().map(|(value, _)| value).collect() };
    let base = |system| series.iter().find(|s| s.system == system).map(values).unwrap_or_default();
    let bases = [System::Ring, System::Tcp, System::Cacheline, System::Futex].map(base);
    let row = |s: &Series| {
        let own = values(s);
        let p99: Vec<f64> = of(s).into_iter().filter_map(|(_, p99)| p99).collect();
        let ratios = [0, 1, 2, 3].map(|i| ratio(&own, &bases[i]));
        Some(Row {
            bench: figure.bench,
            item: figure.item.map(Cow::Borrowed),
            system: s.system,
            size: figure.size,
            count: figure.count,
            pairs: None,
            unit: figure.unit,
            median: median(&own)?,
            p99: median(&p99),
            min: own.iter().copied().reduce(f64::min)?,
            max: own.iter().copied().reduce(f64::max)?,
            rounds: own.len(),
            ratio_to_ring: ratios[0],
            ratio_to_tcp: ratios[1],
            ratio_to_cacheline: ratios[2],
            ratio_to_futex: ratios[3],
            ratio_to_without: None,
            ratio_to_fewest: None,
            path: (s.system == System::Socksdirect).then_some("shm"),
            congestion: matches!(s.system, System::Tcp | System::Sockmap).then(|| congestion(s)).flatten(),
        })
    };
    series.iter().filter_map(row).collect()
}

fn congestion(series: &Series) -> Option<String> {
    series.outcomes.iter().find_map(|outcome| outcome.client.congestion.clone())
}

/// Prints all figures.
pub(crate) fn print_all(stage: &Stage, json: bool, plan: Plan, rows: &[Row]) -> Result<()> {
    if json {
        let lines: std::result::Result<Vec<String>, _> = rows.iter().map(serde_json::to_string).collect();
        let lines = lines.context("JSON")?;
        return print(&lines.iter().map(|line| format!("{line}\n")).collect::<String>());
    }
    if rows.is_empty() {
        return Ok(());
    }
    let mut text = heading(stage, plan, rows);
    let same = |a: &Row, b: &Row| (a.bench, &a.item, a.size, a.count) == (b.bench, &b.item, b.size, b.count);
    for group in rows.chunk_by(same) {
        text.push('\n');
        text.push_str(&table(group));
    }
    print(&text)
}

fn heading(stage: &Stage, plan: Plan, rows: &[Row]) -> String {
    let congestion = rows.iter().find(|r| r.system == System::Tcp).and_then(|r| r.congestion.clone());
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split(':').nth(1));
    let [first, second] = stage.cpus;
    format!(
        "{}, CPUs {first} and {second}, Linux {}; {} rounds in turn; TCP with {}\n\
         ratios are medians of each round's ratio\n",
        model.unwrap_or("CPU unknown").trim(),
        kernel.trim(),
        plan.rounds,
        congestion.as_deref().unwrap_or("the system's congestion control"),
    )
}

fn table(rows: &[Row]) -> String {
    let Some(first) = rows.first() else { return String::new() };
    let unit = first.unit;
    let size = if first.size > 0 { format!(", {} B", grouped(first.size as f64)) } else { String::new() };
    let count = first.count.map_or_else(String::new, |count| format!(", {}", grouped(count as f64)));
    let name = first.item.as_deref().unwrap_or(first.bench);
    let mut header =
        vec![(format!("{name}{count}{size}"), Align::Left), (format!("median {unit}"), Align::Right)];
    let has_p99 = rows.iter().any(|row| row.p99.is_some());
    if has_p99 {
        header.push((format!("p99 {unit}"), Align::Right));
    }
    header.extend([(format!("min {unit}"), Align::Right), (format!("max {unit}"), Align::Right)]);
    type Ratio = fn(&Row) -> Option<f64>;
    let ratios: [(&str, Ratio); 6] = [
        ("/ ring", |row| row.ratio_to_ring),
        ("/ tcp", |row| row.ratio_to_tcp),
        ("/ cacheline", |row| row.ratio_to_cacheline),
        ("/ futex", |row| row.ratio_to_futex),
        ("/ without", |row| row.ratio_to_without),
        ("/ fewest", |row| row.ratio_to_fewest),
    ];
    let shown: Vec<_> = ratios.into_iter().filter(|(_, of)| rows.iter().any(|r| of(r).is_some())).collect();
    header.extend(shown.iter().map(|(title, _)| ((*title).to_owned(), Align::Right)));
    let cells = |row: &Row| {
        let mut cells = vec![row.system.name(), number(row.median)];
        if has_p99 {
            cells.push(row.p99.map_or("-".to_owned(), number));
        }
        cells.extend([number(row.min), number(row.max)]);
        cells.extend(shown.iter().map(|(_, of)| of(row).map_or("-".to_owned(), three_digits)));
        cells
    };
    let header: Vec<(&str, Align)> = header.iter().map(|(title, align)| (title.as_str(), *align)).collect();
    render(&header, &rows.iter().map(cells).collect::<Vec<_>>())
}

/// Three digits that say something, or more of a large number.
fn three_digits(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        v if v >= 0.1 || v == 0.0 => format!("{value:.3}"),
        v if v >= 0.01 => format!("{value:.4}"),
        _ => format!("{value:.5}"),
    }
}

fn number(value: f64) -> String {
    if value.abs() >= 1000.0 { grouped(value) } else { three_digits(value) }
}

/// A whole number, with a comma for each thousand.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Says why a system is not measured, which is no failure: not every system is everywhere.
pub(crate) fn unavailable(options: &BenchOptions, system: System, why: &str) -> Result<()> {
    if options.json {
        let line = serde_json::json!({"system": system, "unavailable": why});
        return print(&format!("{line}\n"));
    }
    warn(&format!("{} is not measured: {why}", system.name()));
    Ok(())
}

/// Shows on a terminal what is being done; an empty text wipes it.
pub(crate) fn progress(text: &str) {
    let mut terminal = std::io::stderr();
    if terminal.is_terminal() {
        // Progress that cannot be shown is no failure.
        let _ = write!(terminal, "\r\x1b[K{text}").and_then(|()| terminal.flush());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(number(1234567.8), "1,234,568");
        assert_eq!(number(263.4), "263");
        assert_eq!(number(1.234), "1.23");
        assert_eq!(number(0.1234), "0.123");
        assert_eq!(number(0.003456), "0.00346");
        assert_eq!(number(0.0), "0.000");
        assert_eq!(grouped(8.0), "8");
    }
}
