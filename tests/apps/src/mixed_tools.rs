//! Mixed worlds, continued: programs built in odd ways, and under tools that watch them.

use super::mixed::both;
use super::{Scenario, python, web};
use harness::lab::{Lab, Side};
use harness::nginx::{Nginx, Workers, own_user};
use harness::process::{Proc, free_port};
use harness::{Result, fail, product};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("mixed-hook-library", GCC, hook_library).extra().at_first_byte(),
    Scenario::new("mixed-proxychains", &[PROXYCHAINS, "microsocks", "nginx", "curl"], proxychains)
        .extra()
        .at_first_byte(),
    Scenario::new("mixed-dlmopen", GCC, dlmopen).extra().at_first_byte(),
    Scenario::new("mixed-static", GCC, |lab| without_us(lab, &["-static", "-DSTATIC"], &[]))
        .extra()
        .at_first_byte(),
    Scenario::new("mixed-busybox", &["busybox", "python3"], busybox).extra().at_first_byte(),
    Scenario::new("mixed-set-user-id", GCC, set_user_id).extra().at_first_byte(),
    Scenario::new("mixed-asan", GCC, |lab| built(lab, &["-g", "-fsanitize=address"], &[]))
        .extra()
        .at_first_byte(),
    Scenario::new("mixed-asan-static", GCC, |lab| {
        built(lab, &["-fsanitize=address", "-static-libasan"], &[])
    })
    .extra()
    .at_first_byte(),
    Scenario::new("mixed-tsan", GCC, tsan).extra().at_first_byte(),
    Scenario::new("mixed-valgrind", VALGRIND, |lab| built(lab, &["-g"], MEMCHECK))
        .limit_s(180)
        .extra()
        .at_first_byte(),
    Scenario::new("mixed-valgrind-leaks", VALGRIND, leaks).limit_s(400).slow().extra().at_first_byte(),
    Scenario::new("mixed-strace", &["gcc", "/usr/include/stdio.h", "strace"], |lab| {
        built(lab, &[], &["strace", "-D", "-f", "-o", "strace.log"])
    })
    .extra()
    .at_first_byte(),
    Scenario::new("mixed-strace-attached", &["strace", "python3"], |lab| attached(lab, STRACE))
        .extra()
        .at_first_byte(),
    Scenario::new("mixed-gdb-attached", &["gdb", "python3"], |lab| attached(lab, GDB))
        .extra()
        .at_first_byte(),
];

const PROXYCHAINS: &str = "/usr/lib/x86_64-linux-gnu/libproxychains.so.4";
const GCC: &[&str] = &["gcc", "/usr/include/stdio.h"];
const VALGRIND: &[&str] = &["gcc", "/usr/include/stdio.h", "valgrind"];
const MEMCHECK: &[&str] = &["valgrind", "-q", "--error-exitcode=9", "--leak-check=no"];
/// They watch for a while and let go; the process id comes last.
const STRACE: &[&str] = &["timeout", "-s", "INT", "1", "strace", "-f", "-q", "-o", "attached.log", "-p"];
const GDB: &[&str] = &[
    "gdb",
    "-q",
    "-nx",
    "-batch",
    "-ex",
    "thread apply all bt",
    "-ex",
    "info sharedlibrary",
    "-ex",
    "detach",
    "-p",
];
const LIMIT: Duration = Duration::from_secs(60);
/// The check reads everything that is mapped: gigabytes of untouched shared memory.
const LEAK_CHECK_LIMIT: Duration = Duration::from_secs(180);
const OFTEN: Duration = Duration::from_millis(5);
const ECHOES: &str = "24 echoes";
const BOTH_OURS: (Side, Side) = (Side::Sd, Side::Sd);

/// Where another preloaded library stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// As `sd run` does it.
    Behind,
    /// By hand.
    InFront,
}

impl Order {
    /// How the command is made that `apply` is for.
    pub(super) fn side(self) -> Side {
        if self == Order::Behind { Side::Sd } else { Side::Kernel }
    }

    pub(super) fn apply(self, lab: &Lab, command: &mut Command, other: &str) {
        if self == Order::Behind || lab.is_oracle() {
            command.env("LD_PRELOAD", other);
        } else {
            command.env("LD_PRELOAD", format!("{other}:{}", product::libsd().display()));
            command.env("SD_MONITOR", lab.socket());
        }
    }
}

/// Compiles one of our C programs into the laboratory; returns its path.
pub(crate) fn compile(lab: &Lab, name: &str, source: &str, options: &[&str]) -> Result<String> {
    let (program, file) = (lab.path().join(name), lab.path().join(format!("{name}.c")));
    std::fs::write(&file, source)?;
    let mut command = Command::new("gcc");
    command.args(["-O1", "-Wall", "-Wextra", "-pthread", "-o"]).arg(&program).args(options).arg(&file);
    Proc::start(&mut command, "gcc", lab.path())?.wait(LIMIT)?.ok()?;
    Ok(program.display().to_string())
}

fn compile_echo(lab: &Lab, options: &[&str]) -> Result<String> {
    compile(lab, "echo", include_str!("../c/echo.c"), options)
}

/// A command behind the words of programs that execute it.
fn behind(lab: &Lab, side: Side, before: &[&str], words: &[&str]) -> Result<Command> {
    let all: Vec<&str> = before.iter().chain(words).copied().collect();
    lab.command(side, all[0], &all[1..])
}

/// An accelerated program that was built, or is run, in an odd way; also with one side without us.
fn built(lab: &mut Lab, options: &[&str], before: &[&str]) -> Result<()> {
    let echo = compile_echo(lab, options)?;
    for sides in [BOTH_OURS, (Side::Sd, Side::Kernel), (Side::Kernel, Side::Sd)] {
        let port = free_port()?;
        let text = port.to_string();
        let mut server = behind(lab, sides.0, before, &[&echo, "serve", &text])?;
        let mut client = behind(lab, sides.1, before, &[&echo, "connect", &text])?;
        both(lab, port, &mut server, &mut client, sides, ECHOES).map_err(|e| format!("{sides:?}: {e}"))?;
    }
    Ok(())
}

/// What valgrind still finds at the end does not depend on how many connections there were.
fn leaks(lab: &mut Lab) -> Result<()> {
    let echo = compile_echo(lab, &["-g"])?;
    let port = free_port()?;
    let text = port.to_string();
    let mut server =
        Proc::start(&mut lab.command(Side::Sd, &echo, &["serve", &text])?, "server", lab.path())?;
    server.wait_listening(port)?;
    let watch = lab.watch_every(port, Duration::from_millis(5));
    let mut found = Vec::new();
    for count in ["10", "60"] {
        let log = lab.path().join(format!("leaks-{count}.log"));
        let log_file = format!("--log-file={}", log.display());
        let lost = "--errors-for-leak-kinds=definite,indirect,possible";
        let tool = ["valgrind", "--leak-check=full", lost, "--error-exitcode=9", &log_file];
        let words = [echo.as_str(), "churn", &text, count];
        let mut client = behind(lab, Side::Sd, &tool, &words)?;
        Proc::start(&mut client, "valgrind", lab.path())?.wait(LEAK_CHECK_LIMIT)?.ok()?;
        let report = std::fs::read_to_string(&log)?;
        let Some((_, reachable)) = report.split_once("still reachable: ") else {
            fail!("no summary of leaks: {report}")
        };
        found.push(reachable.lines().next().unwrap_or_default().to_owned());
    }
    if found[0] != found[1] {
        fail!("reachable after 10 connections: {}; after 60: {}", found[0], found[1]);
    }
    lab.check(watch, Side::Sd, Side::Sd)?;
    server.terminate(LIMIT)?.ok()?;
    Ok(())
}

/// ThreadSanitizer delivers a signal inside calls that it knows to block, and so has to stand in front of us.
fn tsan(lab: &mut Lab) -> Result<()> {
    let echo = compile_echo(lab, &["-g", "-fsanitize=thread"])?;
    let runtime = harness::process::output_of("gcc", &["-print-file-name=libtsan.so"])?;
    let runtime = std::fs::canonicalize(runtime.trim())?.display().to_string();
    let port = free_port()?;
    let text = port.to_string();
    let with_runtime = |role| {
        let mut command = lab.command(Order::InFront.side(), &echo, &[role, &text])?;
        Order::InFront.apply(lab, &mut command, &runtime);
        Result::Ok(command)
    };
    both(lab, port, &mut with_runtime("serve")?, &mut with_runtime("connect")?, BOTH_OURS, ECHOES)?;
    // `sd run` alone is enough where no signal matters.
    let mut client = lab.command(Side::Sd, &echo, &["connect", &text])?;
    both(lab, port, &mut with_runtime("serve")?, &mut client, BOTH_OURS, ECHOES)
}

/// A program that the library cannot get into, though `sd run` starts it, with one that it is in.
fn without_us(lab: &mut Lab, options: &[&str], before: &[&str]) -> Result<()> {
    let usual = compile(lab, "usual", include_str!("../c/echo.c"), &[])?;
    let odd = compile_echo(lab, options)?;
    if !before.is_empty() {
        std::fs::set_permissions(&odd, std::fs::Permissions::from_mode(0o4755))?;
    }
    for (server_words, client_words, sides) in [
        ((&usual, &[][..]), (&odd, before), (Side::Sd, Side::Kernel)),
        ((&odd, before), (&usual, &[][..]), (Side::Kernel, Side::Sd)),
    ] {
        let port = free_port()?;
        let text = port.to_string();
        let mut server = behind(lab, Side::Sd, server_words.1, &[server_words.0, "serve", &text])?;
        let mut client = behind(lab, Side::Sd, client_words.1, &[client_words.0, "connect", &text])?;
        both(lab, port, &mut server, &mut client, sides, ECHOES).map_err(|e| format!("{sides:?}: {e}"))?;
    }
    Ok(())
}

/// Owned by root, run by nobody: the linker ignores LD_PRELOAD.
fn set_user_id(lab: &mut Lab) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    without_us(lab, &[], &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"])
}

/// The second copy of libc has no hooks: kernel, beside the first one's connections over shared memory.
fn dlmopen(lab: &mut Lab) -> Result<()> {
    let echo = compile_echo(lab, &[])?;
    let library = compile(lab, "libecho.so", include_str!("../c/echo.c"), &["-shared", "-fPIC"])?;
    let port = free_port()?;
    let text = port.to_string();
    let start = |args: &[&str], name| Proc::start(&mut lab.command(Side::Sd, &echo, args)?, name, lab.path());
    let mut process = start(&["serve", &text], "server")?;
    process.wait_listening(port)?;
    let watch = lab.watch(port);
    let said = start(&["namespace", &text, &library], "client")?.wait(LIMIT)?.ok()?.text();
    if said.trim() != "48 echoes" {
        fail!("the client said {said:?}");
    }
    if let Some(watch) = watch {
        let (shm, kernel): (Vec<_>, Vec<_>) = watch.finish()?.into_iter().partition(|c| c.path == "shm");
        lab.require_shm(&shm)?;
        harness::ss::require_kernel(&kernel)?;
    }
    process.terminate(LIMIT)?.ok()?;
    Ok(())
}

/// A library that stands in for connect, send and close. In front of ours it sees every call; behind, none of those
/// that we hook, since ours asks the kernel itself.
fn hook_library(lab: &mut Lab) -> Result<()> {
    let echo = compile_echo(lab, &[])?;
    let hook = compile(lab, "hook.so", include_str!("../c/hook.c"), &["-shared", "-fPIC"])?;
    for order in [Order::Behind, Order::InFront] {
        let port = free_port()?;
        let text = port.to_string();
        let log = lab.path().join(format!("hook-{order:?}.log"));
        let mut commands = Vec::new();
        for role in ["serve", "connect"] {
            let mut command = lab.command(order.side(), &echo, &[role, &text])?;
            order.apply(lab, &mut command, &hook);
            command.env("HOOK_LOG", &log);
            commands.push(command);
        }
        let [server, client] = &mut commands[..] else { fail!("two commands") };
        both(lab, port, server, client, BOTH_OURS, ECHOES).map_err(|e| format!("{order:?}: {e}"))?;
        let seen = std::fs::read_to_string(&log).unwrap_or_default().matches("connect").count();
        let wanted = if order == Order::InFront || lab.is_oracle() { 4 } else { 0 };
        if seen != wanted {
            fail!("{order:?}: the library saw {seen} connects, not {wanted}");
        }
    }
    Ok(())
}

/// A library that sends every connection through a SOCKS proxy. In front of ours it does so, over shared memory twice;
/// behind ours it sees no socket call, and the way is the direct one.
fn proxychains(lab: &mut Lab) -> Result<()> {
    let data = super::files::bytes(30_000_001);
    for order in [Order::InFront, Order::Behind] {
        let port = free_port()?;
        let proxy = lab.serve(Side::Sd, port, "microsocks", &["-i", "127.0.0.1", "-p", &port.to_string()])?;
        let nginx = Nginx::start(lab, Side::Sd, &Workers { count: 1, user: &own_user() })?;
        std::fs::write(nginx.root.join("file"), &data)?;
        let configuration = lab.path().join(format!("proxychains-{port}.conf"));
        let text = format!("strict_chain\nquiet_mode\n[ProxyList]\nsocks5 127.0.0.1 {port}\n");
        std::fs::write(&configuration, text)?;
        let to_proxy = lab.watch_every(port, OFTEN);
        let to_server = lab.watch_every(nginx.port, OFTEN);
        let args = ["-sS", "--fail", "--limit-rate", "100M", &nginx.url("file")];
        let mut command = lab.command(order.side(), "curl", &args)?;
        order.apply(lab, &mut command, PROXYCHAINS);
        command.env("PROXYCHAINS_CONF_FILE", &configuration);
        let got = Proc::start(&mut command, "curl", lab.path())?.wait(LIMIT)?.ok()?.stdout;
        super::files::require_same("through the proxy", &got, &data)?;
        lab.check(to_server, Side::Sd, Side::Sd).map_err(|error| format!("{order:?}: {error}"))?;
        if order == Order::InFront {
            lab.check(to_proxy, Side::Sd, Side::Sd).map_err(|error| format!("to the proxy: {error}"))?;
        }
        nginx.process.terminate(LIMIT)?.ok()?;
        proxy.terminate(LIMIT)?;
    }
    Ok(())
}

/// busybox is one static program.
fn busybox(lab: &mut Lab) -> Result<()> {
    let root = lab.path().join("files");
    std::fs::create_dir(&root)?;
    let data = super::files::bytes(30_000_001);
    std::fs::write(root.join("file"), &data)?;
    let port = free_port()?;
    let (text, folder) = (port.to_string(), root.display().to_string());
    let args = ["-m", "http.server", &text, "--bind", "127.0.0.1", "--directory", &folder];
    let process = lab.serve(Side::Sd, port, "python3", &args)?;
    let url = format!("http://127.0.0.1:{port}/file");
    let watch = lab.watch(port);
    // Slow enough to be seen: nobody reads until the buffers on the way are full.
    let command = format!("busybox wget -q -O - {url} | (sleep 0.3; cat)");
    let got = lab.run(Side::Sd, "sh", &["-c", &command], LIMIT)?.stdout;
    super::files::require_same("what wget got", &got, &data)?;
    lab.check(watch, Side::Sd, Side::Kernel)?;
    process.terminate(LIMIT)?;
    let server = lab.serve(
        Side::Sd,
        port,
        "busybox",
        &["httpd", "-f", "-p", &format!("127.0.0.1:{text}"), "-h", &folder],
    )?;
    web::download(lab, Side::Sd, &url, &data)?;
    server.terminate(LIMIT)?;
    Ok(())
}

/// A tool attaches itself to a server at work, looks, and lets go; nothing is lost, and the server works on.
fn attached(lab: &mut Lab, tool: &[&str]) -> Result<()> {
    let (server, port) = python::start_echo_server(lab, Side::Sd, "threads")?;
    let pid = server.pid().to_string();
    let watch = lab.watch(port);
    let args = [port.to_string(), "6".to_owned(), "200".to_owned()];
    let client = python::start(lab, Side::Sd, "echo_client.py", &args)?;
    let mut words = tool.to_vec();
    words.push(&pid);
    let looked = lab.start(Side::Kernel, words[0], &words[1..])?.wait(LIMIT)?;
    const TIMEOUT_STATUS: i32 = 124;
    if !matches!(looked.status.code(), Some(0 | TIMEOUT_STATUS)) {
        fail!("{} ended with {}: {:?}", tool[0], looked.status, looked.stderr);
    }
    let said = client.wait(LIMIT)?.ok()?.text();
    if said.trim() != "1200 echoes" {
        fail!("the client said {said:?}");
    }
    lab.check(watch, Side::Sd, Side::Sd)?;
    let args = [port.to_string(), "4".to_owned(), "8".to_owned()];
    let said = python::run(lab, Side::Sd, "echo_client.py", &args, LIMIT)?;
    if said.trim() != "32 echoes" {
        fail!("afterwards the client said {said:?}");
    }
    server.terminate(LIMIT)?.ok()?;
    Ok(())
}
