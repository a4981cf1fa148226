//! Turning into another program: execvp(3) with nothing changed but the environment.

use crate::failure::{Context, Failure};
use sd_attach::loader::Loader;
use sd_attach::unled::Unled;
use sd_attach::{elf, script};
use std::convert::Infallible;
use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

unsafe extern "C" {
    static environ: *const *const libc::c_char;
}

/// Becomes the program, found through PATH. Signal mask and dispositions, descriptors and working directory
/// stay as they are, which is why this is not `std::os::unix::process::CommandExt::exec`. `by`: the library's file is executed, and loads it.
///
/// # Errors
/// With the status that a shell has for it.
pub fn become_program(command: &[OsString], by: Option<(&Loader, &CStr)>) -> Result<Infallible, Failure> {
    let Some(name) = command.first() else {
        return Err(Failure::new("no program was named").with_status(125));
    };
    let arguments: Vec<CString> = command.iter().map(|a| c_string(a)).collect::<Result<_, _>>()?;
    let mut pointers: Vec<*const libc::c_char> = arguments.iter().map(|a| a.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: null-terminated arrays of C strings that live until the call returns, with at least one argument.
    let error = unsafe {
        if let Some((loader, library)) = by {
            std::io::Error::from_raw_os_error(loader.execute(library, pointers.as_ptr(), environ).0)
        } else {
            libc::execvp(pointers[0], pointers.as_ptr());
            crate::failure::last_os_error()
        }
    };
    let status = if error.raw_os_error() == Some(libc::ENOENT) { 127 } else { 126 };
    Err(Failure::new(format!("{}: {}", name.display(), words(&error))).with_status(status))
}

/// The path that a program of this name has when it stands beside this one.
pub fn beside(name: &str) -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().context("the path of this program")?;
    Ok(own.with_file_name(name))
}

/// What the kernel executes by a name: of a script, its interpreter.
pub struct Executed {
    path: PathBuf,
    /// Its beginning; empty if it cannot be read.
    start: Vec<u8>,
    /// It is the interpreter of what was named.
    is_script: bool,
}

impl Executed {
    /// `None`: there is no such program.
    pub fn of(name: &OsStr) -> Option<Executed> {
        let mut path = find(name)?;
        for nested in 0..script::NESTED_MAX {
            let start = beginning(&path).unwrap_or_default();
            if !script::is_script(&start) {
                return Some(Executed { path, start, is_script: nested > 0 });
            }
            path = PathBuf::from(OsStr::from_bytes(script::interpreter(&start)?));
        }
        None
    }

    /// Why its exec is one with AT_SECURE (getauxval(3)), in which nothing is preloaded.
    pub fn gains_rights(&self) -> Option<&'static str> {
        let found = self.path.metadata().ok().filter(std::fs::Metadata::is_file)?;
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
        let text = c_string(self.path.as_os_str()).ok()?;
        let name = c"security.capability".as_ptr();
        // SAFETY: C strings; no value is asked for.
        let len = unsafe { libc::getxattr(text.as_ptr(), name, std::ptr::null_mut(), 0) };
        (len > 0 && user != 0).then_some("has file capabilities")
    }

    /// Whether no dynamic linker loads the library that needs libc: there is none, or no libc.
    pub fn is_without_libc(&self) -> bool {
        let file = || std::fs::File::open(&self.path).ok();
        let is_known =
            || file().is_some_and(|file| sd_attach::program::without_libc(file.as_raw_fd()).is_some());
        elf_is_static(&self.start) || is_known()
    }

    /// Has the library's file load this program, where no tracer may bring the library into it. `None`: it is a script's interpreter, or cannot be.
    pub fn load_by(&self, library: &CStr) -> Option<Loader> {
        let file = std::fs::File::open(&self.path).ok().filter(|_| !self.is_script)?;
        Loader::of(file.as_raw_fd(), library).ok()
    }

    /// Whether the library can be brought into this static program, or why not.
    ///
    /// # Errors
    /// See [`Unled`].
    pub fn can_be_led(&self) -> Result<(), Unled> {
        let file = std::fs::File::open(&self.path).map_err(|_| Unled::Unknown)?;
        sd_attach::program::can_be_led(file.as_raw_fd())
    }
}

/// Of a regular file: so much that an ELF file's program headers are in it.
fn beginning(path: &std::path::Path) -> Option<Vec<u8>> {
    use std::io::Read;
    path.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(64 << 10).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// An ELF file for this processor without PT_INTERP (elf(5)).
fn elf_is_static(bytes: &[u8]) -> bool {
    let table = elf::table(bytes).map_or(&[][..], |(table, _)| table);
    !table.is_empty() && elf::entries(table).all(|entry| entry.kind != libc::PT_INTERP)
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
pub fn c_string(text: &OsStr) -> Result<CString, Failure> {
    CString::new(text.as_bytes())
        .map_err(|_| Failure::new(format!("{}: contains a zero byte", text.display())))
}

/// An error of the kernel's without its number.
pub fn words(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// Sets an environment variable of this process.
pub fn set_variable(name: &str, value: &OsStr) {
    // SAFETY: the process has one thread.
    unsafe { std::env::set_var(name, value) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Little of an ELF file: two program headers of these kinds.
    fn elf(kinds: [u32; 2]) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 2 * 56];
        bytes[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
        bytes[18..20].copy_from_slice(&(sd_sys::arch::ELF_MACHINE as u16).to_le_bytes());
        (bytes[32], bytes[54], bytes[56]) = (64, 56, 2);
        for (index, kind) in kinds.into_iter().enumerate() {
            bytes[64 + index * 56] = kind as u8;
        }
        bytes
    }

    #[test]
    fn what_has_no_dynamic_linker() {
        assert!(elf_is_static(&elf([libc::PT_LOAD, libc::PT_DYNAMIC])));
        assert!(!elf_is_static(&elf([libc::PT_LOAD, libc::PT_INTERP])));
        let whole = elf([libc::PT_LOAD, libc::PT_LOAD]);
        assert!((0..whole.len()).all(|len| !elf_is_static(&whole[..len])), "cut off: not known");
        let own = std::env::current_exe().unwrap();
        let is_static = |name: &OsStr| Executed::of(name).is_some_and(|found| found.is_without_libc());
        assert!(!is_static(own.as_os_str()) && !is_static(OsStr::new("/nonexistent")));
    }
}
