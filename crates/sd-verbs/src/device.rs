//! Devices, what is open of them, their ports.

use crate::abi;
use crate::error::{Absent, Error};
use crate::library::{Library, library};
use std::ffi::CStr;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// A device of this host, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    name: String,
}

/// A device that is open. Clones are the same one.
#[derive(Clone)]
pub struct Context {
    pub(crate) inner: Arc<Opened>,
}

pub(crate) struct Opened {
    pub(crate) library: &'static Library,
    raw: NonNull<abi::Context>,
}

// SAFETY: the library's objects may be used and destroyed by any thread (its functions are thread safe, ibverbs(7)).
unsafe impl Send for Opened {}
// SAFETY: as above; a reference gives out the pointer only, for calls that are thread safe.
unsafe impl Sync for Opened {}

/// What belongs together: a pair reaches memory of its own domain only. Clones are the same one.
#[derive(Clone)]
pub struct Domain {
    pub(crate) inner: Arc<Allocated>,
}

pub(crate) struct Allocated {
    pub(crate) context: Context,
    raw: NonNull<abi::Opaque>,
}

// SAFETY: as for `Opened`.
unsafe impl Send for Allocated {}
// SAFETY: as for `Opened`.
unsafe impl Sync for Allocated {}

/// Bytes of a packet's contents on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mtu(pub(crate) u32);

impl Mtu {
    pub fn bytes(self) -> usize {
        128 << self.0
    }

    /// The greatest one that is not above so many bytes; none below 256.
    pub fn within(bytes: usize) -> Option<Mtu> {
        (1..=5).rev().map(Mtu).find(|mtu| mtu.bytes() <= bytes)
    }
}

/// What a port is like now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    pub number: u8,
    pub is_active: bool,
    pub is_ethernet: bool,
    pub mtu: Mtu,
    pub gids: u32,
    pub lid: u16,
    /// The longest message.
    pub message_max: u32,
}

impl Device {
    /// All that this host has.
    pub fn all() -> Result<Vec<Device>, Error> {
        let found = List::get()?;
        Ok(found.devices().map(|raw| Device { name: found.name(raw) }).collect())
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn open(&self) -> Result<Context, Error> {
        let found = List::get()?;
        let Some(raw) = found.devices().find(|raw| found.name(*raw) == self.name) else {
            return Err(Error::NoDevice(Absent::Device));
        };
        // SAFETY: the device is of the list, which lives until the end of this function.
        let opened = unsafe { (found.library.open_device)(raw) };
        let raw = NonNull::new(opened).ok_or_else(|| Error::last("ibv_open_device"))?;
        let context = Context { inner: Arc::new(Opened { library: found.library, raw }) };
        set_nonblocking(context.events())?;
        Ok(context)
    }
}

/// The library's list of devices.
struct List {
    library: &'static Library,
    first: NonNull<*mut abi::Opaque>,
    len: usize,
}

impl List {
    fn get() -> Result<List, Error> {
        let library = library()?;
        let mut len = 0;
        // SAFETY: the library writes one int.
        let first = unsafe { (library.get_device_list)(&raw mut len) };
        // ENOSYS: the kernel has no RDMA at all.
        let first = NonNull::new(first).ok_or(Error::NoDevice(Absent::Device))?;
        let list = List { library, first, len: usize::try_from(len).unwrap_or_default() };
        if list.len == 0 { Err(Error::NoDevice(Absent::Device)) } else { Ok(list) }
    }

    fn devices(&self) -> impl Iterator<Item = *mut abi::Opaque> {
        // SAFETY: the library has said that so many pointers are there, and they stay until the list is freed.
        (0..self.len).map(|at| unsafe { *self.first.as_ptr().add(at) })
    }

    fn name(&self, device: *mut abi::Opaque) -> String {
        // SAFETY: the device is of this list; its name is a string of its own, ended by a zero byte, or null.
        unsafe {
            let name = (self.library.get_device_name)(device);
            if name.is_null() { String::new() } else { CStr::from_ptr(name).to_string_lossy().into_owned() }
        }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list is the library's and freed once; devices that were opened stay.
        unsafe { (self.library.free_device_list)(self.first.as_ptr()) };
    }
}

impl Context {
    pub(crate) fn raw(&self) -> *mut abi::Context {
        self.inner.raw.as_ptr()
    }

    pub(crate) fn library(&self) -> &'static Library {
        self.inner.library
    }

    /// Ports are counted from 1.
    pub fn port(&self, number: u8) -> Result<Port, Error> {
        let mut said = abi::PortAttributes::default();
        // SAFETY: the context is open; the library writes at most one such structure.
        let errno = unsafe { (self.library().query_port)(self.raw(), number, &raw mut said) };
        Error::check("ibv_query_port", errno)?;
        Ok(Port {
            number,
            is_active: said.state == abi::PORT_ACTIVE,
            is_ethernet: said.link_layer == abi::LINK_LAYER_ETHERNET,
            mtu: Mtu(said.active_mtu.clamp(1, 5)),
            gids: u32::try_from(said.gids).unwrap_or_default(),
            lid: said.lid,
            message_max: said.message_max,
        })
    }

    /// Who a port is, by one of its names. Those of RoCE are IP addresses: IPv4's as `::ffff:ADDRESS`.
    pub fn gid(&self, port: u8, index: u32) -> Result<[u8; 16], Error> {
        let mut gid = [0; 16];
        let at = i32::try_from(index).map_err(|_| Error::NoGid(index))?;
        // SAFETY: the context is open; the library writes 16 bytes.
        match unsafe { (self.library().query_gid)(self.raw(), port, at, &raw mut gid) } {
            0 if gid != [0; 16] => Ok(gid),
            _ => Err(Error::NoGid(index)),
        }
    }

    /// The names of a port as IP addresses, with their places: RoCE's are those of the network device below.
    pub fn addresses(&self, port: u8) -> Result<Vec<(u32, IpAddr)>, Error> {
        let address = |gid| IpAddr::from(Ipv6Addr::from(gid)).to_canonical();
        let named = |index| Some((index, address(self.gid(port, index).ok()?)));
        Ok((0..self.port(port)?.gids).filter_map(named).collect())
    }

    pub fn domain(&self) -> Result<Domain, Error> {
        // SAFETY: the context is open, and the domain keeps it so.
        let raw = unsafe { (self.library().alloc_pd)(self.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_alloc_pd"))?;
        Ok(Domain { inner: Arc::new(Allocated { context: self.clone(), raw }) })
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: all that was made of it holds it, so nothing is left; what it returns nobody can answer.
        unsafe { (self.library.close_device)(self.raw.as_ptr()) };
    }
}

impl Domain {
    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    pub(crate) fn raw(&self) -> *mut abi::Opaque {
        self.inner.raw.as_ptr()
    }
}

impl Drop for Allocated {
    fn drop(&mut self) {
        // SAFETY: memory and pairs of it hold it, so nothing is left.
        unsafe { (self.context.library().dealloc_pd)(self.raw.as_ptr()) };
    }
}

pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<(), Error> {
    // SAFETY: fcntl of a descriptor that is open.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    // SAFETY: as above.
    match flags >= 0 && unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) } == 0 {
        true => Ok(()),
        false => Err(Error::last("fcntl")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a machine with a device there is one; on others it is said that there is none. Neither is a panic.
    #[test]
    fn devices_or_none() {
        match Device::all() {
            Ok(devices) => assert!(!devices.is_empty()),
            Err(error) => assert!(matches!(error, Error::NoDevice(_)), "{error}"),
        }
        let none = Device { name: "of nobody".to_owned() };
        assert!(matches!(none.open().err(), Some(Error::NoDevice(_))));
    }

    #[test]
    fn lengths_of_packets() {
        assert_eq!([1, 2, 3, 4, 5].map(|code| Mtu(code).bytes()), [256, 512, 1024, 2048, 4096]);
        assert_eq!(Mtu::within(1500), Some(Mtu(3)));
        assert_eq!(Mtu::within(100_000), Some(Mtu(5)));
        assert_eq!(Mtu::within(255), None);
    }
}
