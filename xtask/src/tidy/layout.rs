//! Lengths of files and functions, and a word of justification for each piece of unsafe code.

use super::{Findings, source};

const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;

/// Files that may be longer, with the reason.
const LONG_FILES: &[(&str, &str)] = &[];

/// Functions that may be longer, as `file:function`, with the reason.
const LONG_FUNCTIONS: &[(&str, &str)] = &[];

pub(crate) fn check(name: &str, text: &str) -> Findings {
    let mut findings = Findings::new();
    let is_rust = name.ends_with(".rs");
    let is_source = is_rust || [".py", ".sh", ".c", ".h"].iter().any(|end| name.ends_with(end));
    if !is_source {
        return findings;
    }
    let lines = text.lines().count();
    if lines > FILE_LINES_MAX && !LONG_FILES.iter().any(|(file, _)| *file == name) {
        findings.push(format!("{name}: {lines} lines, at most {FILE_LINES_MAX} are allowed"));
    }
    if is_rust {
        let masked = source::mask(text);
        findings.extend(long_functions(name, &masked));
        findings.extend(unexplained_unsafe(name, text, &masked));
    }
    findings
}

fn long_functions(name: &str, masked: &str) -> Findings {
    let is_allowed = |function: &source::Function| {
        let entry = format!("{name}:{}", function.name);
        LONG_FUNCTIONS.iter().any(|(allowed, _)| *allowed == entry)
    };
    source::functions(masked)
        .iter()
        .filter(|function| function.lines > FUNCTION_LINES_MAX && !is_allowed(function))
        .map(|f| {
            format!(
                "{name}:{}: fn {} has {} lines, at most {FUNCTION_LINES_MAX} are allowed",
                f.line, f.name, f.lines
            )
        })
        .collect()
}

/// Every `unsafe` block and `unsafe impl` has a comment with `SAFETY:` on its line or above its statement.
fn unexplained_unsafe(name: &str, text: &str, masked: &str) -> Findings {
    let lines: Vec<&str> = text.lines().collect();
    let code: Vec<&str> = masked.lines().collect();
    let mut findings = Findings::new();
    for (index, line) in code.iter().enumerate() {
        let opens = line.match_indices("unsafe").any(|(at, word)| {
            let after = line[at + word.len()..].trim_start();
            let before = line[..at].chars().next_back();
            let is_word = before.is_none_or(|c| !c.is_alphanumeric() && c != '_');
            is_word && (after.starts_with('{') || after.starts_with("impl"))
        });
        if opens && !is_explained(&lines, &code, index) {
            findings.push(format!("{name}:{}: unsafe code without a SAFETY comment", index + 1));
        }
    }
    findings
}

fn is_explained(lines: &[&str], code: &[&str], index: usize) -> bool {
    if lines[index].contains("SAFETY:") {
        return true;
    }
    for above in (0..index).rev() {
        if lines[above].contains("SAFETY:") {
            return true;
        }
        let code = code[above].trim();
        let ends_statement = code.ends_with([';', '{', '}']) || code.ends_with(',');
        let is_unsafe_too = code.contains("unsafe");
        if ends_statement && !is_unsafe_too {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_needs_a_word() {
        let good = "fn a() {\n    // SAFETY: it is.\n    let x =\n        unsafe { b() };\n}\n";
        let bad = "fn a() {\n    // It is safe.\n    c();\n    unsafe { b() };\n}\n";
        assert_eq!(check("a.rs", good), Findings::new());
        assert_eq!(check("a.rs", bad).len(), 1);
        assert_eq!(check("a.rs", "// unsafe { }\nunsafe fn b();\n"), Findings::new());
    }

    #[test]
    fn lengths() {
        let long = format!("fn a() {{\n{}}}\n", "    b();\n".repeat(70));
        assert_eq!(check("a.rs", &long).len(), 1);
        assert_eq!(check("a.md", &"x\n".repeat(501)), Findings::new());
        assert_eq!(check("a.py", &"x\n".repeat(501)).len(), 1);
    }
}
