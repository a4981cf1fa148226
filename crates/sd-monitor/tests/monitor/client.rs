//! A hand-made client: what the library would do, step by step.

use crate::server::Server;
use sd_proto::{ErrorCode, Ip, MESSAGE_MAX, Reply, Request, Route, VERSION};
use sd_shm::channel::{Mapping, Side, SlotState};
use sd_shm::directory::Reader;
use sd_shm::slab::{End, Endpoint, Slab, State};
use sd_sys::Errno;
use std::cell::RefCell;
use std::fs::File;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

pub(crate) use sd_monitor::std_fd as own;

/// A control connection, registered or not.
pub(crate) struct Control {
    pub(crate) socket: OwnedFd,
}

impl Control {
    pub(crate) fn connect(path: PathBuf) -> Control {
        let socket = own(sd_sys::msg::connect_unix(path.as_os_str().as_encoded_bytes(), 10_000).unwrap());
        let control = Control { socket };
        control.set_timeout(10);
        control
    }

    fn set_timeout(&self, seconds: i64) {
        let timeout = nix::sys::time::TimeVal::new(seconds, 0);
        nix::sys::socket::setsockopt(&self.socket, nix::sys::socket::sockopt::ReceiveTimeout, &timeout)
            .unwrap();
    }

    pub(crate) fn send_bytes(&self, bytes: &[u8], fds: &[i32]) -> sd_sys::Result<usize> {
        sd_sys::msg::send_with_fds(self.socket.as_raw_fd(), bytes, fds, 0)
    }

    pub(crate) fn tell(&self, request: Request, fds: &[i32]) {
        let mut buf = [0; MESSAGE_MAX];
        self.send_bytes(request.encode(&mut buf), fds).unwrap();
    }

    /// The next message; `None` when the monitor has hung up.
    pub(crate) fn receive(&self) -> Option<(Reply, Vec<OwnedFd>)> {
        self.receive_with(0).unwrap()
    }

    pub(crate) fn receive_with(&self, flags: i32) -> sd_sys::Result<Option<(Reply, Vec<OwnedFd>)>> {
        let mut buf = [0; MESSAGE_MAX];
        let got = match sd_sys::msg::recv_with_fds(self.socket.as_raw_fd(), &mut buf, flags) {
            Ok(got) => got,
            Err(Errno::ECONNRESET) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut fds = Vec::new();
        got.fds.hand_over(|fd| fds.push(own(fd)));
        if got.len == 0 {
            return Ok(None);
        }
        Ok(Some((Reply::decode(&buf[..got.len]).unwrap(), fds)))
    }

    pub(crate) fn ask(&self, request: Request, fds: &[i32]) -> (Reply, Vec<OwnedFd>) {
        self.tell(request, fds);
        self.receive().expect("an answer")
    }

    pub(crate) fn refused(&self, request: Request, fds: &[i32]) -> ErrorCode {
        match self.ask(request, fds).0 {
            Reply::Error { code } => code,
            other => panic!("not refused: {other:?}"),
        }
    }

    pub(crate) fn status(&self) -> serde_json::Value {
        let (reply, fds) = self.ask(Request::Status, &[]);
        assert_eq!((reply, fds.len()), (Reply::Status, 1));
        serde_json::from_reader(File::from(fds.into_iter().next().unwrap())).unwrap()
    }
}

/// A registered process image.
pub(crate) struct Client {
    pub(crate) control: Control,
    pub(crate) slab: Slab,
    pub(crate) slab_fd: OwnedFd,
    pub(crate) public_fd: OwnedFd,
    pub(crate) eventfd: OwnedFd,
    /// Watches it, as processes do.
    watcher: OwnedFd,
    pub(crate) tcp: OwnedFd,
    /// Kept open.
    listeners: RefCell<Vec<TcpListener>>,
}

/// A channel as a client has it.
pub(crate) struct Channel {
    pub(crate) id: u64,
    pub(crate) map: Mapping,
    pub(crate) segment: OwnedFd,
    pub(crate) peer_pid: u32,
}

impl Channel {
    pub(crate) fn new(id: u64, peer_pid: u32, fds: Vec<OwnedFd>) -> Channel {
        let [segment, public, _eventfd] = <[OwnedFd; 3]>::try_from(fds).unwrap();
        let page = sd_shm::public::map_peer(public.as_raw_fd()).unwrap();
        assert_eq!(page.version.load(Ordering::Relaxed), sd_shm::VERSION);
        // SAFETY: not used any more.
        unsafe { sd_shm::public::unmap_peer(page) };
        let map = Mapping::map(segment.as_raw_fd()).unwrap();
        assert_eq!(map.header().id.load(Ordering::Relaxed), id);
        Channel { id, map, segment, peer_pid }
    }

    /// A request at each slot: there is no room for another.
    pub(crate) fn fill(&self) {
        self.map.header().used.store(sd_shm::channel::SLOTS as u32, Ordering::Release);
        for slot in 0..sd_shm::channel::SLOTS {
            self.map.slot(slot).side[Side::A as usize].set_state(1, SlotState::Syn);
        }
    }

    /// A request of side A's at a slot that was never used, for a port of 127.0.0.1.
    pub(crate) fn request(&self, slot: usize, port: u16) {
        self.declare(slot, Side::A, 1, SlotState::Syn);
        self.map.header().used.store(slot as u32 + 1, Ordering::Release);
        let names = self.map.names(slot);
        names.ports.store(u32::from(port), Ordering::Relaxed);
        let words = Ip::v4([127, 0, 0, 1]).halves();
        names.remote.iter().zip(words).for_each(|(word, half)| word.store(half, Ordering::Relaxed));
    }

    pub(crate) fn inode(&self) -> u64 {
        File::from(self.segment.try_clone().unwrap()).metadata().unwrap().ino()
    }

    /// What a side of a slot has declared.
    pub(crate) fn state(&self, slot: usize, side: Side) -> (u32, SlotState, u32) {
        let words = &self.map.slot(slot).side[side as usize];
        let (generation, state) = words.state();
        (generation, state, words.flags.load(Ordering::Acquire))
    }

    pub(crate) fn declare(&self, slot: usize, side: Side, generation: u32, state: SlotState) {
        self.map.slot(slot).side[side as usize].set_state(generation, state);
    }
}

/// An instance that watches an eventfd and has told that it was added.
fn watch(eventfd: i32) -> sd_sys::fd::Owned {
    let watcher = sd_sys::fd::epoll_create().unwrap();
    sd_sys::fd::epoll_ctl(watcher.raw(), libc::EPOLL_CTL_ADD, eventfd, sd_sys::fd::EVENTFD_EDGE, 0).unwrap();
    assert!(has_news(watcher.raw()));
    watcher
}

fn has_news(watcher: i32) -> bool {
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: room for one event.
    let count = unsafe { sd_sys::fd::epoll_pwait(watcher, &mut event, 1, 0, std::ptr::null()) };
    count.unwrap() == 1
}

impl Client {
    pub(crate) fn prepare(server: &Server) -> Client {
        let (slab_fd, slab) = Slab::create(std::process::id()).unwrap();
        let (public_fd, _) = sd_shm::public::create(std::process::id()).unwrap();
        let eventfd = sd_sys::fd::eventfd(libc::EFD_CLOEXEC | libc::EFD_NONBLOCK).unwrap();
        let tcp = sd_sys::fd::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0).unwrap();
        Client {
            control: Control::connect(server.socket()),
            slab,
            slab_fd: own(slab_fd),
            public_fd: own(public_fd),
            watcher: own(watch(eventfd.raw())),
            eventfd: own(eventfd),
            tcp: own(tcp),
            listeners: RefCell::default(),
        }
    }

    pub(crate) fn register(server: &Server) -> Client {
        let client = Client::prepare(server);
        client.hello(false);
        client
    }

    /// Registers a forked child over the socket that its parent made for it.
    pub(crate) fn register_child(server: &Server, socket: OwnedFd) -> Client {
        let client = Client { control: Control { socket }, ..Client::prepare(server) };
        client.hello(false);
        client
    }

    /// After a restart of the monitor.
    pub(crate) fn register_again(&mut self, server: &Server) {
        self.control = Control::connect(server.socket());
        self.hello(true);
    }

    pub(crate) fn hello_fds(&self) -> [i32; 4] {
        [&self.slab_fd, &self.public_fd, &self.eventfd, &self.tcp].map(AsRawFd::as_raw_fd)
    }

    /// Registers; the directory.
    pub(crate) fn hello(&self, again: bool) -> Reader {
        let (reply, fds) = self.control.ask(Request::Hello { version: VERSION, again }, &self.hello_fds());
        assert!(matches!(reply, Reply::Welcome { .. }), "{reply:?}");
        Reader::map(fds[0].as_raw_fd()).unwrap()
    }

    /// Listens on a port of 127.0.0.1, as long as the client is there; the kernel's listener, and the port.
    pub(crate) fn listen(&self, index: u32) -> (TcpListener, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        self.listeners.borrow_mut().push(listener.try_clone().unwrap());
        let port = listener.local_addr().unwrap().port();
        self.listen_with(index, &listener);
        (listener, port)
    }

    pub(crate) fn listen_with(&self, index: u32, listener: &TcpListener) {
        let (reply, _) = self.control.ask(listen(index), &[listener.as_raw_fd()]);
        assert_eq!(reply, Reply::Ok);
    }

    pub(crate) fn connect(&self, port: u16, want_channel: bool) -> (Route, Option<Channel>) {
        let (route, _, fds) = self.connect_full(port, 0, false, want_channel);
        match route {
            Route::Shm { fresh: true, channel, peer_pid, .. } => {
                (route, Some(Channel::new(channel, peer_pid, fds)))
            }
            _ => {
                assert!(fds.is_empty());
                (route, None)
            }
        }
    }

    /// Route, block of ports, descriptors.
    pub(crate) fn connect_full(
        &self,
        port: u16,
        nth: u32,
        want_ports: bool,
        want_channel: bool,
    ) -> (Route, (u16, u16), Vec<OwnedFd>) {
        let ip = Ip::v4([127, 0, 0, 1]);
        let request = Request::Connect { ip, port, nth, want_ports, want_channel };
        let (reply, fds) = self.control.ask(request, &[]);
        let Reply::Route { route, port_first, port_count } = reply else { panic!("{reply:?}") };
        (route, (port_first, port_count), fds)
    }

    /// The announcement of a channel by the monitor.
    pub(crate) fn take_channel(&self) -> Channel {
        match self.control.receive() {
            Some((Reply::NewChannel { id, peer_pid, .. }, fds)) => Channel::new(id, peer_pid, fds),
            other => panic!("{:?}", other.map(|(reply, _)| reply)),
        }
    }

    pub(crate) fn mail(&self) -> u32 {
        self.slab.header().mail.load(Ordering::Acquire)
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.slab.header().route_epoch.load(Ordering::Acquire)
    }

    /// Whether the eventfd was written to since the last time.
    pub(crate) fn was_woken(&self) -> bool {
        has_news(self.watcher.as_raw_fd())
    }

    /// Fills an endpoint as for a connection on a slot; members as bits.
    pub(crate) fn attach(
        &self,
        index: usize,
        id: u64,
        side: Side,
        slot: u32,
        holders: u64,
    ) -> &'static Endpoint {
        attach(&self.slab, index, id, side, slot, holders)
    }
}

pub(crate) fn attach(
    slab: &Slab,
    index: usize,
    id: u64,
    side: Side,
    slot: u32,
    holders: u64,
) -> &'static Endpoint {
    let endpoint = slab.endpoint(index).unwrap();
    endpoint.channel_id.store(id, Ordering::Relaxed);
    endpoint.side.store(side as u8, Ordering::Relaxed);
    endpoint.slot.store(slot as u16, Ordering::Relaxed);
    endpoint.generation.store(1, Ordering::Relaxed);
    endpoint.begin(libc::AF_INET);
    endpoint.ports.store(40000 << 16 | 80, Ordering::Relaxed);
    let here = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];
    slab.set_address(endpoint, End::Local, here);
    slab.set_address(endpoint, End::Remote, here);
    endpoint.fd.store(5, Ordering::Relaxed);
    endpoint.holders.store(holders, Ordering::Relaxed);
    slab.header().high.fetch_max(index as u32 + 1, Ordering::AcqRel);
    endpoint.state.store(State::Connected as u8, Ordering::Release);
    endpoint
}

pub(crate) fn listen(index: u32) -> Request {
    Request::Listen { index, generation: 1, backlog: 128, accepting: true }
}

/// Introduced processes: A, B, B's kernel listener and port, and both ends of their channel.
pub(crate) fn pair(server: &Server) -> (Client, Client, u16, Channel, Channel) {
    let (a, b) = (Client::register(server), Client::register(server));
    let (_, port) = b.listen(0);
    let (_, channel) = a.connect(port, false);
    let at_b = b.take_channel();
    (a, b, port, channel.unwrap(), at_b)
}
