//! Death at any instruction.
//!
//! A victim stops itself before and after an operation. It is stepped through once to count the instructions, then
//! again and again, killed each time somewhere else. Its peer, the observer, must have got every byte that was
//! acknowledged and none that was not sent, must see an end of the kind that Linux shows, and must not hang.

use super::{program, served};
use harness::lab::{Lab, Side};
use harness::process::Proc;
use harness::scratch::Scratch;
use harness::{Result, fail};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::io::Write;
use std::process::{ChildStdin, Stdio};
use std::time::{Duration, Instant};

/// A victim that does not come to the next instruction for so long sleeps in a system call.
const ASLEEP: Duration = Duration::from_millis(150);

/// An operation, and what its peer may see when the process dies in it.
pub(super) struct Play {
    pub(super) op: &'static str,
    /// Bytes that the victim sends, at most.
    sends: u64,
    /// The end may be a reset: the victim had, or may have had, something unread.
    may_reset: bool,
    /// There may be no connection at all.
    may_be_none: bool,
    /// A victim that does not come to the next instruction for so long sleeps for good.
    asleep: Duration,
    /// Steps, at most; the rest of a very long operation is not looked at.
    steps_max: u64,
}

const fn play(op: &'static str, sends: u64) -> Play {
    Play { op, sends, may_reset: false, may_be_none: false, asleep: ASLEEP, steps_max: 40_000 }
}

pub(super) const PLAYS: &[Play] = &[
    Play { may_be_none: true, may_reset: true, ..play("connect", 0) },
    Play { may_be_none: true, ..play("listen", 0) },
    Play { may_be_none: true, may_reset: true, ..play("accept", 0) },
    play("send", 100),
    play("sends", 160),
    Play { steps_max: 9_000, ..play("send-long", 300_000) },
    Play { may_reset: true, steps_max: 9_000, ..play("recv", 0) },
    Play { may_reset: true, ..play("epoll", 0) },
    Play { may_reset: true, ..play("pong", 8) },
    Play { may_reset: true, ..play("poll", 8) },
    Play { may_reset: true, ..play("thread_waker", 16) },
    // A child goes on sending for as long as it finds its parent alive.
    play("take-over", u64::MAX),
    // Memory is given back after 0.1 s, and after one second more.
    Play { asleep: Duration::from_millis(1200), ..play("idle", 100) },
    Play { asleep: Duration::from_millis(1200), ..play("park", 160) },
    Play { steps_max: 20_000, ..play("sweep", 160) },
    play("close", 100),
    play("shutdown", 100),
    play("fork", 150),
    play("exec", 100),
    play("spawn", 100),
    play("pass", 150),
    play("exit", 100),
];

pub(super) struct Observer {
    pub(super) proc: Proc,
    commands: ChildStdin,
    pub(super) port: u16,
    reports: usize,
}

impl Observer {
    pub(super) fn start(lab: &Lab) -> Result<Observer> {
        let mut command = lab.command(Side::Sd, &program().to_string_lossy(), &["observer"])?;
        command.stdin(Stdio::piped());
        let (mut proc, port) = served(Proc::start(&mut command, "observer", lab.path())?)?;
        Ok(Observer { commands: proc.stdin()?, proc, port: port.parse()?, reports: 0 })
    }

    pub(super) fn tell(&mut self, command: &str) -> Result<()> {
        // At once, as the observer acts on what it has read.
        Ok(self.commands.write_all(format!("{command}\n").as_bytes())?)
    }

    /// What it has seen since the last report.
    pub(super) fn report(&mut self) -> Result<Vec<String>> {
        self.tell("report")?;
        self.reports += 1;
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let text = self.proc.stdout_so_far();
            if text.matches("done\n").count() >= self.reports {
                let mut parts = text.split("done\n").map(str::to_owned).collect::<Vec<_>>();
                let part = parts.swap_remove(self.reports - 1);
                return Ok(part.lines().filter(|l| !l.starts_with("port")).map(str::to_owned).collect());
            }
            if Instant::now() > end || !self.proc.is_running() {
                fail!("the observer does not report: {}", self.proc.last_words());
            }
            std::thread::sleep(Duration::from_micros(300));
        }
    }
}

/// How a victim was left.
struct Death {
    /// Instructions it has done since the first stop.
    steps: u64,
    /// It came to the second stop, or its end.
    is_through: bool,
}

/// A victim, stopped before its operation.
pub(super) struct Victim {
    pid: Pid,
    note: std::path::PathBuf,
    _scratch: Scratch,
}

impl Victim {
    pub(super) fn start(lab: &Lab, op: &str, port: u16) -> Result<Victim> {
        let scratch = Scratch::new("victim")?;
        let note = scratch.path().join("note");
        std::fs::write(&note, [0; 16])?;
        let args = ["victim", op, &port.to_string(), &note.to_string_lossy()];
        let mut command = lab.command(Side::Sd, &program().to_string_lossy(), &args)?;
        let pid = Pid::from_raw(command.stdout(Stdio::null()).spawn()?.id() as i32);
        let victim = Victim { pid, note, _scratch: scratch };
        match waitpid(pid, None)? {
            WaitStatus::Stopped(_, Signal::SIGSTOP) => Ok(victim),
            other => fail!("the victim did not stop: {other:?}"),
        }
    }

    /// Steps through its operation, and leaves it stopped after so many instructions, or at its end, not traced any more.
    pub(super) fn stop_after(&self, steps: u64) -> Result<()> {
        for _ in 0..steps {
            ptrace::step(self.pid, None)?;
            if !matches!(self.wait(ASLEEP)?, Some(WaitStatus::Stopped(_, Signal::SIGTRAP))) {
                break;
            }
        }
        Ok(ptrace::detach(self.pid, Signal::SIGSTOP)?)
    }

    /// Lets it come to its end.
    pub(super) fn go_on(&self) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(10);
        // It stops itself once more.
        while waitpid(self.pid, Some(WaitPidFlag::WNOHANG))? == WaitStatus::StillAlive {
            if Instant::now() > end {
                let _ = kill(self.pid, Signal::SIGKILL);
                fail!("it does not come to its end");
            }
            kill(self.pid, Signal::SIGCONT)?;
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Writes a word of the note.
    pub(super) fn tell(&self, word: u64, value: u64) -> Result<()> {
        let file = std::fs::OpenOptions::new().write(true).open(&self.note)?;
        Ok(std::os::unix::fs::FileExt::write_all_at(&file, &value.to_ne_bytes(), word * 8)?)
    }

    pub(super) fn note(&self, word: usize) -> u64 {
        let bytes = std::fs::read(&self.note).unwrap_or_default();
        bytes.get(word * 8..word * 8 + 8).map_or(0, |b| u64::from_ne_bytes(b.try_into().unwrap_or_default()))
    }

    /// Steps through the operation and kills it after `steps` instructions, or at its end.
    fn kill_after(&self, steps: u64, asleep: Duration) -> Result<Death> {
        let mut death = Death { steps: 0, is_through: false };
        while death.steps < steps && !death.is_through {
            ptrace::step(self.pid, None)?;
            match self.wait(asleep)? {
                // It sleeps.
                None => break,
                Some(WaitStatus::Exited(_, code)) if code != 0 => fail!("the victim failed with {code}"),
                Some(
                    WaitStatus::Stopped(_, Signal::SIGSTOP)
                    | WaitStatus::Exited(..)
                    | WaitStatus::Signaled(..),
                ) => {
                    death.is_through = true;
                }
                Some(_) => death.steps += 1,
            }
        }
        // Gone already when it exited.
        let _ = kill(self.pid, Signal::SIGKILL);
        while !matches!(
            waitpid(self.pid, None),
            Ok(WaitStatus::Signaled(..) | WaitStatus::Exited(..)) | Err(_)
        ) {}
        Ok(death)
    }

    fn wait(&self, asleep: Duration) -> Result<Option<WaitStatus>> {
        let start = Instant::now();
        loop {
            match waitpid(self.pid, Some(WaitPidFlag::WNOHANG))? {
                WaitStatus::StillAlive if start.elapsed() > asleep => return Ok(None),
                WaitStatus::StillAlive if start.elapsed() > Duration::from_micros(200) => {
                    std::thread::sleep(Duration::from_micros(100));
                }
                WaitStatus::StillAlive => std::hint::spin_loop(),
                status => return Ok(Some(status)),
            }
        }
    }
}

/// Kills `deaths` victims in this operation.
pub(super) fn run(lab: &mut Lab, play: &Play, deaths: u64, seed: u64) -> Result<String> {
    let mut observer = Observer::start(lab)?;
    let whole = one(lab, &mut observer, play, play.steps_max)?;
    let mut chance = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for i in 0..deaths {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Spread over the whole, at random within each part.
        let part = whole.steps / deaths + 1;
        let steps = i * whole.steps / deaths + (chance >> 33) % part;
        one(lab, &mut observer, play, steps)
            .map_err(|error| format!("killed after {steps} instructions: {error}"))?;
    }
    if !lab.is_oracle()
        && let Some(connection) = lab.snapshot()?.connections.first()
    {
        fail!("every victim is gone, yet there is {}", harness::ss::describe(connection));
    }
    observer.proc.terminate(Duration::from_secs(5))?;
    let rest = if whole.is_through { "" } else { ", then asleep or stopped stepping" };
    Ok(format!("{deaths} deaths within {} instructions{rest}", whole.steps))
}

/// One victim, one death, and a look at what its peer has seen.
fn one(lab: &Lab, observer: &mut Observer, play: &Play, steps: u64) -> Result<Death> {
    let victim = Victim::start(lab, play.op, observer.port)?;
    if play.op == "accept" {
        observer.tell(&format!("connect {}", victim.note(1)))?;
    }
    let death = victim.kill_after(steps, play.asleep)?;
    let acknowledged = if play.may_reset { 0 } else { victim.note(0) };
    let seen = observer.report()?;
    if seen.is_empty() && !play.may_be_none {
        fail!("its peer has not seen the connection");
    }
    for line in &seen {
        check(play, line, acknowledged)
            .map_err(|error| format!("{error}: {line:?}, {acknowledged} acknowledged"))?;
    }
    Ok(death)
}

fn check(play: &Play, line: &str, acknowledged: u64) -> Result<()> {
    if let Some(why) = line.strip_prefix("cannot connect: ") {
        return if why == "REFUSED" || why == "RESET" { Ok(()) } else { fail!("an odd refusal") };
    }
    let words: Vec<&str> = line.split(' ').collect();
    let ["conn", got, intact, end, _] = words.as_slice() else { fail!("an odd report") };
    let got: u64 = got.parse()?;
    if *intact != "intact" {
        fail!("bytes were changed");
    }
    if got < acknowledged || got > play.sends {
        fail!("{got} bytes came");
    }
    match *end {
        "EOF" => Ok(()),
        "RESET" if play.may_reset => Ok(()),
        _ => fail!("a wrong end"),
    }
}
