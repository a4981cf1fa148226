//! Programs that the dynamic linker does not load the library into. A static one that makes its system calls and threads itself, as Go's runtime
//! does, gets it however it is executed; it needs no Go, so this runs always, and `go` has the real ones. So does one that has a dynamic linker
//! and no library. The same of programs of musl's, dynamic and static, and of glibc's static ones.

use super::Scenario;
use super::mixed_tools::compile;
use harness::lab::{Lab, Side};
use harness::process::{Output, Proc, free_port};
use harness::ss::Watch;
use harness::{Result, fail, product, retry, ss};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("own-calls", &["gcc", "/usr/include/stdio.h", "python3"], |lab| {
        own_calls(lab, &["-static"])
    })
    .limit_s(60),
    Scenario::new("own-calls-linked", &["gcc", "/usr/include/stdio.h", "python3"], |lab| {
        own_calls(lab, LINKED)
    })
    .limit_s(60),
    Scenario::new("musl-program", &["musl-gcc", "python3"], |lab| {
        program(lab, &compile_musl(lab, PROGRAM, &[])?)
    })
    .limit_s(30),
    Scenario::new("musl-static", &["musl-gcc", "python3"], |lab| {
        program(lab, &compile_musl(lab, PROGRAM, &["-static"])?)
    })
    .limit_s(30),
    Scenario::new("glibc-static", &["gcc", "/usr/include/stdio.h", "python3"], |lab| {
        program(lab, Path::new(&compile(lab, "glibc-static", PROGRAM, &["-static"])?))
    })
    .limit_s(30),
    Scenario::new("musl-unbegun", &["musl-gcc"], unbegun).limit_s(30),
    Scenario::new("musl-unbegun-inherits", &["musl-gcc", "python3"], unbegun_inherits).limit_s(30),
    Scenario::new("left-alone-is-named", &["gcc", "/usr/include/stdio.h", "python3"], left_alone).limit_s(30),
];

const LIMIT: Duration = Duration::from_secs(20);
pub(super) const OPTIONS: &[&str] =
    &["-nostdlib", "-ffreestanding", "-fno-stack-protector", "-Wl,--build-id=none"];
/// A dynamic linker that loads nothing for the program; instructions come first, as Go's linker lays it out.
const LINKED: &[&str] = &["-pie", "-fPIE", "-Wl,-z,noseparate-code"];
/// By posix_spawn(3), which no exec of the parent's is behind.
const SPAWN: &str = "import os, sys; child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ); \
     sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))";

/// By what it is executed: execvp(3), a shell (vfork), posix_spawn(3).
pub(super) const WAYS: [&[&str]; 3] =
    [&["env"], &["sh", "-c", "\"$@\"; exit $?", "sh"], &["python3", "-c", SPAWN]];

fn own_calls(lab: &mut Lab, options: &[&str]) -> Result<()> {
    let options = [OPTIONS, options].concat();
    let program = compile(lab, "own-calls", include_str!("../c/own_calls.c"), &options)?;
    for way in WAYS.into_iter().chain([&[] as &[&str]]) {
        let port = free_port()?;
        let watch = lab.watch(port);
        let said = said(lab, way, &[&program, &port.to_string(), "8", "20000"], watch.as_ref())?;
        if said != "echoed\n" {
            fail!("by {way:?} it said {said:?}");
        }
        lab.check(watch, Side::Sd, Side::Sd).map_err(|error| format!("by {way:?}: {error}"))?;
    }
    Ok(())
}

fn said(lab: &Lab, way: &[&str], words: &[&str], watch: Option<&Watch>) -> Result<String> {
    let words = [way, words].concat();
    let mut command = lab.command(Side::Sd, words[0], &words[1..])?;
    Ok(run_watched(lab, &mut command, watch)?.ok()?.text())
}

/// Runs a program whose connections stay until its standard input ends, which is once the watch has seen one.
pub(super) fn run_watched(lab: &Lab, command: &mut Command, watch: Option<&Watch>) -> Result<Output> {
    let mut program = Proc::start(command.stdin(Stdio::piped()), "program", lab.path())?;
    let input = program.stdin()?;
    let end = Instant::now() + LIMIT;
    // Of what was never seen, the caller's check tells.
    while watch.is_some_and(|watch| !watch.has_seen()) && program.is_running() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    // And as it is when all has been said.
    watch.inspect(|watch| watch.look());
    drop(input);
    program.wait(LIMIT)
}

pub(super) fn compile_musl(lab: &Lab, text: &str, options: &[&str]) -> Result<PathBuf> {
    let (source, program) = (lab.path().join("musl.c"), lab.path().join("musl"));
    std::fs::write(&source, text)?;
    let mut command = Command::new("musl-gcc");
    let command = command.args(options).arg("-o").arg(&program).arg(&source);
    Proc::start(command, "musl-gcc", lab.path())?.wait(LIMIT)?.ok()?;
    Ok(program)
}

/// A program in which no constructor runs, so the library does not begin.
fn compile_unbegun(lab: &Lab) -> Result<PathBuf> {
    compile_musl(lab, include_str!("../c/musl_unbegun.c"), &["-nostartfiles", "-Wl,-e,first"])
}

/// What is asked of all threads reaches them where the library has not begun (setuid(2)).
fn unbegun(lab: &mut Lab) -> Result<()> {
    let program = compile_unbegun(lab)?;
    let said = said(lab, &[], &[&program.display().to_string()], None)?;
    if said != "0 1 1\n" {
        fail!("the result, and the groups of both threads: {said:?}");
    }
    Ok(())
}

/// A connection over shared memory that it inherits by an exec goes on: it is the kernel's again, or bridged.
fn unbegun_inherits(lab: &mut Lab) -> Result<()> {
    let program = compile_unbegun(lab)?;
    let port = free_port()?;
    let text = port.to_string();
    let args = ["-c", include_str!("../py/heir_of_exec.py"), &text, &program.display().to_string()];
    let server = lab.serve(Side::Sd, port, "python3", &args)?;
    let watch = lab.watch(port);
    let args = ["-c", include_str!("../py/heir_client.py"), &text];
    let client = Proc::start(&mut lab.command(Side::Sd, "python3", &args)?, "client", lab.path())?;
    if !lab.is_oracle() {
        const WHY: &str = "it begins without the start of musl's libc";
        retry(LIMIT, || match reason_of(lab, server.pid())? {
            Some(reason) if reason.starts_with(WHY) => Ok(()),
            other => fail!("sd ss says of the heir {other:?}"),
        })?;
    }
    let said = client.wait(LIMIT)?.ok()?.text();
    if said != "echoed\n" {
        fail!("the client said {said:?}");
    }
    server.wait(LIMIT)?.ok()?;
    let seen = watch.map(|watch| watch.finish()).transpose()?.unwrap_or_default();
    let is_handed_on =
        |c: &ss::Connection| c.path == "bridged" || c.reason.as_deref().is_some_and(|why| why == "demoted");
    if !lab.is_oracle() && !seen.iter().any(is_handed_on) {
        fail!("none came over shared memory: {}", seen.iter().map(ss::describe).collect::<String>());
    }
    Ok(())
}

pub(super) const PROGRAM: &str = include_str!("../c/program.c");

/// One that is a server and its client, executed in each way.
fn program(lab: &Lab, program: &Path) -> Result<()> {
    // It is executed as the interpreter of a script (execve(2)), too.
    let script = lab.path().join("script");
    std::fs::write(&script, format!("#!{}\n", program.display()))?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
    let ways = WAYS.into_iter().chain([&[] as &[&str]]);
    let of_script = ways.clone().skip(1).map(|way| (script.as_path(), way));
    for (file, way) in ways.map(|way| (program, way)).chain(of_script) {
        let port = free_port()?;
        let watch = lab.watch(port);
        let said = said(lab, way, &[&file.display().to_string(), &port.to_string()], watch.as_ref())?;
        let of = || format!("{} by {way:?}", file.display());
        if said != "echoed\n" {
            fail!("{}: it said {said:?}", of());
        }
        lab.check(watch, Side::Sd, Side::Sd).map_err(|error| format!("{}: {error}", of()))?;
    }
    Ok(())
}

/// A static program whose text can be written serves a client of ours over the kernel, and `sd ss` and `sd doctor` say why.
fn left_alone(lab: &mut Lab) -> Result<()> {
    const WHY: &str = "it is statically linked, with memory that is both written and executed";
    let echo = compile(lab, "open", include_str!("../c/echo.c"), &["-static"])?;
    open_text(&echo)?;
    let port = free_port()?;
    let text = port.to_string();
    let server = lab.serve(Side::Sd, port, &echo, &["serve", &text])?;
    lab.run(Side::Sd, "python3", &["-c", CONNECT, &text], LIMIT)?;
    if !lab.is_oracle() {
        let reason = reason_of(lab, server.pid())?;
        if reason.as_deref() != Some(WHY) {
            fail!("sd ss says {reason:?}");
        }
        let mut doctor = Command::new(product::sd());
        doctor.args(["doctor", "--pid", &server.pid().to_string()]).env("SD_MONITOR", lab.socket());
        let said = Proc::start(&mut doctor, "sd", lab.path())?.wait(LIMIT)?.text();
        if !said.contains(WHY) {
            fail!("sd doctor says {said}");
        }
    }
    server.terminate(LIMIT)?;
    Ok(())
}

/// Lets a program's text be written while it runs (elf(5)).
fn open_text(program: &str) -> Result<()> {
    const HEADER_LEN: usize = 56;
    const PT_LOAD: u8 = 1;
    const PF_X: u8 = 1;
    const PF_W: u8 = 2;
    let mut file = std::fs::read(program)?;
    let table = u64::from_le_bytes(*file[32..].first_chunk().ok_or("no ELF file")?) as usize;
    let count = usize::from(file[56]);
    let mut headers = file[table..].chunks_exact_mut(HEADER_LEN).take(count);
    let text = headers.find(|header| header[0] == PT_LOAD && header[4] & PF_X != 0).ok_or("no text")?;
    text[4] |= PF_W;
    Ok(std::fs::write(program, file)?)
}

/// Why a process is not known to the monitor, as `sd ss` says.
fn reason_of(lab: &Lab, pid: u32) -> Result<Option<String>> {
    let known = ss::document(&product::sd(), &lab.socket())?;
    let mut named = known["unregistered"].as_array().into_iter().flatten();
    let found = named.find(|one| one["pid"] == pid);
    Ok(found.and_then(|one| one["reason"].as_str()).map(str::to_owned))
}

/// One conversation.
const CONNECT: &str = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); s.sendall(b'word'); \
     assert s.recv(4) == b'word'; s.close()";
