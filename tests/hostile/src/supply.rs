//! Descriptors of every kind, most of them not what a request wants.

use crate::client::{Client, own, std_fd};
use sd_shm::channel::SEGMENT_LEN;
use sd_sys::Errno;
use std::fs::File;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};

/// Descriptors by name.
pub(crate) type Supply = Vec<(&'static str, Vec<OwnedFd>)>;

pub(crate) fn supply(client: &Client, victims: &[i32], port: u16) -> io::Result<Supply> {
    let memfd = |name: &std::ffi::CStr, len: usize| own(sd_sys::mem::memfd_sealed(name, len));
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    let accepted = listener.accept()?.0;
    let pair = sd_sys::msg::pair_with_credentials().map_err(|e| io::Error::from_raw_os_error(e.0))?;
    let (read, write) = io::pipe()?;
    let mut all: Supply = vec![
        ("nothing", vec![]),
        ("what is expected", vec![client.slab_fd.try_clone()?]),
        ("a public page", vec![client.public_fd.try_clone()?]),
        ("an eventfd", vec![client.eventfd.try_clone()?]),
        ("a fresh socket", vec![client.tcp.try_clone()?]),
        ("a memfd that is too short", vec![memfd(c"short", 4096)?]),
        ("a memfd as a channel", vec![memfd(c"sd-channel", SEGMENT_LEN)?]),
        ("a memfd as a slab", vec![memfd(c"sd-slab", sd_shm::slab::LEN)?]),
        ("a memfd of a terabyte", vec![memfd(c"huge", 1 << 40)?]),
        ("a connection", vec![stream.into()]),
        ("its other end", vec![accepted.into()]),
        ("a pair of sockets", Vec::from(pair.map(std_fd))),
        ("a pipe", vec![read.into(), write.into()]),
        ("an epoll instance", vec![own(sd_sys::fd::epoll_create())?]),
        ("own memory", vec![File::open("/proc/self/mem")?.into()]),
        ("a directory", vec![File::open("/")?.into()]),
        ("hello's four", hello(client)?),
    ];
    for (name, path) in [("statistics", "/proc/stat"), ("a terminal", "/dev/tty"), ("FUSE", "/dev/fuse")] {
        all.extend(File::open(path).ok().map(|file| (name, vec![file.into()])));
    }
    let mut add = |name, fd: io::Result<OwnedFd>| match fd {
        Ok(fd) => all.push((name, vec![fd])),
        Err(error) => println!("without {name}: {error}"),
    };
    add("a file of one's own file system", crate::fuse::open().map(OwnedFd::from));
    add("a listener of another network", far_listener(port));
    for (name, len) in [("huge pages as a slab", sd_shm::slab::LEN), ("huge pages as a channel", SEGMENT_LEN)]
    {
        add(name, huge_pages(len));
    }
    for victim in victims {
        all.push(("a stranger's pidfd", vec![own(sd_sys::fd::pidfd_open(*victim))?]));
        let status = File::open(format!("/proc/{victim}/status"));
        all.extend(status.ok().map(|file| ("a stranger's status", vec![file.into()])));
    }
    all.push(("a listener", vec![listener.try_clone()?.into()]));
    all.push(("a datagram socket", vec![std::net::UdpSocket::bind("127.0.0.1:0")?.into()]));
    for (name, count) in [("nine", 9), ("seventy", 70), ("as many as can be", 253)] {
        let null = File::open("/dev/null")?;
        let many: io::Result<Vec<OwnedFd>> = (0..count).map(|_| Ok(null.try_clone()?.into())).collect();
        all.push((name, many?));
    }
    Ok(all)
}

fn hello(client: &Client) -> io::Result<Vec<OwnedFd>> {
    [&client.slab_fd, &client.public_fd, &client.eventfd, &client.tcp]
        .map(OwnedFd::try_clone)
        .into_iter()
        .collect()
}

/// Sealed as a slab would be; its pages may turn out not to exist.
fn huge_pages(len: usize) -> io::Result<OwnedFd> {
    // SAFETY: the name ends with a zero byte; no other pointers.
    let fd = unsafe { libc::memfd_create(c"sd-slab".as_ptr(), libc::MFD_HUGETLB | libc::MFD_ALLOW_SEALING) };
    let fd = own(if fd < 0 { Err(Errno::ENOSYS) } else { Ok(sd_sys::fd::Owned::new(fd)) })?;
    // SAFETY: no pointers.
    let is_made = unsafe {
        libc::ftruncate(fd.as_raw_fd(), len as i64) == 0
            && libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) == 0
    };
    if is_made { Ok(fd) } else { Err(io::Error::last_os_error()) }
}

/// On a port of somebody else's, in a network namespace of one's own: made by a child that goes there.
fn far_listener(port: u16) -> io::Result<OwnedFd> {
    let pair = sd_sys::msg::pair_with_credentials().map_err(|e| io::Error::from_raw_os_error(e.0))?;
    let [near, far] = pair.map(std_fd);
    // SAFETY: the child does nothing that another thread's lock could be needed for, but for the allocator's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: no pointers.
        unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET) };
        if let Ok(listener) = TcpListener::bind(("0.0.0.0", port)) {
            let _ = crate::client::send_with_fds(far.as_raw_fd(), b"l", &[listener.as_raw_fd()]);
        }
        // SAFETY: the end of the process.
        unsafe { libc::_exit(0) };
    }
    drop(far);
    let got = sd_sys::msg::recv_with_fds(near.as_raw_fd(), &mut [0], 0)
        .map_err(|e| io::Error::from_raw_os_error(e.0))?;
    // SAFETY: no pointers but a null one.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    let [fd] = got.fds.take::<1>().ok_or(io::ErrorKind::NotFound)?;
    own(Ok(fd))
}
