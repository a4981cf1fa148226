//! Locks of the kernel's that a client holds as long as it likes: it is inside a call that has the lock, at a page of its own
//! that does not come. Whoever wants the lock meanwhile waits, whether its call blocks otherwise or not.
//!
//! The page is one of userfaultfd(2), which a process may have that was root's when it began, as here, anybody where
//! `vm.unprivileged_userfaultfd` says so, and anybody else by a file system of its own (FUSE).

use crate::client::{Client, own, std_fd};
use crate::syn::Way;
use sd_proto::{Ip, Request};
use sd_ring::{Effort, RingMem, TxCursor};
use sd_shm::channel::{GEOMETRY, Side, SlotState};
use sd_shm::rings::Rings;
use sd_sys::Errno;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

const PAGE: usize = 4096;

/// An address at which the kernel waits for ever.
#[derive(Clone, Copy)]
struct Page(usize);

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

const UFFDIO_API: libc::Ioctl = 0xc018_aa3f_u32 as libc::Ioctl;
const UFFDIO_REGISTER: libc::Ioctl = 0xc020_aa00_u32 as libc::Ioctl;

/// Two pages, the second of which does not come.
fn page() -> io::Result<(Page, OwnedFd)> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) } as i32;
    let fd = own(if fd < 0 { Err(Errno::EPERM) } else { Ok(sd_sys::fd::Owned::new(fd)) })?;
    let mut api = Api { api: 0xaa, features: 0, ioctls: 0 };
    // SAFETY: fresh memory of nobody's.
    let at = unsafe {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        libc::mmap(std::ptr::null_mut(), PAGE, access, flags, -1, 0)
    };
    let mut register = Register { start: at as u64, len: PAGE as u64, mode: 1, ioctls: 0 };
    // SAFETY: the kernel reads and writes one struct each.
    let done = unsafe {
        libc::ioctl(fd.as_raw_fd(), UFFDIO_API, &mut api) == 0
            && libc::ioctl(fd.as_raw_fd(), UFFDIO_REGISTER, &mut register) == 0
    };
    if done { Ok((Page(at as usize), fd)) } else { Err(io::Error::last_os_error()) }
}

/// | way | lock | who wants it |
/// |---|---|---|
/// | `epoll` | an epoll instance's, in epoll_wait(2) | a look at its /proc/self/fdinfo: is it a pidfd? |
/// | `slab`, `segment` | a file's, in pwrite(2) | lseek(2) to what was used of it |
/// | `fuse` | none: its file system does not answer | close(2) of a file there |
/// | `server:PORT` | the same, of the channel to a server | the server: MADV_REMOVE of madvise(2), when it gives memory back |
/// | `remains:PORT` | the same, and its maker ends | who empties it: fallocate(2) |
/// | `pair` | a socket's, in recvmsg(2) | recvmsg(2) of the other holder of the same end |
pub(crate) fn run(way: &str, user: u32) -> io::Result<()> {
    let mounted = if way == "fuse" { crate::fuse::mount(None, user).map(Some) } else { Ok(None) };
    let (mounted, (page, userfaultfd)) = match (mounted, page()) {
        (Ok(mounted), Ok(page)) => (mounted, page),
        (Err(error), _) | (_, Err(error)) => {
            // In a user namespace, say.
            println!("skipped: {error}");
            return crate::stand();
        }
    };
    // It ends with this process.
    std::mem::forget(mounted);
    crate::become_user(user)?;
    let client = Client::register()?;
    let kept = match way {
        "epoll" => epoll(&client, page)?,
        "slab" => slab(&client, page)?,
        "segment" => segment(&client, page)?,
        "pair" => pair(&client, page)?,
        "fuse" => fuse(&client)?,
        way if way.starts_with("server:") => {
            let port = way["server:".len()..].parse().map_err(io::Error::other)?;
            server(&client, port, page)?
        }
        way if way.starts_with("remains:") => {
            let port = way["remains:".len()..].parse().map_err(io::Error::other)?;
            let made = crate::charge::Made::by_another(port, 4)?;
            write(made.segment.as_raw_fd(), sd_shm::channel::SEGMENT_LEN, page);
            vec![made.segment.try_clone()?.into()]
        }
        _ => return Err(io::Error::other("no such way")),
    };
    std::thread::sleep(std::time::Duration::from_millis(100));
    std::mem::forget((kept, userfaultfd));
    crate::stand()
}

/// A thread that is inside a call for ever; it has begun when this returns, as far as one can know.
fn inside(call: impl FnOnce() + Send + 'static) {
    std::thread::spawn(move || {
        call();
        println!("the page came");
    });
    std::thread::sleep(std::time::Duration::from_millis(100));
}

fn epoll(client: &Client, page: Page) -> io::Result<Vec<OwnedFd>> {
    let epoll = own(sd_sys::fd::epoll_create())?;
    let ready = own(sd_sys::fd::eventfd(0))?;
    sd_sys::fd::eventfd_signal(ready.as_raw_fd());
    let mut event = libc::epoll_event { events: libc::EPOLLOUT as u32, u64: 0 };
    let numbers = (epoll.as_raw_fd(), ready.as_raw_fd());
    // SAFETY: the kernel reads one event.
    unsafe { libc::epoll_ctl(numbers.0, libc::EPOLL_CTL_ADD, numbers.1, &mut event) };
    inside(move || {
        // SAFETY: the page has room for the events, and is nobody's.
        unsafe { libc::epoll_wait(numbers.0, page.0 as *mut libc::epoll_event, 1, -1) };
    });
    let pair = sd_sys::msg::pair_with_credentials().map_err(|e| io::Error::from_raw_os_error(e.0))?;
    let [monitors, childs] = pair.map(std_fd);
    client.control.tell(Request::Fork { member: 1, serial: 1 }, &[monitors.as_raw_fd()])?;
    client.control.tell(Request::Born { serial: 1 }, &[numbers.0])?;
    Ok(vec![epoll, ready, childs])
}

/// A writer whose bytes do not come.
fn write(file: i32, len: usize, page: Page) {
    inside(move || {
        // SAFETY: the kernel reads one page.
        unsafe { libc::pwrite(file, page.0 as *const libc::c_void, PAGE, (len - PAGE) as i64) };
    });
}

fn slab(client: &Client, page: Page) -> io::Result<Vec<OwnedFd>> {
    client.pretend(0, 1, sd_shm::channel::Side::A, 0, 40_000 << 16 | 80);
    write(client.slab_fd.as_raw_fd(), sd_shm::slab::LEN, page);
    client.control.tell(Request::Status, &[])?;
    let to_ip = Ip::v4([127, 0, 0, 1]);
    client.control.tell(Request::Tuple { ip: to_ip, port: 40_000, to_ip, to_port: 80 }, &[])?;
    Ok(vec![])
}

/// Of a channel between two of one's own.
fn segment(client: &Client, page: Page) -> io::Result<Vec<OwnedFd>> {
    let server = Client::register()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    server.listen(0, &listener)?;
    client.connect(listener.local_addr()?.port(), true)?;
    let channel = server.take_channel()?;
    write(channel.fd(), sd_shm::channel::SEGMENT_LEN, page);
    server.control.tell(Request::Stuck { channel: channel.id }, &[])?;
    server.control.tell(Request::Leave { channel: channel.id }, &[])?;
    let kept = vec![server.control.socket.try_clone()?, listener.into()];
    std::mem::forget((server, channel));
    Ok(kept)
}

/// The server's answers are more than a small ring holds, and nobody reads them; then the connection ends.
fn server(client: &Client, port: u16, page: Page) -> io::Result<Vec<OwnedFd>> {
    client.public.sleepers.store(1, Ordering::Release);
    let way = Way::ask(client, port, false)?.ok_or_else(|| io::Error::other("no way"))?;
    way.syn(0, 40_000, port, (way.listener, way.generation));
    way.wake();
    let (map, [own, other]) = (&way.channel.map, &way.channel.map.slot(0).side);
    let (out, back) = (Rings::of(map, 0, Side::A), Rings::of(map, 0, Side::B));
    let mut tx = TxCursor::new(&GEOMETRY);
    while RingMem::load(&back, 1, 0) == 0 {
        let _ = tx.credit(other.consumed.load(Ordering::Acquire));
        if let Some(room) = tx.reserve(&GEOMETRY, &out, 2, Effort::Cached) {
            // SAFETY: the ring has given these two bytes to its sender.
            unsafe { out.at(room.region, room.off).cast::<[u8; 2]>().write(*b"x\n") };
            tx.commit(&out, 2, 0);
            map.events(Side::B).post(0);
            way.wake();
        }
    }
    write(way.channel.fd(), sd_shm::channel::SEGMENT_LEN, page);
    own.flags.fetch_or(sd_shm::channel::FLAG_RESET, Ordering::AcqRel);
    own.set_state(1, SlotState::Closed);
    map.events(Side::B).post(0);
    way.wake();
    std::mem::forget(way);
    Ok(vec![])
}

fn pair(client: &Client, page: Page) -> io::Result<Vec<OwnedFd>> {
    let pair = sd_sys::msg::pair_with_credentials().map_err(|e| io::Error::from_raw_os_error(e.0))?;
    let [monitors, childs] = pair.map(std_fd);
    let number = monitors.as_raw_fd();
    let message = [8u8];
    let _ = sd_sys::fd::write(childs.as_raw_fd(), &message);
    inside(move || {
        // SAFETY: the kernel writes one byte.
        unsafe { libc::recv(number, page.0 as *mut libc::c_void, 1, 0) };
    });
    client.control.tell(Request::Fork { member: 1, serial: 1 }, &[number])?;
    let _ = sd_sys::fd::write(childs.as_raw_fd(), &message);
    Ok(vec![monitors, childs])
}

/// With each request that brings a descriptor, and with one that should not.
fn fuse(client: &Client) -> io::Result<Vec<OwnedFd>> {
    let file = crate::fuse::open()?;
    let number = file.as_raw_fd();
    let pair = Request::Fork { member: 1, serial: 1 };
    let listen = Request::Listen { index: 0, generation: 1, backlog: 1, accepting: true };
    for request in [
        pair,
        Request::Born { serial: 1 },
        Request::Share,
        Request::ThreadWaker { number: 0 },
        Request::Status,
        listen,
    ] {
        client.control.tell(request, &[number])?;
    }
    Ok(vec![file.into()])
}
