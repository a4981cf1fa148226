//! The two programs of a measurement over sockets.

use super::link::{Socket, result};
use super::{Options, Work, calls, churn, crowd, idle, many, pipeline, scale, take, work};
use sd_cli::cli::System;
use sd_cli::failure::{Context, Failure, Result, print};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// Where to listen or connect, as the kernel wants it.
#[derive(Clone, Copy)]
pub(crate) enum Address {
    Tcp(libc::sockaddr_in),
    Unix(libc::sockaddr_un),
}

impl Address {
    /// `a.b.c.d:port`, or a path.
    pub(crate) fn parse(text: &str) -> Result<Address> {
        if let Ok(address) = text.parse::<SocketAddrV4>() {
            return Ok(Address::tcp(*address.ip(), address.port()));
        }
        // SAFETY: an all-zero sockaddr_un is valid.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        let path = std::ffi::OsStr::new(text).as_bytes();
        if path.is_empty() || path.len() >= address.sun_path.len() {
            return Err(Failure::new(format!("{text:?} is no address")));
        }
        address.sun_family = libc::AF_UNIX as u16;
        for (to, from) in address.sun_path.iter_mut().zip(path) {
            *to = *from as libc::c_char;
        }
        Ok(Address::Unix(address))
    }

    fn tcp(ip: Ipv4Addr, port: u16) -> Address {
        // SAFETY: an all-zero sockaddr_in is valid.
        let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        address.sin_family = libc::AF_INET as u16;
        address.sin_port = port.to_be();
        address.sin_addr.s_addr = u32::from_ne_bytes(ip.octets());
        Address::Tcp(address)
    }

    /// Another address of this host's, and the same port: all of 127.0.0.0/8 are. Another host has one.
    pub(crate) fn neighbour(&self, number: u32) -> Address {
        match *self {
            Address::Tcp(address) if address.sin_addr.s_addr.to_ne_bytes()[0] == 127 => {
                let ip = Ipv4Addr::from(0x7f40_0000 + number % 0x40_0000);
                Address::tcp(ip, u16::from_be(address.sin_port))
            }
            other => other,
        }
    }

    fn parts(&self) -> (*const libc::sockaddr, u32) {
        match self {
            Address::Tcp(a) => ((&raw const *a).cast(), size_of_val(a) as u32),
            Address::Unix(a) => ((&raw const *a).cast(), size_of_val(a) as u32),
        }
    }

    fn family(&self) -> i32 {
        match self {
            Address::Tcp(_) => libc::AF_INET,
            Address::Unix(_) => libc::AF_UNIX,
        }
    }
}

/// Accepts one connection and serves it.
pub(crate) fn serve(options: &Options) -> Result<()> {
    let (listener, address) = listen(options)?;
    print(&format!("ready {address}\n"))?;
    match options.work {
        Work::Latency | Work::Wake => work::echo(&mut accept(&listener)?, options.size),
        Work::Stream => work::drain(&mut accept(&listener)?, options.size),
        Work::Churn | Work::ChurnBatches | Work::ChurnStrangers => churn::serve(&listener),
        Work::Calls | Work::CallsShared => {
            let (data, control) = (accept(&listener)?, accept(&listener)?);
            share(options.work);
            super::tell(&calls::serve(data, control)?)
        }
        Work::TakeThreads | Work::TakeProcesses | Work::HolderThreads | Work::HolderProcesses => {
            let links = accept_all(&listener, take::links(options))?;
            take::serve(links, accept(&listener)?, options.work)
        }
        Work::Scale => scale::serve(accept_all(&listener, options.count)?, options),
        Work::Many | Work::Together => {
            many::raise_limit(options.count);
            many::serve(accept_all(&listener, options.count)?, options.size)
        }
        Work::Pipeline => {
            let report = pipeline::sink(&pipeline::descriptor(accept(&listener)?))?;
            super::tell(&report)
        }
        Work::Crowd | Work::Machine | Work::Queues => Err(Failure::new("not for a server")),
        Work::Idle => idle::serve(&listener, options.count),
    }
}

/// Connects, waits for the word, measures.
pub(crate) fn call(options: &Options) -> Result<()> {
    if options.work == Work::Crowd {
        let addresses = options.address.split(',').map(Address::parse);
        let links: Result<Vec<_>> = addresses.map(|address| connect(&address?, options)).collect();
        let links = links?;
        super::wait_for_go()?;
        return super::tell(&crowd::call(links, options)?);
    }
    let address = Address::parse(&options.address)?;
    let report = match options.work {
        Work::Churn | Work::ChurnBatches | Work::ChurnStrangers => {
            let call = match options.work {
                Work::Churn => churn::call,
                Work::ChurnBatches => churn::call_batches,
                _ => churn::call_strangers,
            };
            let report = call(&address, options.duration(), options.count)?;
            super::Report { congestion: options.congestion.clone(), ..report }
        }
        Work::Idle => return idle::call(&address, options.count),
        Work::Scale => {
            let links = connect_all(&address, options, options.count)?;
            let congestion = links.first().and_then(congestion);
            super::wait_for_go()?;
            super::Report { congestion, ..scale::call(links, options)? }
        }
        Work::Many | Work::Together => {
            many::raise_limit(options.count);
            let neighbour = |number| address.neighbour(options.place + (number / many::PER_ADDRESS) as u32);
            let links = (0..options.count).map(|number| connect(&neighbour(number), options));
            return many::call(links.collect::<Result<_>>()?, options);
        }
        Work::Pipeline => {
            let output = pipeline::descriptor(connect(&address, options)?);
            super::wait_for_go()?;
            super::Report { count: Some(pipeline::source(&output, options)?), ..super::Report::default() }
        }
        Work::Crowd | Work::Machine | Work::Queues => return Err(Failure::new("not for a client")),
        Work::Calls | Work::CallsShared => {
            let (data, control) = (connect(&address, options)?, connect(&address, options)?);
            share(options.work);
            super::wait_for_go()?;
            let report = calls::call(data, control, options.duration())?;
            super::Report { congestion: options.congestion.clone(), ..report }
        }
        Work::TakeThreads | Work::TakeProcesses | Work::HolderThreads | Work::HolderProcesses => {
            let links = connect_all(&address, options, take::links(options))?;
            let control = connect(&address, options)?;
            super::wait_for_go()?;
            let report = take::call(links, control, options)?;
            super::Report { congestion: options.congestion.clone(), ..report }
        }
        Work::Latency | Work::Wake | Work::Stream => {
            let mut link = connect(&address, options)?;
            super::wait_for_go()?;
            let report = match options.work {
                Work::Latency => work::ping(&mut link, options.size, options.duration())?,
                Work::Wake => work::wake(&mut link, options.size, options.duration())?,
                _ => work::pump(&mut link, options.size, options.duration())?,
            };
            if options.system == System::Sockmap && acked(&link) > options.size as u64 * 64 {
                return Err(Failure::new("the data went through TCP"));
            }
            super::Report { congestion: congestion(&link), ..report }
        }
    };
    super::tell(&report)
}

fn share(work: Work) {
    if work == Work::CallsShared {
        second_thread();
    }
}

/// Starts a thread that does nothing, so that every socket has to be looked after as one that is shared.
pub(crate) fn second_thread() {
    std::thread::spawn(|| {
        loop {
            std::thread::park();
        }
    });
}

/// Accepts one connection, and passes packets from it on to the address.
pub(crate) fn function(options: &Options) -> Result<()> {
    let next = connect(&Address::parse(&options.address)?, options)?;
    let (listener, address) = listen_at(&options.own_address, options.congestion.as_deref())?;
    print(&format!("ready {address}\n"))?;
    let input = accept(&listener)?;
    pipeline::function(pipeline::descriptor(input), pipeline::descriptor(next))
}

fn accept_all(listener: &OwnedFd, count: usize) -> Result<Vec<Socket>> {
    (0..count).map(|_| accept(listener)).collect()
}

fn connect_all(address: &Address, options: &Options, count: usize) -> Result<Vec<Socket>> {
    (0..count).map(|_| connect(address, options)).collect()
}

/// A listening socket and its address as text. TCP listens on every address of the host's.
fn listen(options: &Options) -> Result<(OwnedFd, String)> {
    let address = match options.address.as_str() {
        "" => "0.0.0.0:0",
        path => path,
    };
    listen_at(address, options.congestion.as_deref())
}

/// As `listen`, at this address.
pub(crate) fn listen_on(address: &str) -> Result<(OwnedFd, String)> {
    listen_at(address, None)
}

fn listen_at(text: &str, congestion: Option<&str>) -> Result<(OwnedFd, String)> {
    let address = Address::parse(text)?;
    let socket = stream_socket(&address).context("socket")?;
    prepare(&socket, &address, congestion)?;
    let (pointer, len) = address.parts();
    // SAFETY: the kernel reads one address of that length.
    result(unsafe { libc::bind(socket.as_raw_fd(), pointer, len) } as isize).context("bind")?;
    // SAFETY: no pointers.
    result(unsafe { libc::listen(socket.as_raw_fd(), 1024) } as isize).context("listen")?;
    let bound = match address {
        Address::Unix(_) => text.to_owned(),
        Address::Tcp(_) => format!("127.0.0.1:{}", own_port(&socket)?),
    };
    Ok((socket, bound))
}

fn own_port(socket: &OwnedFd) -> Result<u16> {
    // SAFETY: an all-zero sockaddr_in is valid.
    let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&address) as u32;
    // SAFETY: the kernel writes at most `len` bytes.
    let done = unsafe { libc::getsockname(socket.as_raw_fd(), (&raw mut address).cast(), &mut len) };
    result(done as isize).context("getsockname")?;
    Ok(u16::from_be(address.sin_port))
}

fn connect(address: &Address, options: &Options) -> Result<Socket> {
    let socket = stream_socket(address).context("socket")?;
    prepare(&socket, address, options.congestion.as_deref())?;
    connect_to(socket, address).context("connect")
}

/// socket(2).
pub(crate) fn stream_socket(address: &Address) -> std::io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = result(unsafe { libc::socket(address.family(), libc::SOCK_STREAM, 0) } as isize)?;
    // SAFETY: a fresh descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// connect(2).
pub(crate) fn connect_to(socket: OwnedFd, address: &Address) -> std::io::Result<Socket> {
    let (pointer, len) = address.parts();
    // SAFETY: the kernel reads one address of that length.
    result(unsafe { libc::connect(socket.as_raw_fd(), pointer, len) } as isize)?;
    Ok(Socket(socket))
}

/// accept(2).
pub(crate) fn accept(listener: &OwnedFd) -> Result<Socket> {
    let none = std::ptr::null_mut();
    // SAFETY: no address is asked for.
    let fd = result(unsafe { libc::accept(listener.as_raw_fd(), none, std::ptr::null_mut()) } as isize);
    // SAFETY: a fresh descriptor.
    Ok(Socket(unsafe { OwnedFd::from_raw_fd(fd.context("accept")? as i32) }))
}

/// TCP_NODELAY, and the congestion control when one is asked for. What accept returns inherits both.
fn prepare(socket: &OwnedFd, address: &Address, congestion: Option<&str>) -> Result<()> {
    if matches!(address, Address::Unix(_)) {
        return Ok(());
    }
    let on = 1i32.to_ne_bytes();
    set_option(socket, libc::TCP_NODELAY, &on).context("TCP_NODELAY")?;
    if let Some(name) = congestion {
        set_option(socket, libc::TCP_CONGESTION, name.as_bytes())
            .context(format!("TCP_CONGESTION {name}"))?;
    }
    Ok(())
}

fn set_option(socket: &OwnedFd, name: i32, value: &[u8]) -> std::io::Result<()> {
    let (pointer, len) = (value.as_ptr().cast(), value.len() as u32);
    // SAFETY: the kernel reads `len` bytes.
    result(unsafe { libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, name, pointer, len) } as isize)
        .map(drop)
}

/// Bytes that TCP has delivered: few when BPF hands them over.
fn acked(link: &Socket) -> u64 {
    // struct tcp_info of linux/tcp.h, of which tcpi_bytes_acked is at this place.
    const BYTES_ACKED: usize = 120 / 8;
    let mut info = [0u64; 32];
    let mut len = size_of_val(&info) as u32;
    let (level, option) = (libc::IPPROTO_TCP, libc::TCP_INFO);
    // SAFETY: the kernel writes at most `len` bytes.
    unsafe { libc::getsockopt(link.0.as_raw_fd(), level, option, info.as_mut_ptr().cast(), &mut len) };
    info[BYTES_ACKED]
}

/// The congestion control that the kernel says is in force, if it is TCP at all.
fn congestion(link: &Socket) -> Option<String> {
    let mut name = [0u8; 16];
    let mut len = name.len() as u32;
    let (level, option) = (libc::IPPROTO_TCP, libc::TCP_CONGESTION);
    // SAFETY: the kernel writes at most `len` bytes.
    let done =
        unsafe { libc::getsockopt(link.0.as_raw_fd(), level, option, name.as_mut_ptr().cast(), &mut len) };
    let text = name.split(|b| *b == 0).next().filter(|_| done == 0)?;
    String::from_utf8(text.to_vec()).ok()
}
