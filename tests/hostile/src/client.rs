//! A client of the monitor that is made by hand: it sends what it likes.

use sd_proto::{Ip, MESSAGE_MAX, Reply, Request, Route, VERSION};
use sd_shm::channel::{Mapping, Side};
use sd_shm::public::Public;
use sd_shm::slab::{Endpoint, Slab, State};
use sd_sys::Errno;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;

/// As many descriptors as one message can carry.
pub(crate) const FDS_MAX: usize = 253;

/// What the standard library owns from now on.
pub(crate) fn std_fd(fd: sd_sys::fd::Owned) -> OwnedFd {
    // SAFETY: the descriptor is nobody else's.
    unsafe { OwnedFd::from_raw_fd(fd.into_raw()) }
}

pub(crate) fn own(fd: sd_sys::Result<sd_sys::fd::Owned>) -> io::Result<OwnedFd> {
    let fd = fd.map_err(|error| io::Error::from_raw_os_error(error.0))?;
    Ok(std_fd(fd))
}

fn error(what: impl std::fmt::Display) -> io::Error {
    io::Error::other(what.to_string())
}

/// A control connection, registered or not.
pub(crate) struct Control {
    pub(crate) socket: OwnedFd,
}

/// What came from the monitor.
pub(crate) type Answer = (Reply, Vec<OwnedFd>);

impl Control {
    /// To the monitor that SD_MONITOR names.
    pub(crate) fn connect() -> io::Result<Control> {
        let path = std::env::var_os("SD_MONITOR").ok_or_else(|| error("SD_MONITOR is not set"))?;
        // SAFETY: no pointers.
        let socket = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
        let socket = own(if socket < 0 { Err(Errno::EMFILE) } else { Ok(sd_sys::fd::Owned::new(socket)) })?;
        // SAFETY: an all-zero address is valid.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        address.sun_family = libc::AF_UNIX as u16;
        for (to, from) in address.sun_path.iter_mut().zip(path.as_encoded_bytes()) {
            *to = *from as libc::c_char;
        }
        let timeout = libc::timeval { tv_sec: 10, tv_usec: 0 };
        for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
            let len = size_of_val(&timeout) as u32;
            // SAFETY: the kernel reads one timeval.
            unsafe {
                let value = (&raw const timeout).cast();
                libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, len)
            };
        }
        let len = size_of_val(&address) as u32;
        // SAFETY: the kernel reads one address.
        match unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len) } {
            0 => Ok(Control { socket }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Any bytes and any descriptors, up to [`FDS_MAX`].
    pub(crate) fn send(&self, bytes: &[u8], fds: &[i32]) -> io::Result<()> {
        send_with_fds(self.socket.as_raw_fd(), bytes, fds)
    }

    pub(crate) fn tell(&self, request: Request, fds: &[i32]) -> io::Result<()> {
        self.send(request.encode(&mut [0; MESSAGE_MAX]), fds)
    }

    /// The next message; an error when the monitor has hung up or says nothing.
    pub(crate) fn receive(&self) -> io::Result<Answer> {
        self.receive_with(0)
    }

    pub(crate) fn receive_with(&self, flags: i32) -> io::Result<Answer> {
        let mut bytes = [0; MESSAGE_MAX];
        let got = sd_sys::msg::recv_with_fds(self.socket.as_raw_fd(), &mut bytes, flags)
            .map_err(|error| io::Error::from_raw_os_error(error.0))?;
        let (reply, fds) = taken(got, &bytes);
        Ok((reply.ok_or_else(|| error("the monitor has hung up"))?, fds))
    }

    pub(crate) fn ask(&self, request: Request, fds: &[i32]) -> io::Result<Answer> {
        self.tell(request, fds)?;
        self.receive()
    }
}

fn taken(got: sd_sys::msg::Received, bytes: &[u8]) -> (Option<Reply>, Vec<OwnedFd>) {
    let (len, mut fds) = (got.len, Vec::new());
    got.fds.hand_over(|fd| fds.extend(own(Ok(fd)).ok()));
    (Reply::decode(&bytes[..len]).ok().filter(|_| len > 0), fds)
}

/// sendmsg(2) with more descriptors than honest programs send.
pub(crate) fn send_with_fds(socket: i32, bytes: &[u8], fds: &[i32]) -> io::Result<()> {
    let mut control = [0u64; 2 + FDS_MAX / 2 + 1];
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: an all-zero msghdr is valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&mut iov, 1);
    if !fds.is_empty() {
        let len = 16 + size_of_val(fds);
        let head = libc::cmsghdr { cmsg_len: len, cmsg_level: libc::SOL_SOCKET, cmsg_type: libc::SCM_RIGHTS };
        assert!(fds.len() <= FDS_MAX);
        // SAFETY: the buffer is aligned and has room for the head and so many numbers.
        unsafe {
            control.as_mut_ptr().cast::<libc::cmsghdr>().write(head);
            std::ptr::copy_nonoverlapping(fds.as_ptr(), control.as_mut_ptr().add(2).cast(), fds.len());
        }
        (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), len.next_multiple_of(8));
    }
    // SAFETY: all pointers in the header are valid during the call.
    match unsafe { libc::sendmsg(socket, &header, libc::MSG_NOSIGNAL) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A registered process image.
pub(crate) struct Client {
    pub(crate) control: Control,
    pub(crate) slab: Slab,
    pub(crate) slab_fd: OwnedFd,
    pub(crate) public: &'static Public,
    pub(crate) public_fd: OwnedFd,
    pub(crate) eventfd: OwnedFd,
    pub(crate) tcp: OwnedFd,
}

/// A channel as a client has it.
pub(crate) struct Channel {
    pub(crate) id: u64,
    pub(crate) map: Mapping,
    segment: OwnedFd,
}

impl Channel {
    pub(crate) fn new(id: u64, fds: Vec<OwnedFd>) -> io::Result<Channel> {
        let segment = fds.into_iter().next().ok_or_else(|| error("a channel without a segment"))?;
        let map = Mapping::map(segment.as_raw_fd()).map_err(|e| io::Error::from_raw_os_error(e.0))?;
        Ok(Channel { id, map, segment })
    }

    /// The segment, which stays open.
    pub(crate) fn fd(&self) -> i32 {
        self.segment.as_raw_fd()
    }
}

/// The version that the attacker says it has.
pub(crate) fn version() -> u32 {
    std::env::var("SD_HOSTILE_VERSION").ok().and_then(|text| text.parse().ok()).unwrap_or(VERSION)
}

impl Client {
    pub(crate) fn prepare() -> io::Result<Client> {
        let fault = |e: sd_sys::Errno| io::Error::from_raw_os_error(e.0);
        let (slab_fd, slab) = Slab::create(std::process::id()).map_err(fault)?;
        let (public_fd, public) = sd_shm::public::create(std::process::id()).map_err(fault)?;
        let eventfd = sd_sys::fd::eventfd(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
        let tcp = sd_sys::fd::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        Ok(Client {
            control: Control::connect()?,
            slab,
            slab_fd: own(Ok(slab_fd))?,
            public,
            public_fd: own(Ok(public_fd))?,
            eventfd: own(eventfd)?,
            tcp: own(tcp)?,
        })
    }

    pub(crate) fn register() -> io::Result<Client> {
        let client = Client::prepare()?;
        client.hello(false)?;
        Ok(client)
    }

    pub(crate) fn hello_fds(&self) -> [i32; 4] {
        [&self.slab_fd, &self.public_fd, &self.eventfd, &self.tcp].map(AsRawFd::as_raw_fd)
    }

    pub(crate) fn hello(&self, again: bool) -> io::Result<Answer> {
        let answer = self.control.ask(Request::Hello { version: version(), again }, &self.hello_fds())?;
        match answer.0 {
            Reply::Welcome { .. } => Ok(answer),
            other => Err(error(format!("not welcome: {other:?}"))),
        }
    }

    /// Registers a listener, and shows it to peers as one with an endless backlog.
    pub(crate) fn listen(&self, index: u32, listener: &TcpListener) -> io::Result<Reply> {
        let shown = &self.public.listeners[index as usize];
        shown.backlog.store(4096, Ordering::Relaxed);
        shown.generation.store(1, Ordering::Release);
        let request = Request::Listen { index, generation: 1, backlog: 4096, accepting: true };
        Ok(self.control.ask(request, &[listener.as_raw_fd()])?.0)
    }

    /// Asks for a way to a port of 127.0.0.1. What was sent unasked meanwhile is dropped.
    pub(crate) fn connect(&self, port: u16, want_channel: bool) -> io::Result<(Route, Option<Channel>)> {
        self.connect_to(Ip::v4([127, 0, 0, 1]), port, want_channel)
    }

    pub(crate) fn connect_to(
        &self,
        ip: Ip,
        port: u16,
        want_channel: bool,
    ) -> io::Result<(Route, Option<Channel>)> {
        let request = Request::Connect { ip, port, nth: 0, want_ports: false, want_channel };
        self.control.tell(request, &[])?;
        loop {
            match self.control.receive()? {
                (Reply::Route { route, .. }, fds) => {
                    let channel = match route {
                        Route::Shm { fresh: true, channel, .. } => Some(Channel::new(channel, fds)?),
                        _ => None,
                    };
                    return Ok((route, channel));
                }
                (Reply::Error { code }, _) => return Err(error(format!("no route: {code:?}"))),
                _ => {}
            }
        }
    }

    /// The announcement of a channel by the monitor.
    pub(crate) fn take_channel(&self) -> io::Result<Channel> {
        loop {
            if let (Reply::NewChannel { id, .. }, fds) = self.control.receive()? {
                return Channel::new(id, fds);
            }
        }
    }

    /// Writes an endpoint as for a connection on a slot.
    pub(crate) fn pretend(
        &self,
        index: usize,
        id: u64,
        side: Side,
        slot: u32,
        ports: u32,
    ) -> &'static Endpoint {
        let Some(endpoint) = self.slab.endpoint(index) else { unreachable!("a small index") };
        endpoint.channel_id.store(id, Ordering::Relaxed);
        endpoint.side.store(side as u8, Ordering::Relaxed);
        endpoint.slot.store(slot as u16, Ordering::Relaxed);
        endpoint.generation.store(1, Ordering::Relaxed);
        endpoint.begin(libc::AF_INET);
        endpoint.ports.store(ports, Ordering::Relaxed);
        for end in [sd_shm::slab::End::Local, sd_shm::slab::End::Remote] {
            self.slab.set_address(endpoint, end, Ip::v4([127, 0, 0, 1]).0);
        }
        endpoint.fd.store(5, Ordering::Relaxed);
        endpoint.holders.store(1, Ordering::Relaxed);
        self.slab.header().high.fetch_max(index as u32 + 1, Ordering::AcqRel);
        endpoint.state.store(State::Connected as u8, Ordering::Release);
        endpoint
    }

    /// The monitor has seen everything that was sent before.
    pub(crate) fn settle(&self) -> io::Result<()> {
        self.control.tell(Request::Unlisten { index: 999 }, &[])?;
        while !matches!(self.control.receive()?.0, Reply::Ok | Reply::Error { .. }) {}
        Ok(())
    }
}
