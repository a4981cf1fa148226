//! The steps of `cargo xtask test` and `ci`: each is a command that is run, timed and counted; at the end stands once more what
//! went wrong, and one closing line.
//!
//! Many steps wait more than they work: for time-outs, for processes that die, for clocks that programs believe. So those
//! that only compute are run beside them, one after the other, in the scheduler's idle class (sched(7), SCHED_IDLE): they get what
//! the others leave, and take nothing from tests that look at times. What they say is printed when all is over.

use crate::gist::Gist;
use harness::report::Count;
use harness::{Result, scratch};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::Instant;

/// A step's name, what it counted, how long it took, and what of its output is shown again.
struct Step {
    name: String,
    count: Count,
    seconds: f64,
    again: Vec<String>,
    /// What it said, if that was not printed yet.
    said: Vec<String>,
}

#[derive(Default)]
pub(crate) struct Steps {
    steps: Vec<Step>,
    beside: Option<JoinHandle<Vec<Step>>>,
}

/// What a step's command has said.
struct Said {
    is_ok: bool,
    count: Count,
    gist: Gist,
}

/// How a command is judged.
#[derive(Clone, Copy)]
pub(crate) enum Judged {
    /// By its closing lines. A failure that no line counts is one.
    ByCounts,
    /// It passes or fails as a whole.
    Whole,
}

impl Judged {
    fn count(self, said: &Said) -> Count {
        match self {
            Judged::Whole => Count::one(said.is_ok),
            Judged::ByCounts => {
                let is_silent = said.count == Count::default();
                let is_uncounted = is_silent || (!said.is_ok && said.count.failed == 0);
                Count { failed: said.count.failed + usize::from(is_uncounted), ..said.count }
            }
        }
    }
}

/// A step to come.
pub(crate) type Planned = (&'static str, Judged, Command);

impl Steps {
    /// A command whose closing lines are counted.
    pub(crate) fn tests(&mut self, name: &str, command: &mut Command) {
        self.step(name, Judged::ByCounts, command);
    }

    /// A command that passes or fails as a whole.
    pub(crate) fn command(&mut self, name: &str, command: &mut Command) {
        self.step(name, Judged::Whole, command);
    }

    /// Runs a step, whose failure is counted and does not stop the others.
    fn step(&mut self, name: &str, judged: Judged, command: &mut Command) {
        println!("\n==> {name}");
        self.steps.push(run(name, judged, command, |line| println!("{line}")));
    }

    /// Runs these one after the other, beside the steps that are run from now on, on processors that would be idle. They
    /// build in directories of their own: nobody must wait for a lock that one of them holds. Called once.
    pub(crate) fn beside(&mut self, planned: Vec<Planned>) {
        let work = move || planned.into_iter().map(in_the_background).collect();
        self.beside = Some(std::thread::spawn(work));
    }

    /// Prints what is not yet printed, the times, once more what went wrong, and the closing line.
    pub(crate) fn finish(mut self) -> Result<()> {
        let start = Instant::now();
        match self.beside.take().map(JoinHandle::join) {
            Some(Ok(steps)) => self.steps.extend(steps),
            Some(Err(_)) => self.steps.push(Step::failed("beside the others", "a panic, above".to_owned())),
            None => {}
        }
        let waited = start.elapsed().as_secs_f64();
        for step in self.steps.iter().filter(|step| !step.said.is_empty()) {
            println!("\n==> {}, which ran beside the others", step.name);
            step.said.iter().for_each(|line| println!("{line}"));
        }
        println!("\n==> summary");
        let (mut total, mut seconds) = (Count::default(), waited);
        for step in &self.steps {
            let is_beside = !step.said.is_empty();
            let beside = if is_beside { ", beside the others" } else { "" };
            println!("{:<16} {:>7.1} s  {}{beside}", step.name, step.seconds, part(step.count));
            total.add(step.count);
            seconds += if is_beside { 0.0 } else { step.seconds };
        }
        println!("{:<16} {seconds:>7.1} s, {waited:.1} s of it for those beside the others", "together");
        for step in self.steps.iter().filter(|step| !step.again.is_empty()) {
            println!("\n==> {}, once more: {}", step.name, part(step.count));
            step.again.iter().for_each(|line| println!("{line}"));
        }
        println!("\n{}", total.line());
        if total.failed > 0 {
            scratch::clean();
            std::process::exit(1);
        }
        Ok(())
    }
}

impl Step {
    fn failed(name: &str, why: String) -> Step {
        Step {
            name: name.to_owned(),
            count: Count::one(false),
            seconds: 0.0,
            again: vec![why],
            said: Vec::new(),
        }
    }
}

/// Runs a command and judges it; `line` gets what it says, as it comes.
fn run(name: &str, judged: Judged, command: &mut Command, line: impl FnMut(&str)) -> Step {
    let start = Instant::now();
    let mut step = match said(command, line) {
        Ok(said) => {
            let count = judged.count(&said);
            let again = said.gist.lines(count.failed == 0);
            Step { name: name.to_owned(), count, seconds: 0.0, again, said: Vec::new() }
        }
        Err(error) => Step::failed(name, error.to_string()),
    };
    step.seconds = start.elapsed().as_secs_f64();
    step
}

fn in_the_background((name, judged, mut command): Planned) -> Step {
    // SAFETY: between fork and exec only sched_setscheduler(2) is called, which reads one structure.
    unsafe {
        command.pre_exec(|| {
            let nothing: nix::libc::sched_param = std::mem::zeroed();
            // Where that is refused it runs as the others do.
            nix::libc::sched_setscheduler(0, nix::libc::SCHED_IDLE, &raw const nothing);
            Ok(())
        });
    }
    let mut lines = Vec::new();
    let mut step = run(name, judged, &mut command, |line| lines.push(line.to_owned()));
    lines.push(format!("{name}: {:.1} s", step.seconds));
    step.said = lines;
    step
}

/// A count that is only a part: the closing line of all comes last and stands alone.
fn part(count: Count) -> String {
    count.line().replace(',', ";")
}

/// Runs a command, passes both of its outputs on as they come, and adds its closing lines up.
fn said(command: &mut Command, mut pass_on: impl FnMut(&str)) -> Result<Said> {
    let (read, write) = std::io::pipe()?;
    let mut child = command.stdin(Stdio::null()).stdout(write.try_clone()?).stderr(write).spawn()?;
    // It holds the other end, and the reader would wait for that too.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (mut count, mut gist) = (Count::default(), Gist::default());
    for line in BufReader::new(read).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        gist.add(&line);
        match Count::parse(&line) {
            Some(closing) => {
                count.add(closing);
                pass_on(&format!("  {}", line.trim().replace(',', ";")));
            }
            None => pass_on(&line),
        }
    }
    Ok(Said { is_ok: child.wait()?.success(), count, gist })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn step(text: &str) -> Step {
        let mut steps = Steps::default();
        steps.tests("a step", &mut script(text));
        steps.steps.remove(0)
    }

    #[test]
    fn both_outputs_are_heard_and_every_failure_counts() {
        let counted = step("echo '3 passed, 1 failed'; echo 'FAIL what' >&2; exit 1");
        assert_eq!(counted.count, Count { passed: 3, failed: 1, skipped: 0 });
        assert_eq!(counted.again[0], "FAIL what");
        let passed = step("echo '3 passed, 0 failed'");
        assert_eq!((passed.count.failed, passed.again.len()), (0, 0));
        assert_eq!(step("echo '3 passed, 0 failed'; exit 1").count.failed, 1);
        assert_eq!(step("echo nothing").count.failed, 1);
    }

    #[test]
    fn steps_beside_the_others_count_and_are_idle() {
        let planned = vec![
            (
                "class",
                Judged::Whole,
                script("grep -q '^policy *: *5$' /proc/self/sched || chrt -p $$ | grep IDLE"),
            ),
            ("fails", Judged::ByCounts, script("echo 'FAIL why'; echo '2 passed, 1 failed'; exit 1")),
            ("is not there", Judged::Whole, Command::new("/nowhere/at/all")),
        ];
        let mut steps = Steps::default();
        steps.beside(planned);
        let done = steps.beside.take().and_then(|beside| beside.join().ok()).unwrap_or_default();
        let failed: Vec<usize> = done.iter().map(|step| step.count.failed).collect();
        assert_eq!(failed, [0, 1, 1]);
        assert_eq!(done[1].again[0], "FAIL why");
        assert_eq!(done[1].said[..2], ["FAIL why", "  2 passed; 1 failed"]);
    }
}
