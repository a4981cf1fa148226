//! Turning into another program: execvp(3) with nothing changed but the environment.

use crate::failure::Failure;
use std::convert::Infallible;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Becomes the program, found through PATH. Signal mask and dispositions, descriptors and working directory
/// stay as they are, which is why this is not `std::os::unix::process::CommandExt::exec`.
pub(crate) fn become_program(command: &[OsString]) -> Result<Infallible, Failure> {
    let Some(name) = command.first() else {
        return Err(Failure::new("no program was named").with_status(125));
    };
    let arguments: Vec<CString> = command.iter().map(|a| c_string(a)).collect::<Result<_, _>>()?;
    let mut pointers: Vec<*const libc::c_char> = arguments.iter().map(|a| a.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: a null-terminated array of C strings that live until the call returns, with at least one.
    unsafe { libc::execvp(pointers[0], pointers.as_ptr()) };
    let error = crate::failure::last_os_error();
    let status = if error.raw_os_error() == Some(libc::ENOENT) { 127 } else { 126 };
    Err(Failure::new(format!("{}: {}", name.display(), words(&error))).with_status(status))
}

/// Why exec of this program is one with AT_SECURE (getauxval(3)), in which nothing is preloaded.
pub(crate) fn gains_rights(name: &OsStr) -> Option<&'static str> {
    let path = find(name)?;
    let found = path.metadata().ok().filter(std::fs::Metadata::is_file)?;
    // SAFETY: no arguments, cannot fail.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    if found.mode() & libc::S_ISUID != 0 && found.uid() != user {
        return Some("is set-user-id");
    }
    // Without the group's execute bit it says something else.
    let set_group = libc::S_ISGID | libc::S_IXGRP;
    if found.mode() & set_group == set_group && found.gid() != group {
        return Some("is set-group-id");
    }
    let text = c_string(path.as_os_str()).ok()?;
    // SAFETY: C strings; no value is asked for.
    let len =
        unsafe { libc::getxattr(text.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) };
    (len > 0 && user != 0).then_some("has file capabilities")
}

/// As execvp(3) finds it.
fn find(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name));
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// The text as C wants it.
pub(crate) fn c_string(text: &OsStr) -> Result<CString, Failure> {
    CString::new(text.as_bytes())
        .map_err(|_| Failure::new(format!("{}: contains a zero byte", text.display())))
}

/// An error of the kernel's without its number.
pub(crate) fn words(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// Sets an environment variable of this process.
pub(crate) fn set_variable(name: &str, value: &OsStr) {
    // SAFETY: the process has one thread.
    unsafe { std::env::set_var(name, value) };
}
