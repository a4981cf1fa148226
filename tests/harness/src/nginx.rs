//! A private nginx: its own prefix, configuration and port; master and workers in the foreground.

use crate::Result;
use crate::lab::{Lab, Side};
use crate::process::{Proc, free_port};
use crate::procfs;
use std::path::PathBuf;

pub struct Nginx {
    pub process: Proc,
    pub port: u16,
    /// Files below it are served.
    pub root: PathBuf,
}

/// How many workers, and as whom they run.
pub struct Workers<'a> {
    pub count: usize,
    pub user: &'a str,
}

impl Nginx {
    pub fn start(lab: &Lab, side: Side, workers: &Workers) -> Result<Nginx> {
        Nginx::start_with(lab, side, workers, "", "")
    }

    /// Also passes `/proxy/...` on to `/...` of another server: over connections that are kept open, or not.
    pub fn start_proxy(lab: &Lab, side: Side, workers: &Workers, port: u16, keep: bool) -> Result<Nginx> {
        let kept = if keep { "keepalive 32; keepalive_requests 1000000;" } else { "" };
        let http = format!("upstream back {{ server 127.0.0.1:{port}; {kept} }}");
        // Without buffering the connection to the upstream lasts as long as the one to the client.
        let (version, buffering) = if keep { ("1.1", "on") } else { ("1.0", "off") };
        let location = format!(
            "location /proxy/ {{ proxy_pass http://back/; proxy_http_version {version}; \
             proxy_set_header Connection \"\"; proxy_buffering {buffering}; client_max_body_size 0; }}"
        );
        Nginx::start_with(lab, side, workers, &http, &location)
    }

    /// With more configuration in the `http` and `server` blocks.
    pub fn start_with(lab: &Lab, side: Side, workers: &Workers, http: &str, server: &str) -> Result<Nginx> {
        let (port, root) = prepare(lab, workers, http, server)?;
        Nginx::serve(lab, side, port, root)
    }

    /// Of another build, without the module that answers by itself: `/64` is a file.
    pub fn start_program(lab: &Lab, side: Side, program: &str, workers: &Workers) -> Result<Nginx> {
        let (port, root) = prepare(lab, workers, "", "")?;
        let file = root.with_file_name("nginx.conf");
        let lines = std::fs::read_to_string(&file)?;
        let lines: Vec<_> = lines.lines().filter(|line| !line.contains("return 200")).collect();
        std::fs::write(&file, lines.join("\n"))?;
        std::fs::write(root.join("64"), "x".repeat(64))?;
        Nginx::serve_by(lab, side, program, port, root)
    }

    /// Ends it and starts another with the same configuration on the same port, after `meanwhile`.
    pub fn restart(self, lab: &Lab, side: Side, meanwhile: impl FnOnce() -> Result<()>) -> Result<Nginx> {
        let Nginx { process, port, root } = self;
        process.terminate(std::time::Duration::from_secs(10))?.ok()?;
        meanwhile()?;
        Nginx::serve(lab, side, port, root)
    }

    /// Without waiting for anything, at this port.
    pub fn begin(lab: &Lab, side: Side, workers: &Workers, port: u16) -> Result<Nginx> {
        let root = prepare_at(lab, workers, port, "", "")?;
        let prefix = root.with_file_name("").display().to_string();
        let process = lab.start(side, "nginx", &arguments(&prefix, "daemon off;"))?;
        Ok(Nginx { process, port, root })
    }

    fn serve(lab: &Lab, side: Side, port: u16, root: PathBuf) -> Result<Nginx> {
        Nginx::serve_by(lab, side, "nginx", port, root)
    }

    fn serve_by(lab: &Lab, side: Side, program: &str, port: u16, root: PathBuf) -> Result<Nginx> {
        let prefix = root.with_file_name("").display().to_string();
        let process = lab.serve(side, port, program, &arguments(&prefix, "daemon off;"))?;
        Ok(Nginx { process, port, root })
    }

    /// Goes to the background instead: returns the master's pid, the port and the directory.
    pub fn start_daemon(lab: &Lab, side: Side, workers: &Workers) -> Result<(u32, u16, PathBuf)> {
        let (port, root) = prepare(lab, workers, "", "")?;
        let prefix = root.with_file_name("").display().to_string();
        lab.run(side, "nginx", &arguments(&prefix, "daemon on;"), std::time::Duration::from_secs(10))?;
        let master = std::fs::read_to_string(root.with_file_name("nginx.pid"))?.trim().parse()?;
        Ok((master, port, root))
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.port)
    }

    /// The pids of the present workers.
    pub fn workers(&self) -> Vec<u32> {
        procfs::descendants(self.process.pid()).iter().map(|p| p.pid).collect()
    }
}

/// Makes directories and configuration; returns a port and the directory of the files.
fn prepare(lab: &Lab, workers: &Workers, http: &str, server: &str) -> Result<(u16, PathBuf)> {
    let port = free_port()?;
    Ok((port, prepare_at(lab, workers, port, http, server)?))
}

fn prepare_at(lab: &Lab, workers: &Workers, port: u16, http: &str, server: &str) -> Result<PathBuf> {
    let prefix = lab.path().join(format!("nginx-{port}"));
    let root = prefix.join("files");
    std::fs::create_dir_all(&root)?;
    std::fs::create_dir_all(prefix.join("temp"))?;
    std::fs::write(prefix.join("nginx.conf"), configuration(port, workers, http, server))?;
    Ok(root)
}

fn arguments<'a>(prefix: &'a str, mode: &'a str) -> [&'a str; 8] {
    ["-p", prefix, "-c", "nginx.conf", "-e", "error.log", "-g", mode]
}

/// The user this process runs as, who can read what it writes.
pub fn own_user() -> String {
    let uid = nix::unistd::geteuid();
    nix::unistd::User::from_uid(uid).ok().flatten().map_or_else(|| "nobody".to_owned(), |user| user.name)
}

fn configuration(port: u16, workers: &Workers, http: &str, server: &str) -> String {
    let Workers { count, user } = workers;
    // Only a master that is root may name a user; another one would warn.
    let user = if nix::unistd::geteuid().is_root() { format!("user {user};") } else { String::new() };
    format!(
        r#"{user}
worker_processes {count};
pid nginx.pid;
error_log error.log warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    keepalive_timeout 60s;
    sendfile on;
    client_body_temp_path temp/body;
    proxy_temp_path temp/proxy;
    fastcgi_temp_path temp/fastcgi;
    uwsgi_temp_path temp/uwsgi;
    scgi_temp_path temp/scgi;
    types {{ }}
    default_type application/octet-stream;
    {http}
    server {{
        listen 127.0.0.1:{port};
        location = /64 {{ return 200 "{body}"; }}
        location / {{ root files; }}
        location /put/ {{ root files; dav_methods PUT; create_full_put_path on; client_max_body_size 0; }}
        {server}
    }}
}}
"#,
        body = "x".repeat(64)
    )
}
