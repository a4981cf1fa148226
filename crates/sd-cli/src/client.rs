//! Questions to the monitor. Every step is bounded in time, so a stuck monitor cannot hold anybody up.

use crate::place;
use sd_monitor::std_fd;
use sd_proto::{ErrorCode, Ip, MESSAGE_MAX, Reply, Request};
use serde_json::Value;
use std::fmt;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A status document larger than this is not believed.
const STATUS_BYTES_MAX: u64 = 1 << 30;
const ANSWER_TIMEOUT_MS: u32 = 3000;

/// Why there is no answer.
#[derive(Debug)]
pub enum Silence {
    /// No socket: no monitor was started.
    Absent,
    /// A socket without a monitor behind it.
    Stale,
    /// No access, or another error of the kernel's.
    Refused(std::io::Error),
    /// Others could have put the socket there; the text says where.
    Unsafe(String),
    /// Neither root's nor ours: the user.
    Stranger(u32),
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
            Silence::Unsafe(text) => write!(f, "no monitor is believed there: {text}"),
            Silence::Stranger(sd_sys::trust::OVERFLOW_UID) => {
                write!(f, "the monitor is of a user that has no number in this user namespace")
            }
            Silence::Stranger(uid) => {
                write!(f, "the monitor belongs to user {uid}: neither root nor this one")
            }
            Silence::Stuck => write!(f, "the monitor does not answer"),
            Silence::HungUp => {
                write!(f, "the monitor closed the connection: of another version, or out of descriptors")
            }
            Silence::Confused(what) => write!(f, "the monitor is of another version: {what}"),
        }
    }
}

/// What the monitor knows: the JSON document of its Status reply.
pub fn status(socket: &Path) -> Result<Value, Silence> {
    match ask(socket, &Request::Status)? {
        (Some(Reply::Status), Some(file)) => read_document(&file),
        (Some(Reply::Error { .. }), _) => Err(Silence::Confused("it refused the question")),
        _ => Err(Silence::Confused("it gave a senseless answer")),
    }
}

/// Has connections that were promoted go back to the kernel's: of how many it has told their processes. `before_ns`: how many have not
/// since that time (CLOCK_MONOTONIC); zero: they are told.
pub fn demote(
    socket: &Path,
    pid: u32,
    (ip, port): (Ip, u16),
    (at_once, before_ns): (bool, u64),
) -> Result<u32, Silence> {
    match ask(socket, &Request::Demote { pid, ip, port, at_once, before_ns })? {
        (Some(Reply::Demoted { count }), _) => Ok(count),
        (Some(Reply::Error { .. }), _) => Err(Silence::Confused("it refused the question")),
        _ => Err(Silence::Confused("it gave a senseless answer")),
    }
}

/// What stands in the way of a process that is to let go of all that it shares ([`Request::Detach`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InTheWay {
    /// Connections that are on their way back to the kernel's.
    pub promoted: u32,
    /// Those that were born in shared memory.
    pub shared: u32,
    /// Other processes that share its sockets.
    pub relatives: u32,
}

/// Has a process detach, or, unless `tell`, asks what stands in its way. `None`: it is no client of the monitor's, or none any more.
pub fn detach(socket: &Path, pid: u32, tell: bool) -> Result<Option<InTheWay>, Silence> {
    match ask(socket, &Request::Detach { pid, tell })? {
        (Some(Reply::Detaching { is_there: false, .. }), _) => Ok(None),
        (Some(Reply::Detaching { promoted, shared, relatives, .. }), _) => {
            Ok(Some(InTheWay { promoted, shared, relatives }))
        }
        (Some(Reply::Error { .. }), _) => Err(Silence::Confused("it refused the question")),
        _ => Err(Silence::Confused("it gave a senseless answer")),
    }
}

/// Whether the monitor there is of our version: asked by a Hello that lacks everything, which costs it nothing, while
/// a document of many connections costs it milliseconds.
pub fn is_alike(socket: &Path) -> Result<bool, Silence> {
    let (reply, _) = ask(socket, &Request::Hello { version: sd_proto::VERSION, again: false })?;
    Ok(matches!(reply, Some(Reply::Error { code: ErrorCode::Descriptor })))
}

/// The answer to a question, if it can be understood, and its file.
fn ask(socket: &Path, request: &Request) -> Result<(Option<Reply>, Option<File>), Silence> {
    let connection = connect(socket)?;
    let mut buf = [0u8; MESSAGE_MAX];
    let question = request.encode(&mut buf);
    sd_sys::msg::send_with_fds(connection.as_raw_fd(), question, &[], 0).map_err(silence)?;
    let mut buf = [0u8; MESSAGE_MAX];
    let got = sd_sys::msg::recv_with_fds(connection.as_raw_fd(), &mut buf, 0).map_err(silence)?;
    let file = got.fds.take().map(|[fd]| File::from(std_fd(fd)));
    match got.len {
        0 => Err(Silence::HungUp),
        len => Ok((Reply::decode(&buf[..len]).ok(), file)),
    }
}

/// Whether somebody accepts there.
pub fn answers(socket: &Path) -> bool {
    connect(socket).is_ok()
}

/// The process that listens there; zero: one that cannot be seen from here. `None`: nobody accepts.
pub fn who_answers(socket: &Path) -> Option<i32> {
    let connection = connect(socket).ok()?;
    sd_sys::fd::peer(connection.as_raw_fd()).ok().map(|(pid, _)| pid)
}

/// The monitor's version if it is another one than ours.
pub fn foreign_version(status: &Value) -> Option<String> {
    match &status["version"] {
        Value::String(text) if text == env!("CARGO_PKG_VERSION") => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// A connection to the socket of a monitor that may be believed, as the library makes it.
fn connect(socket: &Path) -> Result<OwnedFd, Silence> {
    place::check_way(socket).map_err(|doubt| match doubt.errno {
        Some(errno) => of_errno(std::io::Error::from_raw_os_error(errno)),
        None => Silence::Unsafe(doubt.text),
    })?;
    let path = socket.as_os_str().as_bytes();
    let fd = sd_sys::msg::connect_unix(path, ANSWER_TIMEOUT_MS).map_err(silence)?;
    let fd = std_fd(fd);
    sd_sys::trust::other_end(fd.as_raw_fd(), true).map_err(Silence::Stranger)?;
    Ok(fd)
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
