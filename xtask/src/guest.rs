//! `cargo xtask guest [COMMAND...]`: one of the other commands in a guest of its own, whose kernel is another than the
//! machine's: memory cgroups of version 2, users of its own, nothing that could harm anybody.
//!
//! ```text
//!  Debian's kernel (linux-image-cloud-amd64, unpacked, not installed)
//!  initramfs: busybox, this program, what was built, their libraries --init--> COMMAND --console--> here
//! ```
//! qemu emulates the processor (TCG), which takes no rights and no hardware and is some fifty times slower, so this is no part of `test`.
//! The kernel is fetched once, by apt, into the target directory; a guest has no network, no disk, and nothing of the
//! machine's but copies.

use harness::kernel::Kernel;
use harness::report::Count;
use harness::rootfs::add;
use harness::scratch::Scratch;
use harness::{Result, fail, install, product};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Ends the guest after so many seconds
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Memory of the guest, in MiB
    #[arg(long, default_value_t = MEMORY)]
    memory: u32,
    /// The command of xtask that is run there; one that begins with `sh` is the guest's own shell's
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

const MEMORY: u32 = 1536;
/// What is run, and in how much memory, where no command is given.
const USUAL: [(u32, [&str; 3]); 2] =
    [(MEMORY, ["sharing", "--only", "memory"]), (320, ["sharing", "--only", "host-memory"])];
const KERNEL: &str = "linux-image-cloud-amd64";
const PROGRAMS: [&str; 3] = ["qemu-system-x86_64", "busybox", "cpio"];
const ENDED: &str = "sd-guest ended with ";

/// Mounts what programs expect, runs the command, says how it ended, and switches the guest off.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts /tmp /run
mount -t tmpfs shm /dev/shm; mount -t devpts pts /dev/pts; mount -t tmpfs tmp /tmp; mount -t tmpfs run /run
mount -t cgroup2 group /sys/fs/cgroup && echo +memory +pids > /sys/fs/cgroup/cgroup.subtree_control
ifconfig lo 127.0.0.1 up
stty -onlcr < /dev/console
export PATH=/bin CARGO_TARGET_DIR=/target HOME=/tmp SD_STALL_SECONDS=20
sh /command
echo "ENDED$?"
dmesg | grep -E 'Out of memory|oom-kill|Killed process|traps:|segfault'
poweroff -f
"#;

pub(crate) fn run(options: &Options) -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        fail!("guests are of x86-64");
    }
    let missing = install::missing_of(&PROGRAMS);
    if !missing.is_empty() {
        fail!("please install, without recommended packages: {}", missing.join(" "));
    }
    if !product::sd().exists() {
        product::build()?;
    }
    let kernel = kernel()?;
    if !options.command.is_empty() {
        return one(options, &kernel, options.memory, &options.command);
    }
    for (memory, command) in USUAL {
        one(options, &kernel, memory, &command.map(str::to_owned))?;
    }
    Ok(())
}

/// A guest, from its start to its end.
fn one(options: &Options, kernel: &Path, memory: u32, command: &[String]) -> Result<()> {
    let scratch = Scratch::new("guest")?;
    let disk = initramfs(scratch.path(), command)?;
    let (status, count) = boot(options.seconds, memory, kernel, &disk)?;
    println!("{}", count.line());
    match status.as_deref() {
        Some("0") => Ok(()),
        Some(status) => fail!("guest: {} ended with {status}", command.join(" ")),
        None => fail!("guest: {} did not end within {} s", command.join(" "), options.seconds),
    }
}

/// The kernel's image, in the target directory.
fn kernel() -> Result<PathBuf> {
    let folder = product::target().join("guest");
    let image = folder.join("vmlinuz");
    if image.exists() {
        return Ok(image);
    }
    std::fs::create_dir_all(&folder)?;
    std::fs::copy(Kernel::fetch(KERNEL)?.image(), &image)?;
    Ok(image)
}

fn done(command: &mut Command) -> Result<()> {
    if !command.stdin(Stdio::null()).stdout(std::io::stderr()).status()?.success() {
        fail!("{:?} failed", command.get_program());
    }
    Ok(())
}

/// Everything the guest has.
fn initramfs(scratch: &Path, command: &[String]) -> Result<PathBuf> {
    let root = scratch.join("root");
    for folder in ["bin", "dev", "proc", "sys", "tmp", "run", "etc", "target/release"] {
        std::fs::create_dir_all(root.join(folder))?;
    }
    add(&root, &harness::lab::locate("busybox").unwrap_or_default(), "bin/busybox")?;
    add(&root, &std::env::current_exe()?, "bin/xtask")?;
    for name in ["sd", "libsd.so", "sd-sharing", "sd-posix", "sd-hostile"] {
        let path = product::target().join("release").join(name);
        if path.exists() {
            add(&root, &path, &format!("target/release/{name}"))?;
        }
    }
    std::fs::write(root.join("etc/passwd"), "root:x:0:0::/tmp:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")?;
    std::fs::write(root.join("etc/group"), "root:x:0:\nnogroup:x:65534:\n")?;
    let words: Vec<String> =
        command.iter().map(|word| format!("'{}'", word.replace('\'', r"'\''"))).collect();
    let program = if command.first().is_some_and(|word| word == "sh") { "" } else { "xtask " };
    std::fs::write(root.join("command"), format!("{program}{}\n", words.join(" ")))?;
    std::fs::write(root.join("init"), INIT.replace("ENDED", ENDED))?;
    std::fs::set_permissions(root.join("init"), std::fs::Permissions::from_mode(0o755))?;
    let disk = scratch.join("initramfs");
    let pack = "find . | cpio --quiet -o -H newc > \"$0\"";
    done(Command::new("/bin/sh").args(["-c", pack]).arg(&disk).current_dir(&root))?;
    Ok(disk)
}

/// Runs the guest and passes on what it says: the command's status, and what it counted.
fn boot(seconds: u64, memory: u32, kernel: &Path, disk: &Path) -> Result<(Option<String>, Count)> {
    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-accel", "tcg,thread=multi,tb-size=256", "-M", "pc", "-cpu", "max,la57=off", "-smp", "2"])
        .args(["-m", &memory.to_string(), "-display", "none", "-no-reboot", "-nodefaults"])
        .args(["-serial", "stdio", "-append"])
        .arg("console=ttyS0 panic=-1 quiet mitigations=off nokaslr random.trust_cpu=1 cgroup_no_v1=all")
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(disk);
    let mut child = qemu.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let Some(said) = child.stdout.take() else { fail!("the guest has no console") };
    let reader = std::thread::spawn(move || {
        let (mut status, mut count) = (None, Count::default());
        for line in BufReader::new(said).split(b'\n').map_while(std::io::Result::ok) {
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            match (line.strip_prefix(ENDED), Count::parse(&line)) {
                (Some(word), _) => status = Some(word.to_owned()),
                (None, Some(closing)) => count.add(closing),
                (None, None) => println!("{line}"),
            }
        }
        (status, count)
    });
    let end = Instant::now() + Duration::from_secs(seconds);
    while child.try_wait()?.is_none() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
    }
    let _ = child.kill();
    child.wait()?;
    reader.join().map_err(|_| "the console's reader failed".into())
}
