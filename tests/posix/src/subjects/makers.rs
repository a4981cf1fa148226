//! Every function of libc that makes a descriptor, beside sockets: which number it takes, and what is behind that.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::{null, null_mut};

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("makers/lowest", lowest),
    solo("makers/number_of_a_closed_socket", number_of_a_closed_socket),
    solo("makers/at_the_limit", at_the_limit),
    solo("makers/in_epoll_of_the_old", in_epoll_of_the_old),
    solo("makers/pairs", pairs),
    solo("makers/refused", refused),
    solo("makers/signalfd_again", signalfd_again),
    solo("makers/of_another_process", of_another_process),
];

unsafe extern "C" {
    fn __open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn __open64(path: *const c_char, flags: c_int, ...) -> c_int;
    fn __open_2(path: *const c_char, flags: c_int) -> c_int;
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int;
    fn __openat_2(fd: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn __openat64_2(fd: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn __pipe(fds: *mut c_int) -> c_int;
    fn creat64(path: *const c_char, mode: libc::mode_t) -> c_int;
    fn open_by_handle_at(fd: c_int, handle: *mut c_void, flags: c_int) -> c_int;
    fn name_to_handle_at(
        fd: c_int,
        path: *const c_char,
        handle: *mut c_void,
        mount: *mut c_int,
        flags: c_int,
    ) -> c_int;
    fn mkstemp64(template: *mut c_char) -> c_int;
    fn mkostemp64(template: *mut c_char, flags: c_int) -> c_int;
    fn mkstemps64(template: *mut c_char, suffix: c_int) -> c_int;
    fn mkostemps64(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int;
    fn getpt() -> c_int;
    fn pidfd_open(pid: c_int, flags: c_uint) -> c_int;
    fn pidfd_getfd(pidfd: c_int, fd: c_int, flags: c_uint) -> c_int;
    fn fsopen(name: *const c_char, flags: c_uint) -> c_int;
    fn fsconfig(fd: c_int, command: c_uint, key: *const c_char, value: *const c_void, aux: c_int) -> c_int;
    fn fsmount(fd: c_int, flags: c_uint, attributes: c_uint) -> c_int;
    fn fspick(fd: c_int, path: *const c_char, flags: c_uint) -> c_int;
    fn open_tree(fd: c_int, path: *const c_char, flags: c_uint) -> c_int;
}

const NULL_FILE: *const c_char = c"/dev/null".as_ptr();
const HERE: c_int = libc::AT_FDCWD;
const READ_WRITE: c_int = libc::O_RDWR;

type Maker = (&'static str, fn() -> Ret);

const MAKERS: &[Maker] = &[
    ("open", || call!(libc::open(NULL_FILE, READ_WRITE))),
    ("open64", || call!(libc::open64(NULL_FILE, READ_WRITE))),
    ("openat", || call!(libc::openat(HERE, NULL_FILE, READ_WRITE))),
    ("openat64", || call!(libc::openat64(HERE, NULL_FILE, READ_WRITE))),
    ("__open", || call!(__open(NULL_FILE, READ_WRITE))),
    ("__open64", || call!(__open64(NULL_FILE, READ_WRITE))),
    ("__open_2", || call!(__open_2(NULL_FILE, READ_WRITE))),
    ("__open64_2", || call!(__open64_2(NULL_FILE, READ_WRITE))),
    ("__openat_2", || call!(__openat_2(HERE, NULL_FILE, READ_WRITE))),
    ("__openat64_2", || call!(__openat64_2(HERE, NULL_FILE, READ_WRITE))),
    ("creat", || call!(libc::creat(NULL_FILE, 0o600))),
    ("creat64", || call!(creat64(NULL_FILE, 0o600))),
    ("open_by_handle_at", by_handle),
    ("mkstemp", || temporary(0, |name| call!(libc::mkstemp(name)))),
    ("mkstemp64", || temporary(0, |name| call!(mkstemp64(name)))),
    ("mkostemp", || temporary(0, |name| call!(libc::mkostemp(name, libc::O_APPEND)))),
    ("mkostemp64", || temporary(0, |name| call!(mkostemp64(name, libc::O_APPEND)))),
    ("mkstemps", || temporary(2, |name| call!(libc::mkstemps(name, 2)))),
    ("mkstemps64", || temporary(2, |name| call!(mkstemps64(name, 2)))),
    ("mkostemps", || temporary(2, |name| call!(libc::mkostemps(name, 2, libc::O_APPEND)))),
    ("mkostemps64", || temporary(2, |name| call!(mkostemps64(name, 2, libc::O_APPEND)))),
    ("shm_open", shared_memory),
    ("memfd_create", || call!(libc::memfd_create(c"maker".as_ptr(), 0))),
    ("eventfd", || call!(libc::eventfd(0, 0))),
    ("signalfd", || signal_descriptor(-1)),
    ("timerfd_create", || call!(libc::timerfd_create(libc::CLOCK_MONOTONIC, 0))),
    ("inotify_init", || call!(libc::inotify_init())),
    ("inotify_init1", || call!(libc::inotify_init1(0))),
    ("fanotify_init", || call!(libc::fanotify_init(0, 0))),
    ("epoll_create", || call!(libc::epoll_create(1))),
    ("epoll_create1", || call!(libc::epoll_create1(0))),
    ("posix_openpt", || call!(libc::posix_openpt(READ_WRITE | libc::O_NOCTTY))),
    ("getpt", || call!(getpt())),
    ("pidfd_open", || call!(pidfd_open(libc::getpid(), 0))),
    ("pidfd_getfd", || own_descriptor(1)),
    ("fsopen", || call!(fsopen(c"tmpfs".as_ptr(), 0))),
    ("fsmount", file_system),
    ("fspick", || call!(fspick(HERE, c"/".as_ptr(), 0))),
    ("open_tree", || call!(open_tree(HERE, c"/".as_ptr(), 0))),
    ("dup", || call!(libc::dup(1))),
    ("fcntl", || call!(libc::fcntl(1, libc::F_DUPFD, 0))),
    ("udp", || socket(libc::AF_INET, libc::SOCK_DGRAM, 0)),
];

fn temporary(suffix_len: usize, make: impl FnOnce(*mut c_char) -> Ret) -> Ret {
    let mut name = *b"/tmp/sd-posix.XXXXXX.c\0";
    name[22 - 2 + suffix_len] = 0;
    let made = make(name.as_mut_ptr().cast());
    call!(libc::unlink(name.as_ptr().cast()));
    made
}

fn shared_memory() -> Ret {
    let name = std::ffi::CString::new(format!("/sd-posix-{}", getpid())).expect("no NUL");
    let made = call!(libc::shm_open(name.as_ptr(), READ_WRITE | libc::O_CREAT, 0o600));
    call!(libc::shm_unlink(name.as_ptr()));
    made
}

fn signal_descriptor(fd: c_int) -> Ret {
    let mask = signal_set(&[libc::SIGUSR2]);
    call!(libc::signalfd(fd, &raw const mask, 0))
}

/// What a number of this process stands for, through a pidfd.
fn own_descriptor(fd: c_int) -> Ret {
    through(call!(pidfd_open(libc::getpid(), 0)), |process| call!(pidfd_getfd(process, fd, 0)))
}

/// A file by its handle: a header of length and kind, then up to 128 bytes.
fn by_handle() -> Ret {
    let mut handle = [0u32; 34];
    handle[0] = 128;
    let place = handle.as_mut_ptr().cast();
    let mut mount = 0;
    let found = call!(name_to_handle_at(HERE, c"/tmp".as_ptr(), place, &raw mut mount, 0));
    if !found.ok() {
        return found;
    }
    let folder = call!(libc::open(c"/tmp".as_ptr(), libc::O_RDONLY));
    through(folder, |folder| call!(open_by_handle_at(folder, place, libc::O_RDONLY)))
}

fn file_system() -> Ret {
    through(call!(fsopen(c"tmpfs".as_ptr(), 0)), |context| {
        call!(fsconfig(context, 6, null(), null(), 0));
        call!(fsmount(context, 0, 0))
    })
}

/// Makes a descriptor by way of another, which is closed; the result has the lowest number again.
fn through(other: Ret, make: impl FnOnce(c_int) -> Ret) -> Ret {
    if !other.ok() {
        return other;
    }
    let made = make(other.fd());
    close(other.fd());
    if !made.ok() {
        return made;
    }
    let lowest = dup(made.fd());
    close(made.fd());
    lowest
}

/// Each maker fills the gap that a closed socket of the lowest number leaves.
fn lowest() {
    let (gap, next) = (tcp(), connected());
    close(gap);
    for (name, make) in MAKERS {
        let made = make();
        match made.ok() {
            true => say!("{name}: lowest {}, {}", made.fd() == gap, descriptor_flags(gap)),
            false => say!("{name} = {made}"),
        }
        close(made.fd());
    }
    show_send("beside them", next.client, b"untouched", 0);
    show_recv("server", next.server, 16, 0);
}

/// A number that was a connection's is nothing but what was made last.
fn number_of_a_closed_socket() {
    for (name, make) in MAKERS {
        let (pair, plug) = (connected(), dup(1).fd());
        let number = pair.client;
        send(pair.client, b"before", 0);
        close(pair.client);
        let made = make();
        let same = made.fd() == number;
        let sent = send(number, b"x", libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        let (result, _) = get_int(number, libc::SOL_SOCKET, libc::SO_TYPE);
        say!("{name}: same {same}, {}, send {sent}, SO_TYPE {result}", file_type(number));
        show_recv("  server", pair.server, 8, 0);
        show_recv("  server", pair.server, 8, 0);
        close_all(&[made.fd(), pair.server, plug]);
        show("  closed", close(number));
    }
}

fn at_the_limit() {
    let pair = connected();
    let old = limit_descriptors(lowest_free() as u64);
    // Of what only root may, others hear that there is no number first.
    let of_root = ["fanotify_init", "fsopen", "fsmount", "fspick"];
    let is_root = is_root();
    for (name, make) in MAKERS.iter().filter(|(name, _)| is_root || !of_root.contains(name)) {
        show(name, make());
    }
    show("__pipe", call!(__pipe([0; 2].as_mut_ptr())));
    show("openpty", open_terminal(&mut [0; 2]));
    limit_descriptors(old);
    show_send("client", pair.client, b"at the limit", 0);
    show_recv("server", pair.server, 16, 0);
}

/// A socket leaves its epoll instance when it is closed; what takes its number is not in it.
fn in_epoll_of_the_old() {
    let ep = epoll();
    for (name, make) in MAKERS {
        let (pair, plug) = (connected(), dup(1).fd());
        epoll_add(ep, pair.client, libc::EPOLLIN | libc::EPOLLOUT, 1);
        close(pair.client);
        let made = make();
        let (_, events) = epoll_wait(ep, 4, 0);
        let gone = epoll_ctl(ep, libc::EPOLL_CTL_DEL, pair.client, 0, 0);
        say!("{name}: {} events, DEL {gone}", events.len());
        close_all(&[made.fd(), pair.server, plug]);
    }
}

fn open_terminal(fds: &mut [c_int; 2]) -> Ret {
    let (main, terminal) = fds.split_at_mut(1);
    call!(libc::openpty(main.as_mut_ptr(), terminal.as_mut_ptr(), null_mut(), null(), null()))
}

fn pairs() {
    let (first, middle, second) = (tcp(), tcp(), connected());
    close(first);
    type Make = fn(&mut [c_int; 2]) -> Ret;
    let makers: [(&str, Make); 5] = [
        ("pipe", |fds| call!(libc::pipe(fds.as_mut_ptr()))),
        ("__pipe", |fds| call!(__pipe(fds.as_mut_ptr()))),
        ("pipe2", |fds| call!(libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC))),
        ("socketpair", |fds| call!(libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, fds.as_mut_ptr()))),
        ("openpty", open_terminal),
    ];
    for (name, make) in makers {
        let mut fds = [-1; 2];
        let result = make(&mut fds);
        let is_after = fds[1] > second.server;
        say!(
            "{name} = {result}, the gap {}, then behind {is_after}, {}",
            fds[0] == first,
            descriptor_flags(fds[1])
        );
        close_all(&fds);
    }
    close(second.server);
    say!("{} and {}", descriptor_flags(middle), descriptor_flags(second.client));
    show("pipe to nowhere", call!(libc::pipe(null_mut())));
    show("__pipe to nowhere", call!(__pipe(null_mut())));
    show("pipe2 with odd flags", call!(libc::pipe2([0; 2].as_mut_ptr(), 0x7000)));
    say!("nothing was made: {}", lowest_free() == first);
}

/// A maker that fails leaves the lowest number free.
fn refused() {
    let gap = tcp();
    let pair = connected();
    close(gap);
    let nothing = c"/nonexistent/file".as_ptr();
    let mut template = *b"/tmp/sd-posix\0";
    let name: *mut c_char = template.as_mut_ptr().cast();
    let results = [
        ("open", call!(libc::open(nothing, READ_WRITE))),
        ("open64", call!(libc::open64(nothing, READ_WRITE))),
        ("openat of a socket", call!(libc::openat(pair.client, c"x".as_ptr(), READ_WRITE))),
        ("openat64 of a socket", call!(libc::openat64(pair.client, c"x".as_ptr(), READ_WRITE))),
        ("__openat_2 of nothing", call!(__openat_2(-1, c"x".as_ptr(), READ_WRITE))),
        ("creat", call!(libc::creat(nothing, 0))),
        (
            "open_by_handle_at a socket",
            call!(open_by_handle_at(pair.client, [0u64; 20].as_mut_ptr().cast(), 0)),
        ),
        ("mkstemp", call!(libc::mkstemp(name))),
        ("mkstemps64", call!(mkstemps64(name, 99))),
        ("shm_open", call!(libc::shm_open(c"/a/b".as_ptr(), READ_WRITE, 0))),
        ("memfd_create", call!(libc::memfd_create(c"x".as_ptr(), 0x4000_0000))),
        ("eventfd", call!(libc::eventfd(0, 3))),
        ("signalfd of a socket", signal_descriptor(pair.client)),
        ("timerfd_create", call!(libc::timerfd_create(99, 0))),
        ("inotify_init1", call!(libc::inotify_init1(1))),
        ("fanotify_init", call!(libc::fanotify_init(0xffff, 0))),
        ("epoll_create", call!(libc::epoll_create(0))),
        ("epoll_create1", call!(libc::epoll_create1(-1))),
        ("posix_openpt", call!(libc::posix_openpt(-1))),
        ("pidfd_open", call!(pidfd_open(-1, 0))),
        ("pidfd_getfd of a socket", call!(pidfd_getfd(pair.client, 0, 0))),
        ("fsopen", call!(fsopen(c"nothing".as_ptr(), 0))),
        ("fsmount of a socket", call!(fsmount(pair.client, 0, 0))),
        ("fspick", call!(fspick(HERE, nothing, 0))),
        ("open_tree of a socket", call!(open_tree(pair.client, c"x".as_ptr(), 0))),
    ];
    for (name, result) in results {
        show(name, result);
    }
    say!("the gap is free: {}", lowest_free() == gap);
    show_send("client", pair.client, b"untouched", 0);
    show_recv("server", pair.server, 16, 0);
}

/// signalfd with a number changes that one, and makes none.
fn signalfd_again() {
    let pair = connected();
    let fd = signal_descriptor(-1).fd();
    say!("the same: {}", signal_descriptor(fd).fd() == fd);
    block_signal(libc::SIGUSR2, true);
    kill(getpid(), libc::SIGUSR2);
    let ep = epoll();
    epoll_add(ep, fd, libc::EPOLLIN, 1);
    epoll_add(ep, pair.client, libc::EPOLLIN, 2);
    send(pair.server, b"both", 0);
    await_readable(pair.client);
    show_epoll("a signal and data", ep);
    let mut told = [0; 128];
    show("read", read(fd, &mut told));
    say!("signal {}", signal_name(i32::from(told[0])));
    show("of a closed number", {
        close(fd);
        signal_descriptor(fd)
    });
}

/// What a child made, by its number there: files and pipes.
fn of_another_process() {
    let pair = connected();
    let (read_end, write_end) = pipe(0);
    let (go, done) = pipe(0);
    let child = fork_child(|| {
        let file = call!(creat64(c"/dev/null".as_ptr(), 0o600)).fd();
        write(write_end, &file.to_ne_bytes());
        read(go, &mut [0]);
        0
    });
    let mut number = [0; 4];
    read(read_end, &mut number);
    let process = show_fd("pidfd_open", call!(pidfd_open(child, 0)));
    let taken = show_fd("pidfd_getfd", call!(pidfd_getfd(process, i32::from_ne_bytes(number), 0)));
    say!("{} {}", file_type(taken), status_flags(taken));
    show("of a number that is none", call!(pidfd_getfd(process, 999, 0)));
    show("with flags", call!(pidfd_getfd(process, 0, 1)));
    show_poll_for("alive", process, libc::POLLIN, 0);
    write(done, b"x");
    show_poll_for("dead", process, libc::POLLIN, 2000);
    say!("child: {}", wait_child(child));
    show("of the dead", call!(pidfd_getfd(process, 0, 0)));
    show_send("client", pair.client, b"untouched", 0);
    show_recv("server", pair.server, 16, 0);
}
