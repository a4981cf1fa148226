//! What can go wrong, as values.

use std::ffi::CStr;
use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// There is no RDMA on this host; what else is there is used.
    NoDevice(Absent),
    /// A verb failed with this errno.
    Verb { name: &'static str, errno: i32 },
    /// A place beyond the end of a region.
    OutOfBounds { offset: usize, len: usize, region_len: usize },
    /// So many requests wait as the queue holds.
    Full,
    /// The port of this number is not active.
    PortDown(u8),
    /// The port has no GID at this place.
    NoGid(u32),
}

/// What of RDMA is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// libibverbs is not installed.
    Library,
    /// It has no such function.
    Function(&'static CStr),
    /// The kernel has no such device.
    Device,
}

impl Error {
    /// Of a function that sets errno.
    pub(crate) fn last(name: &'static str) -> Error {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or_default();
        Error::Verb { name, errno }
    }

    /// Of a function that returns errno.
    pub(crate) fn check(name: &'static str, errno: i32) -> Result<(), Error> {
        match errno {
            0 => Ok(()),
            // Some providers return -1 or a negative number.
            -1 => Err(Error::last(name)),
            errno => Err(Error::Verb { name, errno: errno.abs() }),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoDevice(Absent::Library) => f.write_str("libibverbs.so.1 is not installed"),
            Error::NoDevice(Absent::Function(name)) => {
                write!(f, "libibverbs.so.1 has no {}", name.to_string_lossy())
            }
            Error::NoDevice(Absent::Device) => f.write_str("there is no RDMA device"),
            Error::Verb { name, errno } => {
                write!(f, "{name}: {}", std::io::Error::from_raw_os_error(*errno))
            }
            Error::OutOfBounds { offset, len, region_len } => {
                write!(f, "{len} bytes at {offset} of a region of {region_len}")
            }
            Error::Full => f.write_str("the queue is full"),
            Error::PortDown(port) => write!(f, "port {port} is not active"),
            Error::NoGid(index) => write!(f, "there is no GID at {index}"),
        }
    }
}

impl std::error::Error for Error {}
