//! Where metrics are to be had: a Unix socket, whose file is its owner's alone, or an address.

use super::super::place::{check_directory, identity, remove_stale};
use crate::{Error, MetricsPlace};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr};
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A bound socket. Dropping what is left of it removes its file.
pub(crate) struct Place {
    pub(crate) listener: Option<OwnedFd>,
    file: Option<(PathBuf, (u64, u64))>,
}

impl Place {
    /// Binds.
    pub(crate) fn take(place: &MetricsPlace) -> Result<Place, Error> {
        match place {
            MetricsPlace::Unix(path) => unix(path),
            MetricsPlace::Tcp(address) => {
                let path = PathBuf::from(address.to_string());
                let system = |what| move |error| Error::System(what, path, error);
                let listener = std::net::TcpListener::bind(address).map_err(system.clone()("bind to"))?;
                listener.set_nonblocking(true).map_err(system("set up"))?;
                if !address.ip().is_loopback() {
                    tracing::warn!("metrics at {address} are to be had by whoever reaches that address");
                }
                Ok(Place { listener: Some(listener.into()), file: None })
            }
        }
    }
}

fn unix(path: &Path) -> Result<Place, Error> {
    let system = |what| move |error: nix::Error| Error::System(what, path.to_owned(), error.into());
    let address = UnixAddr::new(path).map_err(system("use as a socket"))?;
    check_directory(path)?;
    remove_stale(path, &address, SockType::Stream)?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listener = nix::sys::socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)
        .map_err(system("make a socket for"))?;
    // unix(7): bind gives the file the socket's mode. So there is no moment at which others may connect.
    nix::sys::stat::fchmod(listener.as_fd(), nix::sys::stat::Mode::from_bits_truncate(0o600))
        .map_err(system("set the mode of"))?;
    nix::sys::socket::bind(listener.as_raw_fd(), &address).map_err(system("bind to"))?;
    let found = fs::symlink_metadata(path).map(identity);
    let file = found.map_err(|error| Error::System("look at", path.to_owned(), error))?;
    let mut place = Place { listener: None, file: Some((path.to_owned(), file)) };
    nix::sys::socket::listen(&listener, Backlog::new(16).unwrap_or(Backlog::MAXCONN))
        .map_err(system("listen on"))?;
    place.listener = Some(listener);
    Ok(place)
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some((path, file)) = &self.file
            && fs::symlink_metadata(path).is_ok_and(|found| identity(found) == *file)
        {
            let _ = fs::remove_file(path);
        }
    }
}
