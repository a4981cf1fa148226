//! The Debian package: built by cargo-deb, and looked into.

use harness::process::{find_program, output};
use harness::{Result, debian, fail, product};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What must be in it, with the mode.
const FILES: [(&str, &str); 11] = [
    ("-rwxr-xr-x", "./usr/bin/sd"),
    ("-rwxr-xr-x", "./usr/bin/sd-bench"),
    ("-rw-r--r--", "./usr/lib/socksdirect/libsd.so"),
    ("-rwxr-xr-x", "./usr/lib/socksdirect/libsd-freestanding.so"),
    ("-rw-r--r--", "./usr/lib/systemd/system/socksdirect.socket"),
    ("-rw-r--r--", "./usr/lib/systemd/system/socksdirect.service"),
    ("-rw-r--r--", "./usr/lib/systemd/system/sd-run@.service"),
    ("-rw-r--r--", "./usr/share/man/man1/sd-run.1.gz"),
    ("-rw-r--r--", "./usr/share/bash-completion/completions/sd"),
    ("-rw-r--r--", "./etc/socksdirect/policy"),
    ("-rw-r--r--", "./etc/default/socksdirect"),
];

/// The package of what is built.
pub(crate) fn build() -> Result<PathBuf> {
    let cargo_deb = debian::cargo_deb()?;
    make_pages()?;
    let folder = product::target().join("package");
    std::fs::create_dir_all(&folder)?;
    for old in packages(&folder)? {
        std::fs::remove_file(old)?;
    }
    let mut command = Command::new(cargo_deb);
    command.args(["--package", "sd-cli", "--no-build", "--strip", "--quiet", "--output"]).arg(&folder);
    output(command.arg("--manifest-path").arg(product::root().join("crates/sd-cli/Cargo.toml")))?;
    match packages(&folder)?.as_slice() {
        [package] => Ok(package.clone()),
        found => fail!("cargo-deb made {} packages", found.len()),
    }
}

/// Its files, what it depends on, and what lintian finds.
pub(crate) fn check(package: &Path) -> Result<String> {
    let contents = output(Command::new("dpkg-deb").arg("--contents").arg(package))?;
    for (mode, name) in FILES {
        let is_it = |line: &str| line.starts_with(mode) && line.split_whitespace().last() == Some(name);
        if !contents.lines().any(is_it) {
            fail!("there is no {mode} {name} in it");
        }
    }
    let needs = output(Command::new("dpkg-deb").args(["--field"]).arg(package).arg("Depends"))?;
    if !needs.contains("libc6 (>= 2.34)") {
        fail!("it does not depend on glibc 2.34, but on {}", needs.trim());
    }
    if find_program("lintian").is_some() {
        let args = ["--fail-on", "error", "--no-tag-display-limit", "--allow-root"];
        output(Command::new("lintian").args(args).arg(package))?;
    }
    let name = package.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(format!("{name}, {} files", contents.lines().filter(|line| line.starts_with('-')).count()))
}

fn packages(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "deb") {
            found.push(path);
        }
    }
    Ok(found)
}

/// The man pages and completions, which the command has within.
fn make_pages() -> Result<()> {
    let folder = product::target().join("release/package");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    output(Command::new(product::sd()).args(["man", "--dir"]).arg(folder.join("man")))?;
    for page in std::fs::read_dir(folder.join("man"))? {
        // Without the time, so that what is built twice is the same.
        output(Command::new("gzip").args(["-9", "--no-name"]).arg(page?.path()))?;
    }
    for (shell, file) in [("bash", "bash/sd"), ("zsh", "zsh/_sd"), ("fish", "fish/sd.fish")] {
        let path = folder.join(file);
        std::fs::create_dir_all(path.parent().unwrap_or(&folder))?;
        std::fs::write(path, output(Command::new(product::sd()).args(["completions", shell]))?)?;
    }
    Ok(())
}
