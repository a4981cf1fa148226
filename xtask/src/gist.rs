//! What the summary of `cargo xtask test` and `ci` repeats of a step's output, since whoever reads a long log may have
//! been given only its end: the blocks of lines that tell a failure, and the last lines of a step that failed.

use std::collections::VecDeque;

/// Lines that are repeated of one step, and of its end.
const KEPT_MAX: usize = 60;
const LAST_MAX: usize = 12;

/// Where a block of lines ends.
#[derive(Clone, Copy)]
enum End {
    /// With its first line.
    Here,
    /// Before a line that is indented no more than the first one.
    Indent,
    /// Before an empty line.
    Empty,
    /// Before the next block.
    Block,
}

/// How the first line of a block begins, behind its indentation.
const BLOCKS: &[(&str, End)] = &[
    ("DIFF ", End::Indent),
    (UNSTEADY, End::Indent),
    ("FAIL ", End::Indent),
    ("Diff in ", End::Empty),
    ("error", End::Empty),
    ("Caused by:", End::Empty),
    ("thread '", End::Empty),
    // What a test printed; the list of the tests that failed follows.
    ("---- ", End::Block),
    ("failures:", End::Empty),
    ("test result:", End::Here),
    ("known ", End::Indent),
];

/// Blocks that say nothing that would be missed.
const DROPPED: &[&str] = &["failures:", "test result:", "known "];

/// Shown although the step has passed.
const UNSTEADY: &str = "UNSTEADY ";

/// Lines gathered while a step runs.
#[derive(Default)]
pub(crate) struct Gist {
    /// Each with the word that its block begins with.
    kept: Vec<(&'static str, String)>,
    block: Option<Block>,
    last: VecDeque<String>,
}

#[derive(Clone, Copy)]
struct Block {
    word: &'static str,
    end: End,
    indent: usize,
}

impl Gist {
    /// Looks at the next line of the output.
    pub(crate) fn add(&mut self, line: &str) {
        let block = self.block.filter(|block| block.goes_on(line));
        self.block = match block {
            Some(Block { end: End::Indent, .. }) => block,
            _ => first_line(line).or(block),
        };
        match self.block {
            Some(block) if !DROPPED.contains(&block.word) => self.kept.push((block.word, line.to_owned())),
            Some(_) => {}
            None if line.trim().is_empty() || line.starts_with("ok ") || line.ends_with(" ... ok") => {}
            None => {
                self.last.push_back(line.to_owned());
                if self.last.len() > LAST_MAX {
                    self.last.pop_front();
                }
            }
        }
    }

    /// What is worth a second look.
    pub(crate) fn lines(&self, is_ok: bool) -> Vec<String> {
        let kept = self.kept.iter().filter(|(word, _)| !is_ok || *word == UNSTEADY);
        let mut lines: Vec<String> = kept.map(|(_, line)| line.clone()).collect();
        if lines.len() > KEPT_MAX {
            let more = lines.len() - KEPT_MAX;
            lines.truncate(KEPT_MAX);
            lines.push(format!("... and {more} lines more"));
        }
        if !is_ok {
            lines.push("at its end:".to_owned());
            lines.extend(self.last.iter().cloned());
        }
        lines
    }
}

/// The block that begins with this line.
fn first_line(line: &str) -> Option<Block> {
    let text = line.trim_start();
    let indent = line.len() - text.len();
    if text.starts_with("test ") && text.ends_with("FAILED") {
        return Some(Block { word: "test ", end: End::Here, indent });
    }
    let &(word, end) = BLOCKS.iter().find(|(word, _)| text.starts_with(word))?;
    Some(Block { word, end, indent })
}

impl Block {
    fn goes_on(&self, line: &str) -> bool {
        match self.end {
            End::Here => false,
            End::Indent => line.len() - line.trim_start().len() > self.indent,
            End::Empty => !line.trim().is_empty(),
            End::Block => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(output: &str, is_ok: bool) -> Vec<String> {
        let mut gist = Gist::default();
        output.lines().for_each(|line| gist.add(line));
        gist.lines(is_ok)
    }

    #[test]
    fn differences_with_their_excerpts() {
        let output = "ok    a/b (both)\nUNSTEADY c/d (both): - kernel, + here, once\n      - 1\n      + 2\n\
            known e/f (both): so it is\n      - 3\nDIFF  g/h (both): - kernel, + here\n      + 4\nok    i/j (both)\n\
            2 passed, 1 failed";
        let unsteady = ["UNSTEADY c/d (both): - kernel, + here, once", "      - 1", "      + 2"];
        let different = ["DIFF  g/h (both): - kernel, + here", "      + 4", "at its end:"];
        assert_eq!(lines(output, true), unsteady);
        let failed = lines(output, false);
        assert_eq!(failed[..6], [unsteady, different].concat());
        assert_eq!(failed[6..], ["2 passed, 1 failed"]);
    }

    #[test]
    fn what_a_failed_test_has_printed() {
        let output = "test a ... ok\ntest b ... FAILED\n\nfailures:\n\n---- b stdout ----\none\n\ntwo\n\nfailures:\n    b\n\n\
            test result: FAILED. 1 passed; 1 failed\n\nerror: test failed, to rerun pass `-p c`\n\n     Running d";
        let shown = [
            "test b ... FAILED",
            "---- b stdout ----",
            "one",
            "",
            "two",
            "",
            "error: test failed, to rerun pass `-p c`",
            "at its end:",
            "     Running d",
        ];
        assert_eq!(lines(output, false), shown);
    }

    #[test]
    fn a_step_without_words_shows_its_end() {
        let output = (0..100).map(|line| format!("line {line}\n")).collect::<String>();
        let shown = lines(&output, false);
        assert_eq!(shown.len(), 1 + LAST_MAX);
        assert_eq!(shown[LAST_MAX], "line 99");
        assert_eq!(lines(&output, true), Vec::<String>::new());
    }
}
