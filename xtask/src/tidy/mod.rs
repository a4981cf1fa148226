//! `cargo xtask tidy`: rules that no compiler checks.
//!
//! Layout (lengths of files and functions), comments on unsafe code, the direction of dependencies, the order of
//! sd-socket's folders, words that must not be in the repository, the hook table against glibc's functions, the coverage
//! tables against the subjects, the promises of SECURITY.md against the tests, the places that the guides name, and the ends of SYNC
//! POINTs against each other, what the library takes of the stack.

mod arch;
mod callers;
mod circles;
mod coverage;
mod deps;
mod freestanding;
mod hooks;
mod layout;
mod places;
mod points;
mod promises;
mod rooms;
mod source;
mod stack;
mod words;

use harness::process::output_of;
use harness::{Result, fail, product};
use std::path::{Path, PathBuf};

/// A broken rule: where and what.
pub(crate) type Findings = Vec<String>;

pub(crate) fn run() -> Result<()> {
    let files = files()?;
    let mut findings = Findings::new();
    for (path, text) in &files {
        let name = path.display().to_string();
        findings.extend(words::check(&name, text));
        findings.extend(layout::check(&name, text));
    }
    findings.extend(deps::check(&files)?);
    findings.extend(hooks::check()?);
    findings.extend(freestanding::check()?);
    findings.extend(stack::check()?);
    findings.extend(coverage::check(&files)?);
    findings.extend(points::check(&files));
    findings.extend(promises::check(&files));
    findings.extend(arch::check(&files));
    findings.extend(rooms::check(&files)?);
    findings.extend(circles::check(&files));
    findings.extend(places::check(&files));
    if !findings.is_empty() {
        for finding in &findings {
            eprintln!("{finding}");
        }
        fail!("tidy found {} faults in {} files", findings.len(), files.len());
    }
    eprintln!("tidy: {} files are in order", files.len());
    Ok(())
}

/// Every text file of the repository, present or about to be, with its path below the root.
fn files() -> Result<Vec<(PathBuf, String)>> {
    let root = product::root();
    let root_text = root.display().to_string();
    let args = ["-C", &root_text, "ls-files", "--cached", "--others", "--exclude-standard", "-z"];
    let mut paths = Vec::new();
    match output_of("git", &args) {
        Ok(list) => paths.extend(list.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from)),
        // An unpacked archive has no history.
        Err(_) => walk(&root, Path::new(""), &mut paths)?,
    }
    paths.sort();
    paths.dedup();
    let text = |path: PathBuf| Some((path.clone(), std::fs::read_to_string(root.join(path)).ok()?));
    Ok(paths.into_iter().filter_map(text).collect())
}

fn walk(root: &Path, folder: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if path == Path::new("target") || path == Path::new(".git") {
            continue;
        }
        if entry.file_type()?.is_dir() {
            walk(root, &path, paths)?;
        } else {
            paths.push(path);
        }
    }
    Ok(())
}
