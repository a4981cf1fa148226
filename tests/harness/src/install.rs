//! Installs the programs that demo and test drive.
//!
//! Says what it installs, skips what is there, and lets no package start its service: for the time of the
//! installation a `policy-rc.d` forbids it. One that an administrator has put there is respected.

use crate::process::find_program;
use crate::scratch::Scratch;
use crate::{Result, fail};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// A Debian package, and what it is known by: programs, or files by their whole path.
struct Package {
    name: &'static str,
    provides: &'static [&'static str],
    /// Of Debian's main section; else of non-free.
    is_free: bool,
}

const fn package(name: &'static str, provides: &'static [&'static str]) -> Package {
    Package { name, provides, is_free: true }
}

/// What demo, test and the usual scenarios need.
const USUAL: &[Package] = &[
    package("redis-server", &["redis-server"]),
    package("redis-tools", &["redis-cli", "redis-benchmark"]),
    package("nginx-light", &["nginx"]),
    package("wrk", &["wrk"]),
    package("memcached", &["memcached"]),
    package("libmemcached-tools", &["memcslap"]),
    package("curl", &["curl"]),
    package("socat", &["socat"]),
    package("netcat-openbsd", &["nc"]),
    package("iperf3", &["iperf3"]),
    package("iproute2", &["ip"]),
    package("iptables", &["iptables"]),
    package("python3", &["python3"]),
    package("libpython3.11-testsuite", &["/usr/lib/python3.11/test/test_socket.py"]),
    package("stress-ng", &["stress-ng"]),
    package("valgrind", &["valgrind"]),
];

/// What only the scenarios of `apps --all` and the suites need.
const EXTRA: &[Package] = &[
    package("apache2-bin", &["apache2"]),
    package("apache2-utils", &["ab"]),
    package("default-jdk-headless", &["javac", "java"]),
    package("gunicorn", &["gunicorn"]),
    package("haproxy", &["haproxy"]),
    package("libnetty-java", &["/usr/share/java/netty-transport.jar"]),
    package("lighttpd", &["lighttpd"]),
    package("nghttp2-client", &["h2load"]),
    package("openssl", &["openssl"]),
    package("postgresql", &["/usr/lib/postgresql", "psql", "pgbench"]),
    package("pgbouncer", &["pgbouncer"]),
    package("libssl-dev", &["/usr/include/openssl/ssl.h"]),
    package("nodejs", &["node"]),
    package("php8.2-fpm", &["php-fpm8.2"]),
    package("python3-grpcio", &["/usr/lib/python3/dist-packages/grpc"]),
    package("python3-uvloop", &["/usr/lib/python3/dist-packages/uvloop"]),
    package("uwsgi-core", &["uwsgi"]),
    package("uwsgi-plugin-python3", &["/usr/lib/uwsgi/plugins/python3_plugin.so"]),
    package("mariadb-server", &["mariadbd", "mariadb-install-db"]),
    package("mariadb-client", &["mariadb", "mysqlslap"]),
    package("openssh-server", &["sshd"]),
    package("openssh-client", &["ssh", "scp", "sftp", "ssh-keygen"]),
    package("dropbear-bin", &["dropbear", "dropbearkey"]),
    package("rsync", &["rsync"]),
    package("git", &["git"]),
    package("vsftpd", &["vsftpd"]),
    package("postfix", &["postfix"]),
    package("lftp", &["lftp"]),
    package("mosquitto", &["mosquitto"]),
    package("mosquitto-clients", &["mosquitto_pub", "mosquitto_sub"]),
    package("erlang-base", &["erl", "epmd"]),
    package("ncat", &["ncat"]),
    package("xinetd", &["xinetd"]),
    package("systemd", &["systemd-socket-activate"]),
    package("stunnel4", &["stunnel4"]),
    package("tinyproxy-bin", &["tinyproxy"]),
    package("dnsmasq-base", &["dnsmasq"]),
    package("knot-dnsutils", &["kdig"]),
    package("libjemalloc2", &["/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"]),
    package("libtcmalloc-minimal4", &["/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"]),
    package("libfaketime", &["/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"]),
    package("busybox-static", &["busybox"]),
    package("bzip2", &["bzip2"]),
    // Packages and containers.
    package("buildah", &["buildah"]),
    package("crun", &["crun"]),
    package("lintian", &["lintian"]),
    package("mmdebstrap", &["mmdebstrap"]),
    // Guests.
    package("qemu-system-x86", &["qemu-system-x86_64"]),
    package("cpio", &["cpio"]),
    package("kmod", &["depmod", "modprobe"]),
    package("libibverbs1", &["/usr/lib/x86_64-linux-gnu/libibverbs.so.1"]),
    package("ibverbs-providers", &["/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so"]),
    package("perftest", &["ib_write_lat", "ib_write_bw", "ib_send_lat"]),
    package("strace", &["strace"]),
    package("gdb", &["gdb"]),
    package("etcd-server", &["etcd"]),
    package("etcd-client", &["etcdctl"]),
    package("golang-go", &["go"]),
    package("caddy", &["caddy"]),
    package("prometheus", &["prometheus"]),
    package("sockperf", &["sockperf"]),
    package("qperf", &["qperf"]),
    package("rabbitmq-server", &["/usr/lib/rabbitmq/bin/rabbitmq-server"]),
    package("python3-pika", &["/usr/lib/python3/dist-packages/pika"]),
    package("libproxychains4", &["/usr/lib/x86_64-linux-gnu/libproxychains.so.4"]),
    package("microsocks", &["microsocks"]),
    Package { name: "netperf", provides: &["netperf", "netserver"], is_free: false },
    // Suites: the programs under test, and what builds and runs their tests.
    package("cmake", &["cmake"]),
    package("gcc", &["gcc"]),
    package("musl-tools", &["musl-gcc"]),
    package("gcc-aarch64-linux-gnu", &["aarch64-linux-gnu-gcc"]),
    package("libc6-dev-arm64-cross", &["/usr/aarch64-linux-gnu/lib/libc.so.6"]),
    package("qemu-user", &["qemu-aarch64"]),
    package("libc6-dev", &["/usr/include/stdio.h"]),
    package("libevent-dev", &["/usr/include/event2/event.h"]),
    package("libuv1-dev", &["/usr/include/uv.h"]),
    package("make", &["make"]),
    package("libssl-dev", &["/usr/include/openssl/ssl.h"]),
    package("nodejs", &["node"]),
    package("perl", &["perl"]),
    package("python3-pip", &["/usr/bin/pip3"]),
    package("python3-twisted", &["/usr/lib/python3/dist-packages/twisted/test/test_tcp.py"]),
    package("python3-openssl", &["/usr/lib/python3/dist-packages/OpenSSL"]),
    package("python3-service-identity", &["/usr/lib/python3/dist-packages/service_identity"]),
    package("tcl", &["tclsh"]),
    package("tcl-tls", &["/usr/share/doc/tcl-tls"]),
];

const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Whether a program, or a file given by its whole path, is on this machine.
pub fn is_there(need: &str) -> bool {
    if need.starts_with('/') { Path::new(need).exists() } else { find_program(need).is_some() }
}

fn lacks(package: &&Package) -> bool {
    !package.provides.iter().all(|need| is_there(need))
}

/// Names of the usual packages that are not on this machine.
pub fn missing() -> Vec<&'static str> {
    USUAL.iter().filter(lacks).map(|package| package.name).collect()
}

/// Names of all packages, usual or not, that provide one of these needs and are not on this machine.
pub fn missing_of(needs: &[&str]) -> Vec<&'static str> {
    let is_wanted = |package: &&Package| package.provides.iter().any(|need| needs.contains(need));
    USUAL.iter().chain(EXTRA).filter(is_wanted).filter(lacks).map(|package| package.name).collect()
}

/// Whether all these needs are on this machine, by now; says which packages cannot be had.
pub fn obtain(needs: &[&str]) -> bool {
    let missing = missing_of(needs);
    let got = if missing.is_empty() { Ok(()) } else { run(&missing) };
    if let Err(error) = &got {
        println!("skipped: {error}");
    }
    got.is_ok()
}

/// `cargo xtask install`: the usual packages, or all.
pub fn command(is_all: bool) -> Result<()> {
    let mut packages = missing();
    if is_all {
        packages.extend(EXTRA.iter().filter(lacks).map(|package| package.name));
    }
    run(&packages)
}

pub fn run(packages: &[&str]) -> Result<()> {
    if packages.is_empty() {
        eprintln!("install: everything is there");
        return Ok(());
    }
    if find_program("apt-get").is_none() {
        fail!("this is not a Debian system; please install: {}", packages.join(" "));
    }
    if !nix::unistd::geteuid().is_root() {
        fail!("not root; please run: apt-get install --no-install-recommends {}", packages.join(" "));
    }
    eprintln!("install: {}", packages.join(" "));
    let _no_services = NoServices::new()?;
    let is_of_main = |name: &&str| !EXTRA.iter().any(|package| package.name == *name && !package.is_free);
    let (main, others): (Vec<&str>, Vec<&str>) = packages.iter().partition(|name| is_of_main(name));
    install(&[], &main)?;
    if !others.is_empty() {
        let lists = OtherLists::new()?;
        let options: Vec<&str> = lists.options.iter().map(String::as_str).collect();
        // Not every server of packages has that section; then its scenario says what is missing.
        if let Err(error) = install(&options, &others) {
            eprintln!("install: {error}");
        }
    }
    let is_still_missing =
        |package: &&Package| package.is_free && packages.contains(&package.name) && lacks(package);
    let still: Vec<&str> = USUAL.iter().chain(EXTRA).filter(is_still_missing).map(|p| p.name).collect();
    if !still.is_empty() {
        fail!("installed, yet not found: {}", still.join(" "));
    }
    Ok(())
}

fn install(options: &[&str], packages: &[&str]) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let args = |words: &[&'static str], packages: &[&str]| -> Vec<String> {
        options.iter().chain(words).chain(packages).map(|&word| word.to_owned()).collect()
    };
    apt(&args(&["update", "-q"], &[]))?;
    apt(&args(&["install", "-y", "-q", "--no-install-recommends"], packages))
}

/// The machine's own lists of packages with the section non-free added, while it lives; the machine's stay as they are.
struct OtherLists {
    options: Vec<String>,
    _scratch: Scratch,
}

impl OtherLists {
    fn new() -> Result<OtherLists> {
        let scratch = Scratch::new("lists")?;
        let (parts, lists) = (scratch.path().join("parts"), scratch.path().join("lists"));
        std::fs::create_dir_all(lists.join("partial"))?;
        std::fs::create_dir_all(&parts)?;
        let mut files = vec![std::path::PathBuf::from("/etc/apt/sources.list")];
        if let Ok(entries) = std::fs::read_dir("/etc/apt/sources.list.d") {
            files.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
        }
        for (index, file) in files.iter().enumerate() {
            let Ok(text) = std::fs::read_to_string(file) else { continue };
            let end = file.extension().unwrap_or_default().to_string_lossy();
            let text: String = text.lines().map(|line| with_non_free(line) + "\n").collect();
            if matches!(end.as_ref(), "list" | "sources") && text.contains("debian.org") {
                std::fs::write(parts.join(format!("{index}.{end}")), text)?;
            }
        }
        let options = [
            "Dir::Etc::SourceList=/dev/null".to_owned(),
            format!("Dir::Etc::SourceParts={}", parts.display()),
            format!("Dir::State::Lists={}", lists.display()),
        ];
        let options = options.into_iter().flat_map(|option| ["-o".to_owned(), option]).collect();
        Ok(OtherLists { options, _scratch: scratch })
    }
}

/// A line of either format of lists.
fn with_non_free(line: &str) -> String {
    let names_sections = line.starts_with("Components:") || line.starts_with("deb ");
    if names_sections && line.contains(" main") { format!("{line} non-free") } else { line.to_owned() }
}

fn apt(args: &[String]) -> Result<()> {
    let status = Command::new("apt-get")
        .args(["-o", "DPkg::Lock::Timeout=120"])
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        // Standard output belongs to the command's own result.
        .stdout(std::io::stderr())
        .status()?;
    if !status.success() {
        fail!("apt-get {} failed", args.join(" "));
    }
    Ok(())
}

/// While it lives, packages do not start their services.
struct NoServices {
    is_ours: bool,
}

impl NoServices {
    fn new() -> Result<NoServices> {
        let is_ours = !Path::new(POLICY).exists();
        if is_ours {
            std::fs::write(POLICY, "#!/bin/sh\nexit 101\n")?;
            std::fs::set_permissions(POLICY, std::fs::Permissions::from_mode(0o755))?;
        }
        Ok(NoServices { is_ours })
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.is_ours {
            let _ = std::fs::remove_file(POLICY);
        }
    }
}
