//! The other names of glibc's calls, as in `aliases`, where they fail, wait, or meet a socket in another state; and the
//! printing functions.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem;
use std::ptr::{null, null_mut};

use crate::setup::*;
use crate::sys::glibc;
use crate::sys::*;
use crate::table::{Subject, solo};
use libc::{iovec, pollfd};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("other_names/no_socket", no_socket),
    solo("other_names/after_the_end", after_the_end),
    solo("other_names/nothing_there", nothing_there),
    solo("other_names/waiting", waiting),
    solo("other_names/life", life),
    solo("other_names/closefrom", close_from),
    solo("other_names/bindresvport", reserved_port),
    solo("other_names/urgent", urgent),
    solo("other_names/printing", printing),
    solo("other_names/printing_fails", printing_fails),
    solo("other_names/streams_refused", streams_refused),
    solo("other_names/streams", streams),
];

unsafe extern "C" {
    fn _IO_fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE;
    fn dprintf(fd: c_int, format: *const c_char, ...) -> c_int;
    fn __dprintf_chk(fd: c_int, flag: c_int, format: *const c_char, ...) -> c_int;
    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut VaList) -> c_int;
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut VaList) -> c_int;
}

/// A va_list of x86-64 whose arguments all lie on the stack.
#[repr(C)]
struct VaList {
    integers_used: u32,
    floats_used: u32,
    on_stack: *const u64,
    registers: *const u64,
}

impl VaList {
    fn of(arguments: &[u64]) -> VaList {
        VaList { integers_used: 48, floats_used: 176, on_stack: arguments.as_ptr(), registers: null() }
    }
}

/// Each function that moves bytes, with at most one of them.
fn show_moves(label: &str, fd: c_int) {
    let mut byte = *b"b";
    let place: *mut c_void = byte.as_mut_ptr().cast();
    let part = iovec { iov_base: place, iov_len: 1 };
    let parts = &raw const part;
    let (mut addr, mut len) = (Addr::empty(), 16);
    let results = [
        ("__write", call!(glibc::__write(fd, place, 1))),
        ("__send", call!(glibc::__send(fd, place, 1, libc::MSG_DONTWAIT))),
        ("pwritev64v2", call!(glibc::pwritev64v2(fd, parts, 1, -1, 0))),
        ("pwritev64v2 with a flag", call!(glibc::pwritev64v2(fd, parts, 1, -1, 1 << 30))),
        ("sendfile64", call!(glibc::sendfile64(fd, temporary_file(b"f"), null_mut(), 1))),
        ("__recv_chk", call!(glibc::__recv_chk(fd, place, 1, 1, libc::MSG_DONTWAIT))),
        ("__recvfrom_chk", {
            let from = addr.ptr_mut();
            call!(glibc::__recvfrom_chk(fd, place, 1, 1, libc::MSG_DONTWAIT, from, &raw mut len))
        }),
        ("preadv64v2", call!(glibc::preadv64v2(fd, parts, 1, -1, libc::RWF_NOWAIT))),
        ("preadv64v2 of none", call!(glibc::preadv64v2(fd, parts, 0, -1, 0))),
        ("preadv64v2 of -1", call!(glibc::preadv64v2(fd, parts, -1, -1, 0))),
        ("sockatmark", call!(glibc::sockatmark(fd))),
    ];
    for (name, result) in results {
        say!("{label}: {name} = {result}");
    }
}

fn no_socket() {
    count_signal(libc::SIGPIPE, libc::SA_RESTART);
    let (reader, writer) = pipe(libc::O_NONBLOCK);
    show_moves("-1", -1);
    show_moves("a read end", reader);
    show_moves("a write end", writer);
    show_moves("fresh", tcp());
    show_moves("listening", listener().0);
    for fd in [-1, reader, tcp(), listener().0] {
        set_nonblocking(fd, true);
        let mut byte = [0];
        show("__read", call!(glibc::__read(fd, byte.as_mut_ptr().cast(), 1)));
        show("__read_chk", call!(glibc::__read_chk(fd, byte.as_mut_ptr().cast(), 1, 1)));
    }
    show_taken(libc::SIGPIPE);
}

fn after_the_end() {
    count_signal(libc::SIGPIPE, libc::SA_RESTART);
    let pair = connected();
    shutdown(pair.client, libc::SHUT_WR);
    await_readable(pair.server);
    show_moves("the peer shut down", pair.server);
    show_moves("shut down", pair.client);
    let pair = connected();
    send(pair.server, b"left", 0);
    await_readable(pair.client);
    close(pair.client);
    await_events(pair.server, libc::POLLHUP);
    show_moves("reset", pair.server);
    let mut byte = [0];
    show("__read", call!(glibc::__read(pair.server, byte.as_mut_ptr().cast(), 1)));
    show("__read_chk", call!(glibc::__read_chk(pair.server, byte.as_mut_ptr().cast(), 1, 1)));
    show_taken(libc::SIGPIPE);
}

fn nothing_there() {
    let pair = connected();
    let mut bytes = [0; 4];
    let place: *mut c_void = bytes.as_mut_ptr().cast();
    for fd in [pair.client, pair.server] {
        set_nonblocking(fd, true);
        show("__read", call!(glibc::__read(fd, place, 4)));
        show("__read_chk", call!(glibc::__read_chk(fd, place, 4, 4)));
        show("__recv_chk", call!(glibc::__recv_chk(fd, place, 4, 4, 0)));
        show("of nothing", call!(glibc::__read_chk(fd, place, 0, 4)));
    }
    crate::bulk::fill(pair.client, 0);
    show_moves("full", pair.client);
}

/// Each waits first, then finds what was sent.
fn waiting() {
    let pair = connected();
    let size = mem::size_of::<pollfd>();
    for with_data in [false, true] {
        if with_data {
            send(pair.client, b"x", 0);
            await_readable(pair.server);
        }
        let mut fds = [pollfd(pair.server, libc::POLLIN)];
        let time = timespec(5);
        show("__poll", call!(glibc::__poll(fds.as_mut_ptr(), 1, 5)));
        show("__poll_chk", call!(glibc::__poll_chk(fds.as_mut_ptr(), 1, 5, size)));
        show("__ppoll_chk", call!(glibc::__ppoll_chk(fds.as_mut_ptr(), 1, &raw const time, null(), size)));
        say!("{}", poll_mask(fds[0].revents));
        let mut time = libc::timeval { tv_sec: 0, tv_usec: 5000 };
        // SAFETY: an fd_set is plain bits, and the number is below FD_SETSIZE.
        let mut set = unsafe {
            let mut set: libc::fd_set = mem::zeroed();
            libc::FD_SET(pair.server, &mut set);
            set
        };
        let none = null_mut();
        show("__select", call!(glibc::__select(pair.server + 1, &raw mut set, none, none, &raw mut time)));
        say!("time left {}", time.tv_usec > 0);
        let ep = epoll();
        epoll_add(ep, pair.server, libc::EPOLLIN, 1);
        show("epoll_pwait", epoll_pwait(ep, 5, &signal_set(&[])));
        show("epoll_pwait of -1", epoll_pwait(-1, 5, &signal_set(&[])));
        show("epoll_pwait of a socket", epoll_pwait(pair.server, 5, &signal_set(&[])));
    }
    show("__poll of nothing", call!(glibc::__poll(null_mut(), 0, 1)));
    show("__poll from nowhere", call!(glibc::__poll(null_mut(), 1, 1)));
    show("__select of -1", call!(glibc::__select(-1, null_mut(), null_mut(), null_mut(), null_mut())));
}

fn life() {
    let client = tcp();
    let nobody = Addr::local(free_port());
    show("__connect to nobody", call!(glibc::__connect(client, nobody.ptr(), nobody.len)));
    show("__connect from nowhere", call!(glibc::__connect(client, null(), 16)));
    show("__connect of -1", call!(glibc::__connect(-1, nobody.ptr(), nobody.len)));
    let pair = connected();
    show("__connect again", call!(glibc::__connect(pair.client, nobody.ptr(), nobody.len)));
    show("__dup2 of -1", call!(glibc::__dup2(-1, pair.client)));
    show("__dup2 to -1", call!(glibc::__dup2(pair.client, -1)));
    say!("__dup2 to itself: {}", call!(glibc::__dup2(pair.client, pair.client)).fd() == pair.client);
    show("__fcntl of -1", call!(glibc::__fcntl(-1, libc::F_GETFD)));
    show("__fcntl of no command", call!(glibc::__fcntl(pair.client, 9999, 0)));
    show("fcntl64 of -1", call!(glibc::fcntl64(-1, libc::F_DUPFD, 0)));
    let copy = show_fd("fcntl64", call!(glibc::fcntl64(pair.client, libc::F_DUPFD_CLOEXEC, 0)));
    say!("{}", descriptor_flags(copy));
    let other = show_fd("__fcntl", call!(glibc::__fcntl(pair.client, libc::F_DUPFD, 100)));
    say!("at least 100: {}", other >= 100);
    for fd in [pair.client, copy, other, other, -1] {
        show("__close", call!(glibc::__close(fd)));
    }
    await_events(pair.server, libc::POLLRDHUP);
    show_recv("server", pair.server, 8, 0);
}

/// closefrom below the sockets, above them, and with a negative number.
fn close_from() {
    let pair = connected();
    for (label, first) in [("above", 1000), ("from the client", pair.client), ("negative", -5)] {
        let child = fork_child(|| {
            let output = dup2(1, 999).fd();
            call!({
                glibc::closefrom(first);
                0
            });
            let [client, server, moved] = [pair.client, pair.server, output].map(descriptor_flags);
            if descriptor_flags(1) == "open" {
                say!("{label}: {client}, {server}, {moved}");
            }
            i32::from(client == "open") + i32::from(server == "open") * 2
        });
        say!("{label}: {}", wait_child(child));
        show_send("parent", pair.client, b"still there", 0);
        show_recv("parent", pair.server, 16, 0);
    }
}

fn reserved_port() {
    let address = |fd: i32| {
        let addr = getsockname(fd).1;
        say!("{} low {}", addr.family(), (512..1024).contains(&addr.port()));
    };
    let fd = tcp();
    // SAFETY: all-zero bytes are a valid sockaddr_in.
    let mut wanted: libc::sockaddr_in = unsafe { mem::zeroed() };
    show("of no family", call!(glibc::bindresvport(fd, &raw mut wanted)));
    wanted.sin_family = libc::AF_INET as libc::sa_family_t;
    wanted.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
    show("of an address", call!(glibc::bindresvport(fd, &raw mut wanted)));
    address(fd);
    say!("its port comes back: {}", u16::from_be(wanted.sin_port) == getsockname(fd).1.port());
    show("of IPv6", call!(glibc::bindresvport(tcp6(), null_mut())));
    show("-1", call!(glibc::bindresvport(-1, null_mut())));
    show("of a connection", call!(glibc::bindresvport(connected().client, null_mut())));
    show("listen", listen(fd, 4));
    let client = dial(&getsockname(fd).1);
    show_send("client", client, b"x", 0);
    let server = accept(fd).fd();
    show_recv("server", server, 8, 0);
}

fn urgent() {
    let pair = connected();
    send(pair.client, b"ab", 0);
    send(pair.client, b"!", libc::MSG_OOB);
    await_events(pair.server, libc::POLLPRI);
    let mut bytes = [0; 8];
    show("sockatmark before", call!(glibc::sockatmark(pair.server)));
    show_bytes("__read", call!(glibc::__read(pair.server, bytes.as_mut_ptr().cast(), 8)), &bytes);
    show("sockatmark at it", call!(glibc::sockatmark(pair.server)));
    let place = bytes.as_mut_ptr().cast();
    show_bytes(
        "__recv_chk MSG_OOB",
        call!(glibc::__recv_chk(pair.server, place, 8, 8, libc::MSG_OOB)),
        &bytes,
    );
    show("__recv_chk again", call!(glibc::__recv_chk(pair.server, place, 8, 8, libc::MSG_OOB)));
    show("__send MSG_OOB", call!(glibc::__send(pair.server, b"?".as_ptr().cast(), 1, libc::MSG_OOB)));
    await_events(pair.client, libc::POLLPRI);
    show("sockatmark of the client", call!(glibc::sockatmark(pair.client)));
}

fn printing() {
    let pair = connected();
    let fd = pair.client;
    let arguments = [7, c"seven".as_ptr() as u64];
    let list = || VaList::of(&arguments);
    show("dprintf", call!(dprintf(fd, c"%d %s\n".as_ptr(), 5, c"five".as_ptr())));
    show("__dprintf_chk", call!(__dprintf_chk(fd, 1, c"%d %s %.1f\n".as_ptr(), 6, c"six".as_ptr(), 6.5)));
    show("vdprintf", call!(vdprintf(fd, c"%d %s\n".as_ptr(), &mut list())));
    show("__vdprintf_chk", call!(__vdprintf_chk(fd, 1, c"%d %s\n".as_ptr(), &mut list())));
    show("of nothing", call!(dprintf(fd, c"".as_ptr())));
    await_bytes(pair.server, 33);
    show_recv("server", pair.server, 64, 0);
    // More than any buffer of the library.
    let long = vec![b'x'; 300_000];
    let mut text = long.clone();
    text.push(0);
    let reader = std::thread::spawn(move || {
        let mut got = 0;
        while got < 300_000 {
            match recv(pair.server, &mut [0; 65_536], 0) {
                result if result.value > 0 => got += result.count(),
                _ => break,
            }
        }
        got
    });
    show("dprintf of much", call!(dprintf(fd, c"%s".as_ptr(), text.as_ptr())));
    say!("arrived {}", reader.join().unwrap_or(0));
}

fn printing_fails() {
    count_signal(libc::SIGPIPE, libc::SA_RESTART);
    let pair = connected();
    shutdown(pair.client, libc::SHUT_WR);
    let full = connected();
    crate::bulk::fill(full.client, 0);
    set_nonblocking(full.client, true);
    let arguments = [1];
    for (label, fd) in [("-1", -1), ("fresh", tcp()), ("shut down", pair.client), ("full", full.client)] {
        let format = c"%d\n".as_ptr();
        let list = || VaList::of(&arguments);
        say!("{label}: dprintf = {}", call!(dprintf(fd, format, 1)));
        say!("{label}: __dprintf_chk = {}", call!(__dprintf_chk(fd, 1, format, 1)));
        say!("{label}: vdprintf = {}", call!(vdprintf(fd, format, &mut list())));
        say!("{label}: __vdprintf_chk = {}", call!(__vdprintf_chk(fd, 1, format, &mut list())));
    }
    show_taken(libc::SIGPIPE);
}

fn stream_of(fd: i32, mode: &CStr, other_name: bool) -> *mut libc::FILE {
    // SAFETY: the mode is a C string.
    unsafe {
        match other_name {
            true => _IO_fdopen(fd, mode.as_ptr()),
            false => libc::fdopen(fd, mode.as_ptr()),
        }
    }
}

fn streams_refused() {
    for other_name in [true, false] {
        let pair = connected();
        for (label, fd, mode) in [("of -1", -1, c"r"), ("of a strange mode", pair.client, c"z")] {
            let stream = stream_of(fd, mode, other_name);
            let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
            say!("{label}: {} {}", stream.is_null(), errno_name(errno));
        }
        show_send("client", pair.client, b"x", 0);
    }
}

fn streams() {
    for other_name in [true, false] {
        let pair = connected();
        let (client, server) =
            (stream_of(pair.client, c"r+", other_name), stream_of(pair.server, c"a+", other_name));
        say!("its number: {}", call!(libc::fileno(client)).fd() == pair.client);
        show("setvbuf", call!(libc::setvbuf(client, null_mut(), libc::_IOLBF, 100)));
        show("fputs", call!(libc::fputs(c"half a line".as_ptr(), client)));
        say!("held back: {}", fionread(pair.server));
        show("fputs", call!(libc::fputs(c", the rest\n".as_ptr(), client)));
        let mut line = [0u8; 64];
        call!(libc::fgets(line.as_mut_ptr().cast(), 64, server));
        say!("{}", text(CStr::from_bytes_until_nul(&line).expect("a C string").to_bytes()));
        show("fseek", call!(libc::fseek(client, 0, libc::SEEK_SET)));
        show("ftell", call!(libc::ftell(server)));
        show("ungetc", call!(libc::ungetc(i32::from(b'u'), server)));
        show("fgetc", call!(libc::fgetc(server)));
        show("fputs", call!(libc::fputs(c"answer\n".as_ptr(), server)));
        show("fclose", call!(libc::fclose(server)));
        call!(libc::fgets(line.as_mut_ptr().cast(), 64, client));
        say!("{}", text(CStr::from_bytes_until_nul(&line).expect("a C string").to_bytes()));
        show("fgetc at the end", call!(libc::fgetc(client)));
        show("feof", call!(libc::feof(client)));
        show("fclose", call!(libc::fclose(client)));
        show("close", close(pair.client));
    }
}
