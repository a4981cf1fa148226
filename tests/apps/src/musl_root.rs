//! A whole root file system in which there is no glibc, as Alpine Linux is: musl's dynamic linker, BusyBox for all commands, and Redis.
//!
//! It is mounted in a namespace, as a container's is. Programs inside talk to each other, and to Debian's outside, which are glibc's: one file
//! of the library is loaded into both. Of the host's it has what a container is given: the library and the folder of the monitor's
//! socket, where they are outside, /proc, and two devices.

use super::busybox::{self, Place, Variant};
use super::redis;
use super::statics::{MUSL_DYNAMIC, build_redis};
use super::table::Row;
use super::{Scenario, files};
use harness::lab::{Lab, Side, each};
use harness::nginx::{Nginx, Workers, own_user};
use harness::process::{Proc, free_port};
use harness::{Result, fail, procfs, product, rootfs, until};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] =
    &[Scenario::new("musl-root", NEEDED, musl_root).limit_s(BUILD_S + 240).extra()];

pub(crate) const ROWS: &[Row] = &[Row {
    application: "Redis and BusyBox in a root file system of musl's",
    version: &["echo", "6.2"],
    scenarios: "musl-root",
    features: "nothing of glibc's inside; clients and servers inside and outside: Redis, httpd with CGI programs, tcpsvd, nc, wget, curl, nginx",
    load: None,
}];

const NEEDED: &[&str] = &[
    "musl-gcc",
    "gcc",
    "make",
    "bzip2",
    "apt-get",
    "/usr/bin/pip3",
    "redis-server",
    "redis-cli",
    "redis-benchmark",
    "nginx",
    "python3",
    "curl",
    "unshare",
    "nsenter",
];
const LIMIT: Duration = Duration::from_secs(30);
const GRACE: Duration = Duration::from_secs(5);
const BUILD_S: u64 = 400;

const BUSYBOX: Variant = Variant { name: "musl-busybox", options: "SLEEP" };
/// Commands that are BusyBox.
const APPLETS: &[&str] = &["ash", "cat", "echo", "httpd", "md5sum", "nc", "sh", "sleep", "tcpsvd", "wget"];
/// musl's dynamic linker, which is its libc too.
const LINKER: &str = "/lib/ld-musl-x86_64.so.1";
const DEVICES: &[&str] = &["null", "urandom"];

fn musl_root(lab: &mut Lab) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let root = Root::new(lab)?;
    root.require_musl(lab)?;
    let inside = format!("{}/", root.commands.display());
    for folders in [[inside.as_str(), &inside], [&inside, ""], ["", &inside]] {
        each(|server, client| redis::all_of(lab, server, client, folders))
            .map_err(|error| format!("server and clients of {folders:?}: {error}"))?;
    }
    let place = Place { program: &root.command("busybox"), inner: Path::new("/bin/busybox") };
    busybox::serve_all(lab, &place)?;
    each(|server, client| fetch(lab, &root, [server, client]))?;
    each(|server, client| handed_on(lab, &root, [server, client]))?;
    root.finish()
}

/// While it lives, the root file system is mounted in a namespace of its own.
struct Root {
    /// A program inside, by which others find the namespace; it ends with its input.
    keeper: Proc,
    input: ChildStdin,
    /// For each program a command outside that becomes it.
    commands: PathBuf,
}

/// Mounts what is the host's; the root is `$0`.
const MOUNT: &str = r#"
cd "$0"
for device in $DEVICES; do mount --bind "/dev/$device" "dev/$device"; done
mount --rbind /proc proc
mount --bind "$1" ".$1"
exec chroot . /bin/sh -c 'echo mounted; exec cat'
"#;

impl Root {
    fn new(lab: &Lab) -> Result<Root> {
        let root = lab.path().join("root");
        fill(lab, &root)?;
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-ec", MOUNT]).arg(&root).arg(lab.path());
        command.env("DEVICES", DEVICES.join(" ")).stdin(Stdio::piped());
        let mut keeper = Proc::start(&mut command, "root", lab.path())?;
        let input = keeper.stdin()?;
        keeper.wait_for_text("mounted", LIMIT)?;
        let commands = lab.path().join("inside");
        std::fs::create_dir(&commands)?;
        for name in ["busybox"].iter().chain(APPLETS).chain(redis::PROGRAMS) {
            let enter = format!("nsenter --target {} --mount --root --wd", keeper.pid());
            let path = commands.join(name);
            std::fs::write(&path, format!("#!/bin/sh\nexec {enter} /bin/{name} \"$@\"\n"))?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
        }
        Ok(Root { keeper, input, commands })
    }

    /// Where a command outside is that becomes the program.
    fn command(&self, name: &str) -> PathBuf {
        self.commands.join(name)
    }

    /// The programs are linked with musl, and with nothing else.
    fn require_musl(&self, lab: &Lab) -> Result<()> {
        const LIST: &str = r#"for name; do "$0" --list "/bin/$name"; done"#;
        let programs = [&["busybox"], redis::PROGRAMS].concat();
        let shell = self.command("sh").display().to_string();
        let args = [&["-ec", LIST, LINKER], programs.as_slice()].concat();
        let said = lab.run(Side::Kernel, &shell, &args, LIMIT)?.text();
        if said.lines().count() < programs.len() || said.lines().any(|line| !line.contains(LINKER)) {
            fail!("they are linked with {said:?}");
        }
        Ok(())
    }

    fn finish(self) -> Result<()> {
        drop(self.input);
        self.keeper.wait(GRACE)?.ok()?;
        Ok(())
    }
}

/// Makes the root file system.
fn fill(lab: &Lab, root: &Path) -> Result<()> {
    let inner = |path: &Path| -> Result<PathBuf> { Ok(root.join(path.strip_prefix("/")?)) };
    for folder in ["bin", "dev", "proc", "tmp"] {
        std::fs::create_dir_all(root.join(folder))?;
    }
    std::fs::create_dir_all(inner(lab.path())?)?;
    for device in DEVICES {
        std::fs::write(root.join("dev").join(device), "")?;
    }
    rootfs::copy(root, &busybox::build(lab, &BUSYBOX)?, "bin/busybox")?;
    for applet in APPLETS {
        symlink("busybox", root.join("bin").join(applet))?;
    }
    let redis = build_redis(lab, &MUSL_DYNAMIC)?;
    for name in redis::PROGRAMS {
        rootfs::copy(root, &Path::new(&redis).join(name), &format!("bin/{name}"))?;
    }
    let linker = Path::new(LINKER);
    rootfs::copy(root, &linker.canonicalize()?, LINKER.trim_start_matches('/'))?;
    if !lab.is_oracle() {
        let library = product::libsd().canonicalize()?;
        rootfs::copy(root, &library, library.strip_prefix("/")?.to_str().ok_or("no name")?)?;
    }
    Ok(())
}

/// More than all buffers on the way hold, so that the connection is there until `sd ss` has shown it.
const BYTES: usize = 30_000_000;
const FETCH: &str = r#"wget -q -O - "$0" | { sleep 1; cat; }"#;

/// A shell's pipeline inside takes a file from nginx outside.
fn fetch(lab: &Lab, root: &Root, [server, client]: [Side; 2]) -> Result<()> {
    let nginx = Nginx::start(lab, server, &Workers { count: 2, user: &own_user() })?;
    let data = files::bytes(BYTES);
    std::fs::write(nginx.root.join("file"), &data)?;
    let watch = lab.watch(nginx.port);
    let shell = root.command("sh").display().to_string();
    let got = lab.run(client, &shell, &["-c", FETCH, &nginx.url("file")], LIMIT)?.stdout;
    files::require_same("a pipeline's output", &got, &data)?;
    lab.check(watch, server, client)?;
    nginx.process.terminate(GRACE)?.ok()?;
    Ok(())
}

/// Connections that last, one after the other, as the first one of a process is the kernel's.
const CONVERSATIONS: &str = "
import socket, sys, time
kept = []
for _ in range(4):
    kept.append(socket.create_connection(('127.0.0.1', int(sys.argv[1]))))
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        kept[-1].sendall(b'x' * 64)
        assert kept[-1].recv(64, socket.MSG_WAITALL) == b'x' * 64
";

/// A program of musl's is executed for each connection, which is its standard streams: that goes over a bridge (ADR 114), which ends with it.
fn handed_on(lab: &Lab, root: &Root, [server, client]: [Side; 2]) -> Result<()> {
    let text = free_port()?.to_string();
    let program = root.command("tcpsvd").display().to_string();
    let process = lab.serve(server, text.parse()?, &program, &["127.0.0.1", &text, "/bin/cat"])?;
    let watch = lab.watch(text.parse()?);
    lab.run(client, "python3", &["-c", CONVERSATIONS, &text], LIMIT)?;
    lab.check_executed(watch, server, client)?;
    process.terminate(GRACE)?;
    let is_bridge = |found: &procfs::Process| found.comm == "sd-bridge" && found.state != 'Z';
    let is_over = || !procfs::descendants(std::process::id()).iter().any(is_bridge);
    until("the end of the bridges", GRACE, is_over)
}
