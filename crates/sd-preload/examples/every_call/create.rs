//! Creators of descriptors: the number is the lowest free one, so it is the same in every run.

use crate::report::{close, show, show_fd};
use libc::{AT_FDCWD, O_CLOEXEC, O_CREAT, O_RDONLY, O_RDWR, c_char, c_int, c_uint, c_void, mode_t};

unsafe extern "C" {
    fn __open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn __open64(path: *const c_char, flags: c_int, ...) -> c_int;
    fn __open_2(path: *const c_char, flags: c_int) -> c_int;
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int;
    fn __openat_2(fd: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn __openat64_2(fd: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn __pipe(fds: *mut c_int) -> c_int;
    fn __dup2(old: c_int, new: c_int) -> c_int;
    fn __fcntl(fd: c_int, cmd: c_int, ...) -> c_int;
    fn fcntl64(fd: c_int, cmd: c_int, ...) -> c_int;
    fn __close(fd: c_int) -> c_int;
    fn closefrom(fd: c_int);
    fn creat64(path: *const c_char, mode: mode_t) -> c_int;
    fn open_by_handle_at(fd: c_int, handle: *mut c_void, flags: c_int) -> c_int;
    fn mkstemp64(template: *mut c_char) -> c_int;
    fn mkostemp64(template: *mut c_char, flags: c_int) -> c_int;
    fn mkstemps64(template: *mut c_char, suffix: c_int) -> c_int;
    fn mkostemps64(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int;
    fn getpt() -> c_int;
    fn pidfd_open(pid: c_int, flags: c_uint) -> c_int;
    fn pidfd_getfd(pidfd: c_int, fd: c_int, flags: c_uint) -> c_int;
    fn fsopen(name: *const c_char, flags: c_uint) -> c_int;
    fn fsmount(fd: c_int, flags: c_uint, attributes: c_uint) -> c_int;
    fn fspick(fd: c_int, path: *const c_char, flags: c_uint) -> c_int;
    fn open_tree(fd: c_int, path: *const c_char, flags: c_uint) -> c_int;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
}

const NULL_FILE: *const c_char = c"/dev/null".as_ptr();

pub(crate) fn run() {
    // SAFETY: all pointers are literals or local variables of the right kind.
    unsafe {
        opens();
        temporaries();
        pairs();
        special();
        mounts();
        duplicates();
        closes();
    }
}

unsafe fn opens() {
    // SAFETY: see `run`.
    unsafe {
        show_fd("open", libc::open(NULL_FILE, O_RDWR | O_CREAT, 0o600));
        show_fd("open", libc::open(c"/nonexistent".as_ptr(), O_RDONLY));
        show_fd("open64", libc::open64(NULL_FILE, O_RDWR));
        show_fd("openat", libc::openat(AT_FDCWD, NULL_FILE, O_RDWR));
        show_fd("openat64", libc::openat64(AT_FDCWD, NULL_FILE, O_RDWR));
        show_fd("__open", __open(NULL_FILE, O_RDWR));
        show_fd("__open64", __open64(NULL_FILE, O_RDWR));
        show_fd("__open_2", __open_2(NULL_FILE, O_RDWR));
        show_fd("__open64_2", __open64_2(NULL_FILE, O_RDWR));
        show_fd("__openat_2", __openat_2(AT_FDCWD, NULL_FILE, O_RDWR));
        show_fd("__openat64_2", __openat64_2(AT_FDCWD, NULL_FILE, O_RDWR));
        show_fd("creat", libc::creat(NULL_FILE, 0o600));
        show_fd("creat64", creat64(NULL_FILE, 0o600));
        show_fd("open_by_handle_at", open_by_handle_at(-1, [0u64; 16].as_mut_ptr().cast(), O_RDONLY));
        show_fd("shm_open", libc::shm_open(c"/sd-every-call".as_ptr(), O_RDWR | O_CREAT, 0o600));
        libc::shm_unlink(c"/sd-every-call".as_ptr());
        show_fd("memfd_create", libc::memfd_create(c"x".as_ptr(), 0));
    }
}

unsafe fn temporaries() {
    let temporary = |name: &str, make: &dyn Fn(*mut c_char) -> c_int| {
        let mut template = *b"/tmp/sd-every-call.XXXXXX.c\0";
        if name.ends_with("temp") || name.ends_with("temp64") {
            template[25] = 0;
        }
        show_fd(name, make(template.as_mut_ptr().cast()));
        // SAFETY: a C string.
        unsafe { libc::unlink(template.as_ptr().cast()) };
    };
    // SAFETY: see `run`.
    unsafe {
        temporary("mkstemp", &|t| libc::mkstemp(t));
        temporary("mkstemp64", &|t| mkstemp64(t));
        temporary("mkostemp", &|t| libc::mkostemp(t, O_CLOEXEC));
        temporary("mkostemp64", &|t| mkostemp64(t, O_CLOEXEC));
        temporary("mkstemps", &|t| libc::mkstemps(t, 2));
        temporary("mkstemps64", &|t| mkstemps64(t, 2));
        temporary("mkostemps", &|t| libc::mkostemps(t, 2, O_CLOEXEC));
        temporary("mkostemps64", &|t| mkostemps64(t, 2, O_CLOEXEC));
        show_fd("mkstemp", libc::mkstemp([b'x' as c_char, 0].as_mut_ptr()));
    }
}

unsafe fn pairs() {
    let mut fds = [-1; 2];
    let mut pair = |name: &str, make: &dyn Fn(*mut c_int) -> c_int| {
        show(name, make(fds.as_mut_ptr()));
        fds.into_iter().for_each(|fd| show_fd(name, fd));
        fds = [-1; 2];
    };
    // SAFETY: see `run`.
    unsafe {
        pair("pipe", &|fds| libc::pipe(fds));
        pair("__pipe", &|fds| __pipe(fds));
        pair("pipe2", &|fds| libc::pipe2(fds, O_CLOEXEC));
        pair("socketpair", &|fds| libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, fds));
        pair("openpty", &|fds| {
            libc::openpty(fds, fds.add(1), std::ptr::null_mut(), std::ptr::null(), std::ptr::null())
        });
    }
}

unsafe fn special() {
    // SAFETY: see `run`.
    unsafe {
        let mut mask = std::mem::zeroed();
        libc::sigemptyset(&mut mask);
        show_fd("eventfd", libc::eventfd(1, O_CLOEXEC));
        let fd = show("signalfd", libc::signalfd(-1, &mask, 0));
        show("signalfd", libc::signalfd(fd, &mask, 0));
        close(fd);
        show_fd("timerfd_create", libc::timerfd_create(libc::CLOCK_MONOTONIC, 0));
        show_fd("inotify_init", libc::inotify_init());
        show_fd("inotify_init1", libc::inotify_init1(O_CLOEXEC));
        show_fd("fanotify_init", libc::fanotify_init(0, 0));
        show_fd("epoll_create", libc::epoll_create(1));
        show_fd("epoll_create", libc::epoll_create(0));
        show_fd("epoll_create1", libc::epoll_create1(O_CLOEXEC));
        show_fd("epoll_create1", libc::epoll_create1(-1));
        show_fd("posix_openpt", libc::posix_openpt(O_RDWR));
        show_fd("getpt", getpt());
        let fd = show("pidfd_open", pidfd_open(libc::getpid(), 0));
        show_fd("pidfd_getfd", pidfd_getfd(fd, 0, 0));
        close(fd);
    }
}

unsafe fn mounts() {
    // SAFETY: see `run`.
    unsafe {
        show_fd("fsopen", fsopen(c"tmpfs".as_ptr(), 0));
        show_fd("fsmount", fsmount(-1, 0, 0));
        show_fd("fspick", fspick(AT_FDCWD, c"/nonexistent".as_ptr(), 0));
        show_fd("open_tree", open_tree(AT_FDCWD, c"/".as_ptr(), 0));
    }
}

unsafe fn duplicates() {
    // SAFETY: see `run`.
    unsafe {
        show_fd("dup", libc::dup(0));
        show_fd("dup", libc::dup(-1));
        show_fd("dup2", libc::dup2(0, 20));
        show_fd("__dup2", __dup2(0, 21));
        show_fd("dup3", libc::dup3(0, 22, O_CLOEXEC));
        show_fd("dup3", libc::dup3(0, 0, 0));
        show_fd("fcntl", libc::fcntl(0, libc::F_DUPFD, 0));
        show_fd("fcntl", libc::fcntl(0, libc::F_DUPFD_CLOEXEC, 30));
        show("fcntl", libc::fcntl(2, libc::F_GETFD));
        show("fcntl", libc::fcntl(-1, libc::F_GETFL));
        show("__fcntl", __fcntl(0, libc::F_GETFD));
        show("fcntl64", fcntl64(0, libc::F_GETFD));
    }
}

unsafe fn closes() {
    // SAFETY: see `run`.
    unsafe {
        show("close", libc::close(libc::dup2(0, 40)));
        show("close", libc::close(40));
        show("__close", __close(libc::dup2(0, 40)));
        libc::dup2(0, 40);
        show("close_range", close_range(40, 50, 0));
        show("fcntl", libc::fcntl(40, libc::F_GETFD));
        libc::dup2(0, 40);
        closefrom(40);
        println!("closefrom: done");
        show("fcntl", libc::fcntl(40, libc::F_GETFD));
    }
}
