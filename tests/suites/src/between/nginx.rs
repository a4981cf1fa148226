//! nginx' own tests, and wrk: the server on the other host, whoever asks here.
//!
//! Of the tests those run that start nothing but nginx: the others have servers of their own, in the process that asks, to which nginx would
//! have to connect. Most of their connections end after one answer, before they could be moved; those of wrk last.

use super::{PORT, Pair, SOON};
use crate::compare::Outcomes;
use crate::stage::Stage;
use crate::{Choice, Item, each, sources};
use harness::Result;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// For a file.
const LIMIT: Duration = Duration::from_secs(120);
const SIZES: [usize; 4] = [0, 64, 20_000, 1_000_000];
const CONNECTIONS: [u64; 3] = [1, 16, 64];

pub(super) fn item(name: &'static str) -> Item {
    let source = Some(sources::nginx_tests as fn() -> _);
    Item { suite: "nginx", name, needs: &["nginx", "perl", "wrk", "git"], is_fast: false, source, run }
}

fn run(stage: &Stage, item: &Item, choice: &Choice) -> Result<Outcomes> {
    let tree = sources::nginx_tests()?;
    let pair = Pair::new(stage)?;
    let here = pair.hosts[0].lab.path().join("t");
    adapt(&tree, &here, &pair.address())?;
    let program = program(&pair)?;
    let library = format!("-I{}", here.join("lib").display());
    let mut outcomes = Outcomes::new();
    for file in each::files(&here, "", &["t"])?.iter().filter(|file| each::is_chosen(file, choice)) {
        let mut command = pair.command(&here, "perl", &[&library, file])?;
        command.env("TEST_NGINX_BINARY", &program).env("TEST_NGINX_GLOBALS", "user root;");
        let (word, text) = pair.test(&mut command, "perl", LIMIT)?;
        stage.write_log(file, &text, word.clone())?;
        outcomes.insert(file.clone(), word);
        outcomes.extend(each::assertions(file, &text));
    }
    wrk(stage, &pair, choice, &mut outcomes)?;
    pair.finish(item, choice, CONNECTIONS.iter().sum::<u64>() * SIZES.len() as u64 / 2)?;
    Ok(outcomes)
}

/// What the tests take for nginx: it is run on the other host, and does not tell of modules that are packages of their own.
fn program(pair: &Pair) -> Result<PathBuf> {
    let text = format!(
        "case \"$1\" in\n-V) nginx -V 2>&1 | sed 's/--with-[^ ]*=dynamic//g' ;;\n*) exec {} \"$@\" ;;\nesac",
        pair.there("nginx")?
    );
    pair.script("nginx", &text)
}

/// Copies the tests that run; they take the other host for this one. Ports are looked for here.
fn adapt(from: &Path, to: &Path, address: &str) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for file in each::files(from, "", &["t"])? {
        let text = std::fs::read_to_string(from.join(&file))?;
        if !text.contains("run_daemon") {
            std::fs::write(to.join(file), text.replace("127.0.0.1", address))?;
        }
    }
    copy_modules(&from.join("lib"), &to.join("lib"), address)
}

fn copy_modules(from: &Path, to: &Path, address: &str) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let path = entry?.path();
        let Some(name) = path.file_name() else { continue };
        if path.is_dir() {
            copy_modules(&path, &to.join(name), address)?;
            continue;
        }
        // One of them is a pattern.
        let there = |line: &str| {
            line.replace("127.0.0.1", address).replace(r"127\.0\.0\.1", &address.replace('.', r"\."))
        };
        let text = std::fs::read_to_string(&path)?;
        let lines = text.lines().map(|line| match line.contains("LocalAddr") {
            true => line.to_owned() + "\n",
            false => there(line) + "\n",
        });
        std::fs::write(to.join(name), lines.collect::<String>())?;
    }
    Ok(())
}

/// wrk with some numbers of connections and sizes of answers: answers come, and none is an error.
fn wrk(stage: &Stage, pair: &Pair, choice: &Choice, outcomes: &mut Outcomes) -> Result<()> {
    let there = pair.hosts[1].lab.path();
    for size in SIZES {
        std::fs::write(there.join(size.to_string()), vec![b'x'; size])?;
    }
    let (folder, address) = (there.display().to_string(), pair.address());
    let conf = there.join("wrk.conf").display().to_string();
    let text = format!(
        "daemon off; worker_processes 2; user root; pid {folder}/nginx.pid; error_log /dev/null;\n\
         events {{ worker_connections 1024; }}\n\
         http {{ access_log off; keepalive_requests 1000000000;\n\
         server {{ listen {address}:{PORT}; root {folder}; }} }}\n"
    );
    std::fs::write(&conf, text)?;
    let server = pair.serve("nginx", &["-p", &folder, "-c", &conf])?;
    for (size, count) in SIZES.iter().flat_map(|size| CONNECTIONS.map(|count| (size, count))) {
        let name = format!("wrk: {count} connections, {size} bytes");
        if !choice.has(&name) {
            continue;
        }
        let (count, url) = (count.to_string(), format!("http://{address}:{PORT}/{size}"));
        let args = ["-t", "1", "-c", &count, "-d", "1s", "--timeout", "30s", &url];
        let (word, text) = pair.test(&mut pair.command(there, "wrk", &args)?, "wrk", LIMIT)?;
        stage.write_log(&name, &text, word.clone())?;
        outcomes.insert(name, if word == "pass" { judged(&text).to_owned() } else { word });
    }
    server.terminate(SOON).map(drop)
}

/// What wrk says of errors, or that there was no answer.
fn judged(text: &str) -> &str {
    let line = |start: &str| text.lines().map(str::trim).find(|line| line.starts_with(start));
    match (line("Socket errors").or(line("Non-2xx")), line("Requests/sec:")) {
        (Some(errors), _) => errors,
        (None, Some(rate)) if !rate.ends_with(" 0.00") => "pass",
        _ => "no answer",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_wrk_says() {
        assert_eq!(judged("  9 requests in 1.0s\nRequests/sec:      9.10\n"), "pass");
        assert_eq!(judged("Requests/sec:      0.00\n"), "no answer");
        assert_eq!(judged(""), "no answer");
        let errors = "Socket errors: connect 0, read 5, write 0, timeout 0";
        assert_eq!(judged(&format!("  {errors}\nRequests/sec:   9.10\n")), errors);
    }
}
