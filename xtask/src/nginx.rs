//! A private nginx: its own prefix, configuration and port; master and workers in the foreground.

use crate::Result;
use crate::lab::{Lab, Side};
use crate::process::{Proc, free_port};
use crate::procfs;
use std::path::PathBuf;

pub(crate) struct Nginx {
    pub(crate) process: Proc,
    pub(crate) port: u16,
    /// Files below it are served.
    pub(crate) root: PathBuf,
}

/// How many workers, and as whom they run.
pub(crate) struct Workers<'a> {
    pub(crate) count: usize,
    pub(crate) user: &'a str,
}

impl Nginx {
    pub(crate) fn start(lab: &Lab, side: Side, workers: &Workers) -> Result<Nginx> {
        let port = free_port()?;
        let prefix = lab.path().join(format!("nginx-{port}"));
        let root = prefix.join("files");
        std::fs::create_dir_all(&root)?;
        std::fs::create_dir_all(prefix.join("temp"))?;
        std::fs::write(prefix.join("nginx.conf"), configuration(port, workers))?;
        let prefix = prefix.display().to_string();
        let args = ["-p", &prefix, "-c", "nginx.conf", "-e", "error.log"];
        let process = lab.serve(side, port, "nginx", &args)?;
        Ok(Nginx { process, port, root })
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.port)
    }

    /// The pids of the present workers.
    pub(crate) fn workers(&self) -> Vec<u32> {
        procfs::descendants(self.process.pid()).iter().map(|p| p.pid).collect()
    }
}

/// The user this process runs as, who can read what it writes.
pub(crate) fn own_user() -> String {
    let uid = nix::unistd::geteuid();
    nix::unistd::User::from_uid(uid).ok().flatten().map_or_else(|| "nobody".to_owned(), |user| user.name)
}

fn configuration(port: u16, workers: &Workers) -> String {
    let Workers { count, user } = workers;
    // Only a master that is root may name a user; another one would warn.
    let user = if nix::unistd::geteuid().is_root() { format!("user {user};") } else { String::new() };
    format!(
        r#"{user}
daemon off;
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
    server {{
        listen 127.0.0.1:{port};
        location = /64 {{ return 200 "{body}"; }}
        location / {{ root files; }}
    }}
}}
"#,
        body = "x".repeat(64)
    )
}
