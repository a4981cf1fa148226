//! Questions to the monitor. Every step is bounded in time, so a stuck monitor cannot hold anybody up.

use sd_proto::{MESSAGE_MAX, Reply, Request};
use serde_json::Value;
use std::fmt;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A status document larger than this is not believed.
const STATUS_BYTES_MAX: u64 = 1 << 30;
const ANSWER_TIMEOUT_S: i64 = 3;

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Silence {
    /// No socket: no monitor was started.
    Absent,
    /// A socket without a monitor behind it.
    Stale,
    /// No access, or another error of the kernel's.
    Refused(std::io::Error),
    /// It took the question and did not answer in time.
    Stuck,
    /// It hung up: it is of another version, or out of descriptors.
    HungUp,
    /// It answered something else; its version is another one.
    Confused(&'static str),
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Silence::Absent => write!(f, "no monitor (there is no socket)"),
            Silence::Stale => write!(f, "no monitor (a stale socket was left behind)"),
            Silence::Refused(error) => write!(f, "the monitor's socket cannot be used: {error}"),
            Silence::Stuck => write!(f, "the monitor does not answer"),
            Silence::HungUp => {
                write!(f, "the monitor closed the connection: of another version, or out of descriptors")
            }
            Silence::Confused(what) => write!(f, "the monitor is of another version: {what}"),
        }
    }
}

/// What the monitor knows: the JSON document of its Status reply.
pub(crate) fn status(socket: &Path) -> Result<Value, Silence> {
    let connection = connect(socket)?;
    let mut buf = [0u8; MESSAGE_MAX];
    let question = Request::Status.encode(&mut buf);
    sd_sys::msg::send_with_fds(connection.as_raw_fd(), question, &[], 0).map_err(silence)?;
    let mut buf = [0u8; MESSAGE_MAX];
    let got = sd_sys::msg::recv_with_fds(connection.as_raw_fd(), &mut buf, 0).map_err(silence)?;
    // SAFETY: `take` gives the descriptor to the caller.
    let file = got.fds.take().map(|[fd]| unsafe { OwnedFd::from_raw_fd(fd) });
    match (Reply::decode(&buf[..got.len]), file) {
        (Ok(Reply::Status), Some(file)) => read_document(&File::from(file)),
        (Ok(Reply::Error { .. }), _) => Err(Silence::Confused("it refused the question")),
        _ if got.len == 0 => Err(Silence::HungUp),
        _ => Err(Silence::Confused("it gave a senseless answer")),
    }
}

/// Whether somebody accepts there.
pub(crate) fn answers(socket: &Path) -> bool {
    connect(socket).is_ok()
}

/// The monitor's version if it is another one than ours.
pub(crate) fn foreign_version(status: &Value) -> Option<String> {
    match &status["version"] {
        Value::String(text) if text == env!("CARGO_PKG_VERSION") => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

fn connect(socket: &Path) -> Result<OwnedFd, Silence> {
    let fd =
        sd_sys::fd::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0).map_err(silence)?;
    // SAFETY: a fresh descriptor that nobody else has.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        let time = libc::timeval { tv_sec: ANSWER_TIMEOUT_S, tv_usec: 0 };
        // SAFETY: the kernel reads one timeval. The send timeout also bounds connect.
        unsafe {
            libc::setsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                (&raw const time).cast(),
                size_of::<libc::timeval>() as u32,
            )
        };
    }
    // SAFETY: an all-zero sockaddr_un is valid.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    let path = socket.as_os_str().as_bytes();
    if path.len() >= address.sun_path.len() {
        return Err(Silence::Refused(std::io::Error::from_raw_os_error(libc::ENAMETOOLONG)));
    }
    address.sun_family = libc::AF_UNIX as u16;
    for (to, from) in address.sun_path.iter_mut().zip(path) {
        *to = *from as libc::c_char;
    }
    // SAFETY: the kernel reads one sockaddr_un.
    let done = unsafe {
        libc::connect(fd.as_raw_fd(), (&raw const address).cast(), size_of::<libc::sockaddr_un>() as u32)
    };
    if done == 0 { Ok(fd) } else { Err(of_errno(crate::failure::last_os_error())) }
}

fn silence(error: sd_sys::Errno) -> Silence {
    of_errno(crate::failure::os_error(error))
}

fn of_errno(error: std::io::Error) -> Silence {
    match error.raw_os_error() {
        Some(libc::ENOENT) => Silence::Absent,
        Some(libc::ECONNREFUSED) => Silence::Stale,
        Some(libc::EAGAIN | libc::ETIMEDOUT) => Silence::Stuck,
        Some(libc::EPIPE | libc::ECONNRESET) => Silence::HungUp,
        Some(libc::EPROTOTYPE) => Silence::Refused(std::io::Error::other("it is not a monitor's")),
        _ => Silence::Refused(error),
    }
}

fn read_document(file: &File) -> Result<Value, Silence> {
    let len = file.metadata().map_err(Silence::Refused)?.len();
    if len > STATUS_BYTES_MAX {
        return Err(Silence::Confused("its status is too long"));
    }
    let mut bytes = vec![0u8; len as usize];
    file.read_exact_at(&mut bytes, 0).map_err(Silence::Refused)?;
    let text = bytes.split(|b| *b == 0).next().unwrap_or_default();
    serde_json::from_slice(text).map_err(|_| Silence::Confused("its status is not JSON"))
}
