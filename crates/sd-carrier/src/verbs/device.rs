//! The device below: which one, what it tells unasked, and its errors as a socket's.

use super::{Verbs, VerbsConfig};
use crate::End;
use sd_verbs::{Absent, Device, Error, Event, Failure};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

impl Verbs {
    /// One end on the device whose active port has this address among its names (RoCE).
    pub fn at(address: IpAddr, config: VerbsConfig, first: u32) -> Result<Verbs, Error> {
        for device in Device::all()? {
            let Ok(context) = device.open() else { continue };
            // Devices with more ports than two are not known.
            for port in 1..=2 {
                let is_it = |(_, name): &(u32, IpAddr)| *name == address.to_canonical();
                let Ok(names) = context.addresses(port) else { continue };
                // RoCE's second version, which is routed, stands behind the first.
                let Some((gid_index, _)) = names.into_iter().rfind(is_it) else { continue };
                let config = VerbsConfig { port, gid_index, ..config };
                return Verbs::new(&context.domain()?, config, first);
            }
        }
        Err(Error::NoDevice(Absent::Device))
    }

    /// To be waited for besides [`crate::Carrier::fd`], with [`crate::Carrier::woken`] as well.
    pub fn events(&self) -> BorrowedFd<'_> {
        self.domain.context().events()
    }

    /// Takes what the device tells unasked.
    pub(super) fn hear_device(&mut self) {
        while let Some(event) = self.domain.context().take_event() {
            match event {
                Event::Device => self.fail(End::Broken(libc::ENODEV)),
                Event::PortDown(port) if port == self.port => self.fail(End::Broken(libc::ENETDOWN)),
                Event::Names(port) if port == self.port => self.check_name(),
                Event::Queue => self.fail(End::Broken(libc::EOVERFLOW)),
                Event::PortDown(_) | Event::Names(_) | Event::Other(_) => {}
            }
        }
    }

    /// Where this end is called otherwise now, the other one writes to nobody.
    fn check_name(&mut self) {
        let name = self.domain.context().gid(self.port, self.gid_index);
        if name.ok() != Some(self.pair.address().gid) {
            self.fail(End::Broken(libc::EADDRNOTAVAIL));
        }
    }
}

pub(super) fn errno_of(error: &Error) -> i32 {
    match error {
        Error::Verb { errno, .. } => *errno,
        Error::Full => libc::ENOBUFS,
        Error::NoDevice(_) | Error::PortDown(_) | Error::NoGid(_) => libc::ENODEV,
        Error::OutOfBounds { .. } => libc::EINVAL,
    }
}

/// What a socket's error would be.
pub(super) fn errno(failure: Failure) -> i32 {
    match failure {
        Failure::Flushed => libc::ECONNABORTED,
        Failure::RemoteAccess => libc::EACCES,
        Failure::NoAnswer => libc::ETIMEDOUT,
        Failure::NotReady => libc::ENOBUFS,
        Failure::Other(_) => libc::EIO,
    }
}
