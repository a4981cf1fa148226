//! What the person at the terminal sees: progress on standard error, tables, counts.

use std::io::{IsTerminal, Write};
use std::time::Instant;

/// Passed, failed and skipped, as every closing line counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
}

impl Count {
    pub fn add(&mut self, other: Count) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    pub fn one(is_ok: bool) -> Count {
        Count { passed: usize::from(is_ok), failed: usize::from(!is_ok), skipped: 0 }
    }

    /// `N passed, N failed`, and the skipped where there are any.
    pub fn line(&self) -> String {
        match self.skipped {
            0 => format!("{} passed, {} failed", self.passed, self.failed),
            skipped => format!("{} passed, {} failed, {skipped} skipped", self.passed, self.failed),
        }
    }

    /// Reads the closing line of a runner: ours, or that of `cargo test`.
    pub fn parse(line: &str) -> Option<Count> {
        let line = line.trim();
        let (text, separator) = match line.strip_prefix("test result: ") {
            Some(rest) => (rest.split_once(". ")?.1, ';'),
            None => (line, ','),
        };
        let mut fields = text.split(separator).map(str::trim);
        let passed = fields.next()?.strip_suffix(" passed")?.parse().ok()?;
        let failed = fields.next()?.strip_suffix(" failed")?.parse().ok()?;
        let skipped = fields.next().and_then(|f| f.split(' ').next()?.parse().ok()).unwrap_or(0);
        Some(Count { passed, failed, skipped })
    }
}

/// A line on standard error that says which step of how many is running.
pub struct Progress {
    total: usize,
    done: usize,
    start: Instant,
    is_terminal: bool,
}

impl Progress {
    pub fn new(total: usize) -> Progress {
        Progress { total, done: 0, start: Instant::now(), is_terminal: std::io::stderr().is_terminal() }
    }

    pub fn step(&mut self, what: &str) {
        self.done += 1;
        let seconds = self.start.elapsed().as_secs();
        let text = format!("[{:>2}/{}] {seconds:>3} s  {what}", self.done, self.total);
        let mut stderr = std::io::stderr().lock();
        let _ = if self.is_terminal { write!(stderr, "\r\x1b[K{text}") } else { writeln!(stderr, "{text}") };
        let _ = stderr.flush();
    }

    pub fn finish(&self) {
        if self.is_terminal {
            eprint!("\r\x1b[K");
        }
    }
}

/// Lays rows out in columns: the first to the left, numbers to the right.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = header.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for (index, (cell, &width)) in cells.zip(&widths).enumerate() {
            let padded = if index == 0 { format!("{cell:<width$}") } else { format!("  {cell:>width$}") };
            text.push_str(&padded);
        }
        text.trim_end().to_owned() + "\n"
    };
    let mut text = line(&mut header.iter().copied());
    text.push_str(&"-".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1)));
    text.push('\n');
    for row in rows {
        text.push_str(&line(&mut row.iter().map(String::as_str)));
    }
    text
}

/// The middle value; the lower of the two middle ones of an even number. Zero of none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// `1234567` as `1,234,567`.
pub fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines() {
        let cargo =
            "test result: ok. 12 passed; 1 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.1s";
        assert_eq!(Count::parse(cargo), Some(Count { passed: 12, failed: 1, skipped: 3 }));
        assert_eq!(Count::parse("7 passed, 0 failed"), Some(Count { passed: 7, failed: 0, skipped: 0 }));
        assert_eq!(
            Count::parse("7 passed, 1 failed, 2 skipped"),
            Some(Count { passed: 7, failed: 1, skipped: 2 })
        );
        assert_eq!(Count::parse("the 7 passed"), None);
    }

    #[test]
    fn middle_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0]), 1.0);
        assert_eq!(median(&[]), 0.0);
    }

    #[test]
    fn groups_of_three() {
        assert_eq!(thousands(1_234_567.0), "1,234,567");
        assert_eq!(thousands(999.4), "999");
    }

    #[test]
    fn columns_line_up() {
        let text = table(&["a", "number"], &[vec!["long name".into(), "1".into()]]);
        assert_eq!(text, "a          number\n-----------------\nlong name       1\n");
    }
}
