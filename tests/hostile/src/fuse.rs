//! A file system that the attacker serves (FUSE): a file that can be found and opened. What is asked of it afterwards is
//! answered late, or never.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// The kernel's question: length, what, number, node, and who asks.
const HEAD: usize = 40;
const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const FLUSH: u32 = 25;
const INIT: u32 = 26;

/// The child that answers; ended with this.
pub(crate) struct Served(i32);

impl Drop for Served {
    fn drop(&mut self) {
        // SAFETY: a child of this process's, which nobody else waits for; no pointers but a null one.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// Mounted where only this process and its children see it; to be called by root, before there are other threads. `late`: so
/// long a flush takes; None: for ever. One of this process's own is answered at once, as nothing could end it otherwise: its
/// files are closed before the child that serves them hears of its end.
pub(crate) fn mount(late: Option<Duration>, user: u32) -> io::Result<Served> {
    let device = File::options().read(true).write(true).open("/dev/fuse")?;
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
    let options = CString::new(options).unwrap_or_default();
    // SAFETY: all strings end with a zero byte.
    let done = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(
                c"".as_ptr(),
                c"/".as_ptr(),
                std::ptr::null(),
                libc::MS_REC | libc::MS_PRIVATE,
                std::ptr::null(),
            ) == 0
            && libc::mount(
                c"hostile".as_ptr(),
                c"/mnt".as_ptr(),
                c"fuse".as_ptr(),
                0,
                options.as_ptr().cast(),
            ) == 0
    };
    if !done {
        return Err(io::Error::last_os_error());
    }
    let own = std::process::id();
    // SAFETY: there is one thread.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // So that this process, as that user, can end it.
            let _ = crate::become_user(user);
            // SAFETY: no pointers.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            while serve(&device, late, own).is_ok() {}
            std::process::exit(0);
        }
        child => Ok(Served(child)),
    }
}

/// The file.
pub(crate) fn open() -> io::Result<File> {
    File::open("/mnt/file")
}

fn serve(mut device: &File, late: Option<Duration>, own: u32) -> io::Result<()> {
    let mut question = vec![0; 1 << 17];
    let len = device.read(&mut question)?;
    let word =
        |at: usize| question.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let (what, node) = (word(4), u64::from(word(16)));
    let number = question.get(8..16).unwrap_or(&[0; 8]).to_vec();
    let _ = len.checked_sub(HEAD).ok_or(io::ErrorKind::InvalidData)?;
    let body = match what {
        INIT => words(&[7 | 31 << 32, 0, 0, 1 << 17, 0, 0, 0, 0]),
        LOOKUP => [words(&[2, 1, u64::MAX >> 8, u64::MAX >> 8, 0]), attributes(2)].concat(),
        GETATTR if node == 1 => [words(&[u64::MAX >> 8, 0]), attributes(1)].concat(),
        OPEN => words(&[1, 0]),
        FLUSH if word(32) == own => Vec::new(),
        FLUSH => match late {
            None => return Ok(()),
            Some(late) => {
                std::thread::sleep(late);
                Vec::new()
            }
        },
        _ => return Ok(()),
    };
    let mut answer = (16 + body.len() as u32).to_le_bytes().to_vec();
    answer.extend(0u32.to_le_bytes());
    answer.extend(number);
    answer.extend(body);
    device.write_all(&answer)
}

fn words(all: &[u64]) -> Vec<u8> {
    all.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Of the root, or the file: number, size, blocks, three times, their fractions, mode, links, owner, device, block size, flags.
fn attributes(node: u64) -> Vec<u8> {
    let mode: u32 = if node == 1 { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o666 };
    let rest: [u32; 10] = [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0];
    let rest = rest.iter().flat_map(|word| word.to_le_bytes());
    words(&[node, 4096, 8, 0, 0, 0]).into_iter().chain(rest).collect()
}
