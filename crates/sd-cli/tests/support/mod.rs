//! Running `sd`, a directory that goes away, and a monitor that says what it is told to.
#![allow(dead_code, reason = "not every test file uses all of it")]

use harness::scratch::Scratch;
use sd_proto::{ErrorCode, MESSAGE_MAX, Reply, Request};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A directory of the test's own.
pub(crate) struct Folder(Scratch);

impl Folder {
    pub(crate) fn new() -> Folder {
        Folder(Scratch::new("cli-test").unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub(crate) fn is_empty(&self) -> bool {
        std::fs::read_dir(self.path()).unwrap().next().is_none()
    }
}

/// `sd` with these arguments, in an environment that leads to no monitor but the one in `folder`, and to
/// a library that changes nothing.
pub(crate) fn sd(folder: &Folder, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sd"));
    command.args(arguments).env("SD_MONITOR", folder.join("monitor.sock")).env("SD_LIB", harmless_library());
    command.env("TMPDIR", folder.path()).env_remove("LD_PRELOAD").stdin(Stdio::null());
    command
}

/// The C library itself: preloading it changes nothing.
pub(crate) fn harmless_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    path.into_iter().find(|path| path.ends_with("/libc.so.6")).unwrap().into()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Standard error as lines.
pub(crate) fn errors(output: &Output) -> Vec<String> {
    String::from_utf8_lossy(&output.stderr).lines().map(str::to_owned).collect()
}

/// What a stand-in monitor does with each question.
#[derive(Clone)]
pub(crate) enum Manner {
    /// Answers Status with this document.
    Tells(String),
    /// Takes the question and keeps silent.
    Stuck,
    /// Answers with bytes that are no message.
    Confused,
}

/// Listens at `monitor.sock` of the folder until the test process ends.
pub(crate) fn stand_in(folder: &Folder, manner: Manner) {
    let listener = listen(&folder.join("monitor.sock"));
    std::thread::spawn(move || {
        let mut held = Vec::new();
        loop {
            let none = std::ptr::null_mut();
            // SAFETY: no address is asked for; the descriptor is fresh.
            let client = unsafe {
                let fd = libc::accept(listener.as_raw_fd(), none, std::ptr::null_mut());
                assert!(fd >= 0);
                OwnedFd::from_raw_fd(fd)
            };
            serve(&client, &manner);
            held.push(client);
        }
    });
}

fn serve(client: &OwnedFd, manner: &Manner) {
    let mut buf = [0u8; MESSAGE_MAX];
    let got = sd_sys::msg::recv_with_fds(client.as_raw_fd(), &mut buf, 0).unwrap();
    if got.len == 0 {
        return;
    }
    let request = Request::decode(&buf[..got.len]).unwrap();
    let mut buf = [0u8; MESSAGE_MAX];
    if let (Request::Hello { .. }, Manner::Tells(_)) = (request, manner) {
        let answer = Reply::Error { code: ErrorCode::Version }.encode(&mut buf);
        let _ = sd_sys::msg::send_with_fds(client.as_raw_fd(), answer, &[], 0);
        return;
    }
    match manner {
        Manner::Stuck => {}
        Manner::Confused => {
            let _ = sd_sys::msg::send_with_fds(client.as_raw_fd(), &[200, 1], &[], 0);
        }
        Manner::Tells(document) => {
            let fd = sd_sys::mem::memfd_sealed(c"status", document.len()).unwrap();
            let mut file = std::fs::File::from(sd_monitor::std_fd(fd));
            file.write_all(document.as_bytes()).unwrap();
            let answer = Reply::Status.encode(&mut buf);
            let _ = sd_sys::msg::send_with_fds(client.as_raw_fd(), answer, &[file.as_raw_fd()], 0);
        }
    }
}

/// A listening SOCK_SEQPACKET socket.
pub(crate) fn listen(path: &Path) -> OwnedFd {
    // SAFETY: an all-zero address is valid and filled within its bounds; the descriptor is fresh.
    unsafe {
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as u16;
        for (to, from) in address.sun_path.iter_mut().zip(path.as_os_str().as_bytes()) {
            *to = *from as libc::c_char;
        }
        let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0);
        let len = size_of::<libc::sockaddr_un>() as u32;
        assert_eq!(libc::bind(fd, (&raw const address).cast(), len), 0);
        assert_eq!(libc::listen(fd, 16), 0);
        OwnedFd::from_raw_fd(fd)
    }
}
