//! The table: every libc function that we intercept, once.
//!
//! A row is `name | other names (arguments) -> result { system call; action }`.
//!
//! **System call**: what the function is before our constructor has found the real one; with its own argument list
//! where it differs from the function's. `lazy` where no system call does the same: such functions look themselves up
//! at once (none of them is called by the allocator or the dynamic linker, so that cannot recurse). `old` before a
//! system call that only older architectures have: elsewhere it is `lazy`. Where there is one it is what libc calls, and what a
//! seccomp filter of the program's expects.
//!
//! **Action**, where "the real one" is the next library's function with the same arguments:
//!
//! | form | meaning |
//! |---|---|
//! | `ours(fd, ...) call` | ask `call` if a descriptor may be ours; if not, or if it answers Kernel, the real one |
//! | `ours(fd; condition) call` | also if the condition holds; if not, `f` of a `then` has nothing to do |
//! | `any call` | ask `call` whatever the arguments are |
//! | `..., then f` | pass the real one's result through `f` |
//! | `first f` | `f`, then the real one |
//! | `if (condition) call` | `call`, which is another hook; the real one if the condition does not hold |
//! | `does call` | `call` decides everything |
//!
//! Functions of C with `...` stand here with the one more argument that they look at: on x86-64 and aarch64 it is
//! passed like any third argument, and garbage in its register goes no further than it would have gone anyway.

use crate::body::{
    clone, confine, create, exec, fortify, handlers, limits, names, network, privileges, process, raw, ready,
    rights, shell, spawn, stdio, vector,
};
use core::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void};
use core::ptr::{null, null_mut};
use libc::{
    FILE, epoll_event, fd_set, iovec, mmsghdr, mode_t, msghdr, nfds_t, off_t, pid_t, pollfd,
    posix_spawn_file_actions_t, posix_spawnattr_t, pthread_t, rlimit, sigset_t, size_t, sockaddr,
    sockaddr_in, socklen_t, ssize_t, termios, timespec, timeval, winsize,
};
use sd_socket::{Outcome, calls};

/// va_list as a function argument: a pointer to where the caller keeps it, on x86-64 and aarch64.
pub(crate) type VaList = *mut c_void;
type Argv = *const *const c_char;
type Path = *const c_char;

hooks! {
    // Data. The order of rows is that of the slots in memory, so these share cache lines.
    read | __read (fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t
        { SYS_read; ours(fd; false) calls::read(fd, buf, len), then |done| calls::moved(fd, done) }
    write | __write (fd: c_int, buf: *const c_void, len: size_t) -> ssize_t
        { SYS_write; ours(fd; false) calls::write(fd, buf, len), then |done| calls::moved(fd, done) }
    recv (fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t
        { SYS_recvfrom(fd, buf, len, flags, 0, 0); ours(fd; false) calls::recv(fd, buf, len, flags), then |done| calls::moved(fd, done) }
    send | __send (fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t
        { SYS_sendto(fd, buf, len, flags, 0, 0); ours(fd; false) calls::send(fd, buf, len, flags), then |done| calls::moved(fd, done) }
    readv (fd: c_int, iov: *const iovec, count: c_int) -> ssize_t
        { SYS_readv; ours(fd; false) calls::readv(fd, iov, count), then |done| calls::moved(fd, done) }
    writev (fd: c_int, iov: *const iovec, count: c_int) -> ssize_t
        { SYS_writev; ours(fd; false) calls::writev(fd, iov, count), then |done| calls::moved(fd, done) }
    recvmsg (fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t
        { SYS_recvmsg; ours(fd) calls::recvmsg(fd, msg, flags), then |len| rights::message(msg, calls::moved(fd, len), flags) }
    sendmsg (fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t
        { SYS_sendmsg; ours(fd; rights::has_control(msg)) calls::sendmsg(fd, msg, flags), then |done| calls::moved(fd, done) }
    recvfrom (fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, addr: *mut sockaddr, addr_len: *mut socklen_t)
        -> ssize_t { SYS_recvfrom; ours(fd; false) calls::recvfrom(fd, buf, len, flags, addr, addr_len), then |done| calls::moved(fd, done) }
    sendto (fd: c_int, buf: *const c_void, len: size_t, flags: c_int, addr: *const sockaddr, addr_len: socklen_t)
        -> ssize_t { SYS_sendto; ours(fd; false) calls::sendto(fd, buf, len, flags, addr, addr_len), then |done| calls::moved(fd, done) }
    recvmmsg (fd: c_int, msgs: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int
        { SYS_recvmmsg; ours(fd) calls::recvmmsg(fd, msgs, count, flags, timeout),
          then |n| rights::messages(msgs, calls::moved(fd, n), flags) }
    sendmmsg (fd: c_int, msgs: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int
        { SYS_sendmmsg; ours(fd; false) calls::sendmmsg(fd, msgs, count, flags), then |done| calls::moved(fd, done) }
    preadv2 | preadv64v2 (fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t
        { SYS_preadv2(fd, iov, count, offset, 0, flags); ours(fd; false) vector::preadv2(fd, iov, count, offset, flags),
          then |done| calls::moved(fd, done) }
    pwritev2 | pwritev64v2 (fd: c_int, iov: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t
        { SYS_pwritev2(fd, iov, count, offset, 0, flags); ours(fd; false) vector::pwritev2(fd, iov, count, offset, flags),
          then |done| calls::moved(fd, done) }
    sendfile | sendfile64 (out_fd: c_int, in_fd: c_int, offset: *mut off_t, count: size_t) -> ssize_t
        { SYS_sendfile; ours(out_fd, in_fd; false) calls::sendfile(out_fd, in_fd, offset, count),
          then |done| calls::moved(out_fd, done) }
    splice (fd_in: c_int, off_in: *mut off_t, fd_out: c_int, off_out: *mut off_t, len: size_t, flags: c_uint) -> ssize_t
        { SYS_splice; ours(fd_in, fd_out) calls::splice(fd_in, off_in, fd_out, off_out, len, flags) }

    // Waiting. poll and select ask always: their descriptors are in memory.
    epoll_wait (epfd: c_int, events: *mut epoll_event, max: c_int, timeout_ms: c_int) -> c_int
        { old SYS_epoll_wait; ours(epfd) calls::epoll_wait(epfd, events, max, ready::of_ms(timeout_ms), null()) }
    epoll_pwait (epfd: c_int, events: *mut epoll_event, max: c_int, timeout_ms: c_int, mask: *const sigset_t) -> c_int
        { SYS_epoll_pwait(epfd, events, max, timeout_ms, mask, 8);
          ours(epfd) calls::epoll_wait(epfd, events, max, ready::of_ms(timeout_ms), mask) }
    epoll_pwait2 (epfd: c_int, events: *mut epoll_event, max: c_int, timeout: *const timespec, mask: *const sigset_t)
        -> c_int { SYS_epoll_pwait2(epfd, events, max, timeout, mask, 8);
          ours(epfd) ready::epoll_pwait2(epfd, events, max, timeout, mask) }
    epoll_ctl (epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int
        { SYS_epoll_ctl; ours(epfd, fd; false) calls::epoll_ctl(epfd, op, fd, event), then |done| calls::registered(fd, done) }
    poll | __poll (fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int
        { old SYS_poll; any calls::poll(fds, count, ready::of_ms(timeout_ms), null()), then calls::polled }
    ppoll (fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int
        { lazy; any ready::ppoll(fds, count, timeout, mask), then calls::polled }
    select | __select (nfds: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval)
        -> c_int { old SYS_select; any ready::select(nfds, read, write, except, timeout) }
    pselect (nfds: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec,
        mask: *const sigset_t) -> c_int { lazy; any ready::pselect(nfds, read, write, except, timeout, mask) }

    // Fortified variants: a length beyond the buffer is the real one's to report (it aborts the program).
    __read_chk (fd: c_int, buf: *mut c_void, len: size_t, buf_len: size_t) -> ssize_t
        { lazy; if (len <= buf_len) hook::read(fd, buf, len) }
    __recv_chk (fd: c_int, buf: *mut c_void, len: size_t, buf_len: size_t, flags: c_int) -> ssize_t
        { lazy; if (len <= buf_len) hook::recv(fd, buf, len, flags) }
    __recvfrom_chk (fd: c_int, buf: *mut c_void, len: size_t, buf_len: size_t, flags: c_int, addr: *mut sockaddr,
        addr_len: *mut socklen_t) -> ssize_t
        { lazy; if (len <= buf_len) hook::recvfrom(fd, buf, len, flags, addr, addr_len) }
    __poll_chk (fds: *mut pollfd, count: nfds_t, timeout_ms: c_int, fds_size: size_t) -> c_int
        { lazy; if (fortify::fits(count, fds_size)) hook::poll(fds, count, timeout_ms) }
    __ppoll_chk (fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t, fds_size: size_t)
        -> c_int { lazy; if (fortify::fits(count, fds_size)) hook::ppoll(fds, count, timeout, mask) }

    // Life of a socket.
    socket (domain: c_int, kind: c_int, protocol: c_int) -> c_int
        { SYS_socket; any calls::socket(domain, kind, protocol), then create::made }
    bind (fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int
        { SYS_bind; ours(fd) calls::bind(fd, addr, len) }
    bindresvport (fd: c_int, addr: *mut sockaddr_in) -> c_int
        { lazy; ours(fd) names::bindresvport(fd, addr) }
    listen (fd: c_int, backlog: c_int) -> c_int
        { SYS_listen; any calls::listen(fd, backlog) }
    accept (fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int
        { SYS_accept; any calls::accept4(fd, addr, len, 0), then create::accepted }
    accept4 (fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int
        { SYS_accept4; any calls::accept4(fd, addr, len, flags), then create::accepted }
    connect | __connect (fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int
        { SYS_connect; ours(fd) calls::connect(fd, addr, len) }
    shutdown (fd: c_int, how: c_int) -> c_int
        { SYS_shutdown; ours(fd) calls::shutdown(fd, how) }
    close | __close (fd: c_int) -> c_int
        { SYS_close; ours(fd) calls::close(fd) }
    close_range (first_fd: c_uint, last_fd: c_uint, flags: c_int) -> c_int
        { SYS_close_range; any calls::close_range(first_fd, last_fd, flags) }
    closefrom (first_fd: c_int) -> ()
        { SYS_close_range(first_fd.max(0), c_uint::MAX, 0); any create::closefrom(first_fd) }

    // Questions and options.
    getsockopt (fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int
        { SYS_getsockopt; ours(fd) calls::getsockopt(fd, level, name, value, len) }
    setsockopt (fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int
        { SYS_setsockopt; ours(fd) calls::setsockopt(fd, level, name, value, len) }
    getsockname (fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int
        { SYS_getsockname; ours(fd) calls::getsockname(fd, addr, len) }
    getpeername (fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int
        { SYS_getpeername; ours(fd) calls::getpeername(fd, addr, len) }
    fcntl | __fcntl | fcntl64 (fd: c_int, cmd: c_int, arg: c_ulong) -> c_int
        { SYS_fcntl; ours(fd; create::by_fcntl(cmd)) calls::fcntl(fd, cmd, arg) }
    ioctl (fd: c_int, request: c_ulong, arg: c_ulong) -> c_int
        { SYS_ioctl; ours(fd) calls::ioctl(fd, request, arg) }
    fstat | fstat64 (fd: c_int, found: *mut c_void) -> c_int
        { SYS_fstat; ours(fd) calls::has_inode(fd) }
    __fxstat | __fxstat64 (version: c_int, fd: c_int, found: *mut c_void) -> c_int
        { SYS_fstat(fd, found); ours(fd) calls::has_inode(fd) }
    fstatat | fstatat64 (dir: c_int, path: Path, found: *mut c_void, flags: c_int) -> c_int
        { SYS_newfstatat; ours(dir) calls::has_inode(dir) }
    __fxstatat | __fxstatat64 (version: c_int, dir: c_int, path: Path, found: *mut c_void, flags: c_int) -> c_int
        { SYS_newfstatat(dir, path, found, flags); ours(dir) calls::has_inode(dir) }
    statx (dir: c_int, path: Path, flags: c_int, mask: c_uint, found: *mut c_void) -> c_int
        { SYS_statx; ours(dir) calls::has_inode(dir) }
    fchmod (fd: c_int, mode: mode_t) -> c_int
        { SYS_fchmod; ours(fd) calls::has_inode(fd) }
    fchown (fd: c_int, owner: c_uint, group: c_uint) -> c_int
        { SYS_fchown; ours(fd) calls::has_inode(fd) }
    sockatmark (fd: c_int) -> c_int
        { lazy; ours(fd) names::sockatmark(fd) }

    // Duplicates.
    dup (fd: c_int) -> c_int
        { SYS_dup; any calls::dup(fd), then create::made }
    dup2 | __dup2 (old_fd: c_int, new_fd: c_int) -> c_int
        { old SYS_dup2; any calls::dup2(old_fd, new_fd) }
    dup3 (old_fd: c_int, new_fd: c_int, flags: c_int) -> c_int
        { SYS_dup3; any calls::dup3(old_fd, new_fd, flags) }

    // Creators of kernel descriptors: the number must be the lowest that the program can see as free.
    epoll_create (size: c_int) -> c_int
        { old SYS_epoll_create; any calls::creates(), then create::epoll }
    epoll_create1 (flags: c_int) -> c_int
        { SYS_epoll_create1; any calls::creates(), then create::epoll }
    open | __open (path: Path, flags: c_int, mode: mode_t) -> c_int
        { SYS_openat(libc::AT_FDCWD, path, flags, mode); any calls::creates(), then create::made }
    open64 | __open64 (path: Path, flags: c_int, mode: mode_t) -> c_int
        { SYS_openat(libc::AT_FDCWD, path, flags, mode); any calls::creates(), then create::made }
    openat (dir_fd: c_int, path: Path, flags: c_int, mode: mode_t) -> c_int
        { SYS_openat; any calls::creates(), then create::made }
    openat64 (dir_fd: c_int, path: Path, flags: c_int, mode: mode_t) -> c_int
        { SYS_openat; any calls::creates(), then create::made }
    __open_2 (path: Path, flags: c_int) -> c_int
        { SYS_openat(libc::AT_FDCWD, path, flags, 0); any calls::creates(), then create::made }
    __open64_2 (path: Path, flags: c_int) -> c_int
        { SYS_openat(libc::AT_FDCWD, path, flags, 0); any calls::creates(), then create::made }
    __openat_2 (dir_fd: c_int, path: Path, flags: c_int) -> c_int
        { SYS_openat(dir_fd, path, flags, 0); any calls::creates(), then create::made }
    __openat64_2 (dir_fd: c_int, path: Path, flags: c_int) -> c_int
        { SYS_openat(dir_fd, path, flags, 0); any calls::creates(), then create::made }
    creat (path: Path, mode: mode_t) -> c_int
        { old SYS_creat; any calls::creates(), then create::made }
    creat64 (path: Path, mode: mode_t) -> c_int
        { old SYS_creat; any calls::creates(), then create::made }
    open_by_handle_at (mount_fd: c_int, handle: *mut c_void, flags: c_int) -> c_int
        { SYS_open_by_handle_at; any calls::creates(), then create::made }
    mkstemp | mkstemp64 (template: *mut c_char) -> c_int
        { lazy; any calls::creates(), then create::made }
    mkostemp | mkostemp64 (template: *mut c_char, flags: c_int) -> c_int
        { lazy; any calls::creates(), then create::made }
    mkstemps | mkstemps64 (template: *mut c_char, suffix_len: c_int) -> c_int
        { lazy; any calls::creates(), then create::made }
    mkostemps | mkostemps64 (template: *mut c_char, suffix_len: c_int, flags: c_int) -> c_int
        { lazy; any calls::creates(), then create::made }
    shm_open (name: Path, flags: c_int, mode: mode_t) -> c_int
        { lazy; any calls::creates(), then create::made }
    pipe | __pipe (fds: *mut c_int) -> c_int
        { old SYS_pipe; then |ret| create::pair(fds, fds.add(1), ret) }
    pipe2 (fds: *mut c_int, flags: c_int) -> c_int
        { SYS_pipe2; then |ret| create::pair(fds, fds.add(1), ret) }
    socketpair (domain: c_int, kind: c_int, protocol: c_int, fds: *mut c_int) -> c_int
        { SYS_socketpair; then |ret| create::pair(fds, fds.add(1), ret) }
    eventfd (count: c_uint, flags: c_int) -> c_int
        { SYS_eventfd2; any calls::creates(), then create::made }
    signalfd (fd: c_int, mask: *const sigset_t, flags: c_int) -> c_int
        { SYS_signalfd4(fd, mask, 8, flags); then |ret| create::by_signalfd(fd, ret) }
    timerfd_create (clock: c_int, flags: c_int) -> c_int
        { SYS_timerfd_create; any calls::creates(), then create::made }
    inotify_init () -> c_int
        { old SYS_inotify_init; any calls::creates(), then create::made }
    inotify_init1 (flags: c_int) -> c_int
        { SYS_inotify_init1; any calls::creates(), then create::made }
    fanotify_init (flags: c_uint, event_flags: c_uint) -> c_int
        { SYS_fanotify_init; any calls::creates(), then create::made }
    memfd_create (name: Path, flags: c_uint) -> c_int
        { SYS_memfd_create; any calls::creates(), then create::made }
    pidfd_open (pid: pid_t, flags: c_uint) -> c_int
        { SYS_pidfd_open; any calls::creates(), then create::made }
    pidfd_getfd (pid_fd: c_int, target_fd: c_int, flags: c_uint) -> c_int
        { SYS_pidfd_getfd; any calls::creates(), then create::made }
    fsopen (name: Path, flags: c_uint) -> c_int
        { SYS_fsopen; any calls::creates(), then create::made }
    fsmount (fd: c_int, flags: c_uint, attributes: c_uint) -> c_int
        { SYS_fsmount; any calls::creates(), then create::made }
    fspick (dir_fd: c_int, path: Path, flags: c_uint) -> c_int
        { SYS_fspick; any calls::creates(), then create::made }
    open_tree (dir_fd: c_int, path: Path, flags: c_uint) -> c_int
        { SYS_open_tree; any calls::creates(), then create::made }
    posix_openpt (flags: c_int) -> c_int
        { lazy; any calls::creates(), then create::made }
    getpt () -> c_int
        { lazy; any calls::creates(), then create::made }
    openpty (main: *mut c_int, terminal: *mut c_int, name: *mut c_char, mode: *const termios, size: *const winsize)
        -> c_int { lazy; any calls::creates(), then |ret| create::pair(main, terminal, ret) }

    // Handlers of signals.
    sigaction | __sigaction (signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int
        { lazy; does handlers::sigaction(signal, new, old) }
    signal | bsd_signal | ssignal (signal: c_int, handler: *mut c_void) -> *mut c_void
        { lazy; does handlers::signal(signal, handler, |given| real::signal(signal, given)) }
    sysv_signal | __sysv_signal (signal: c_int, handler: *mut c_void) -> *mut c_void
        { lazy; does handlers::signal(signal, handler, |given| real::sysv_signal(signal, given)) }
    sigset (signal: c_int, handler: *mut c_void) -> *mut c_void
        { lazy; does handlers::signal(signal, handler, |given| real::sigset(signal, given)) }

    // Threads.
    pthread_create (thread: *mut pthread_t, attributes: *const libc::pthread_attr_t, start: *mut c_void, argument: *mut c_void)
        -> c_int { lazy; first calls::thread_begins() }
    pthread_cancel (thread: pthread_t) -> c_int
        { lazy; then |ret| process::cancelled(thread, ret) }

    // Processes. vfork stands at the end.
    fork | __fork () -> pid_t
        { lazy; does process::fork(|| real::fork()) }
    _Fork () -> pid_t
        { lazy; does process::fork_bare(|| real::_Fork()) }
    clone | __clone (entry: clone::Entry, stack: *mut c_void, flags: c_int, argument: *mut c_void,
        parent_tid: *mut c_void, tls: *mut c_void, child_tid: *mut c_void) -> c_int
        { lazy; does clone::clone(entry, stack, flags, argument, [parent_tid, tls, child_tid]) }
    forkpty (main: *mut c_int, name: *mut c_char, mode: *const termios, size: *const winsize) -> pid_t
        { lazy; does process::forkpty(main, name, mode, size) }
    login_tty (fd: c_int) -> c_int
        { lazy; does process::login_tty(fd) }
    daemon (no_chdir: c_int, no_close: c_int) -> c_int
        { lazy; any process::daemon(no_chdir, no_close) }
    execve (path: Path, argv: Argv, environment: Argv) -> c_int
        { SYS_execve; does exec::with(exec::at(path), (argv, environment), |with| real::execve(path, argv, with)) }
    execveat (dir_fd: c_int, path: Path, argv: Argv, environment: Argv, flags: c_int) -> c_int
        { SYS_execveat; does exec::with(exec::Program::At { dir: dir_fd, path, flags }, (argv, environment),
          |with| real::execveat(dir_fd, path, argv, with, flags)) }
    fexecve (fd: c_int, argv: Argv, environment: Argv) -> c_int
        { lazy; does exec::with(exec::of_fd(fd), (argv, environment), |with| real::fexecve(fd, argv, with)) }
    execv (path: Path, argv: Argv) -> c_int
        { lazy; does exec::with(exec::at(path), (argv, exec::environment()), |with| real::execve(path, argv, with)) }
    execvp (file: Path, argv: Argv) -> c_int
        { lazy; does exec::with(exec::Program::Searched { file }, (argv, exec::environment()),
          |with| real::execvpe(file, argv, with)) }
    execvpe (file: Path, argv: Argv, environment: Argv) -> c_int
        { lazy; does exec::with(exec::Program::Searched { file }, (argv, environment),
          |with| real::execvpe(file, argv, with)) }

    // Programs started inside libc.
    posix_spawn (pid: *mut pid_t, path: Path, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, argv: Argv, environment: Argv) -> c_int
        { lazy; any spawn::posix_spawn(pid, spawn::Program { path, argv, environment, is_searched: false },
          actions, attributes) }
    posix_spawnp (pid: *mut pid_t, path: Path, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, argv: Argv, environment: Argv) -> c_int
        { lazy; any spawn::posix_spawn(pid, spawn::Program { path, argv, environment, is_searched: true },
          actions, attributes) }
    system (command: Path) -> c_int
        { lazy; any shell::system(command) }
    popen (command: Path, mode: Path) -> *mut FILE
        { lazy; any shell::popen(command, mode) }
    pclose (stream: *mut FILE) -> c_int
        { lazy; any shell::pclose(stream) }

    // Limits and filters that the program puts on itself.
    setrlimit | setrlimit64 (resource: c_uint, new: *const rlimit) -> c_int
        { SYS_setrlimit; any limits::prlimit(0, resource, new, null_mut()) }
    getrlimit | getrlimit64 (resource: c_uint, old: *mut rlimit) -> c_int
        { SYS_getrlimit; any limits::prlimit(0, resource, null(), old) }
    prlimit | prlimit64 (pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int
        { SYS_prlimit64; any limits::prlimit(pid, resource, new, old) }
    mlockall (flags: c_int) -> c_int
        { SYS_mlockall; any limits::mlockall(flags) }
    getdtablesize () -> c_int
        { lazy; does limits::getdtablesize() }
    sysconf (name: c_int) -> isize
        { lazy; does limits::sysconf(name) }
    prctl (option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int
        { SYS_prctl; any confine::prctl(option, [a, b, c, d]) }
    unshare (flags: c_int) -> c_int
        { SYS_unshare; any network::unshare(flags) }
    setns (fd: c_int, kind: c_int) -> c_int
        { SYS_setns; any network::setns(fd, kind) }
    chroot (path: Path) -> c_int
        { SYS_chroot; any network::chroot() }

    // By which a process may give rights up.
    setuid (uid: c_uint) -> c_int
        { SYS_setuid; any privileges::change(libc::SYS_setuid, [uid as usize, 0, 0], || real::setuid(uid)) }
    seteuid (uid: c_uint) -> c_int
        { SYS_setresuid(usize::MAX, uid, usize::MAX);
          any privileges::change(libc::SYS_setresuid, [usize::MAX, uid as usize, usize::MAX], || real::seteuid(uid)) }
    setreuid (real: c_uint, effective: c_uint) -> c_int
        { SYS_setreuid; any privileges::change(libc::SYS_setreuid, [real as usize, effective as usize, 0],
          || real::setreuid(real, effective)) }
    setresuid (real: c_uint, effective: c_uint, saved: c_uint) -> c_int
        { SYS_setresuid; any privileges::change(libc::SYS_setresuid, [real as usize, effective as usize, saved as usize],
          || real::setresuid(real, effective, saved)) }
    setgid (gid: c_uint) -> c_int
        { SYS_setgid; any privileges::change(libc::SYS_setgid, [gid as usize, 0, 0], || real::setgid(gid)) }
    setegid (gid: c_uint) -> c_int
        { SYS_setresgid(usize::MAX, gid, usize::MAX);
          any privileges::change(libc::SYS_setresgid, [usize::MAX, gid as usize, usize::MAX], || real::setegid(gid)) }
    setregid (real: c_uint, effective: c_uint) -> c_int
        { SYS_setregid; any privileges::change(libc::SYS_setregid, [real as usize, effective as usize, 0],
          || real::setregid(real, effective)) }
    setresgid (real: c_uint, effective: c_uint, saved: c_uint) -> c_int
        { SYS_setresgid; any privileges::change(libc::SYS_setresgid, [real as usize, effective as usize, saved as usize],
          || real::setresgid(real, effective, saved)) }
    capset (header: *mut c_void, data: *const c_void) -> c_int
        { SYS_capset; any privileges::change(libc::SYS_capset, [header as usize, data as usize, 0],
          || real::capset(header, data)) }

    // By number; see raw.rs.
    syscall (nr: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize
        { lazy; does raw::syscall(nr, [a, b, c, d, e, f]) }

    // stdio.
    fdopen | _IO_fdopen (fd: c_int, mode: *const c_char) -> *mut FILE
        { lazy; ours(fd) stdio::fdopen(fd, mode) }
    vdprintf (fd: c_int, format: *const c_char, arguments: VaList) -> c_int
        { lazy; ours(fd) stdio::vdprintf(fd, format, arguments) }
    __vdprintf_chk (fd: c_int, flag: c_int, format: *const c_char, arguments: VaList) -> c_int
        { lazy; ours(fd) stdio::vdprintf_chk(fd, flag, format, arguments) }

    // Variadic ones: jumps into src/variadic.c, which calls the rows above.
    ... {
        dprintf = sd_dprintf,
        __dprintf_chk = sd_dprintf_chk,
        execl = sd_execl,
        execle = sd_execle,
        execlp = sd_execlp,
    }

    // vfork is fork in a process that has something of ours: its child would run our hooks on the parent's memory. The standard
    // allows it; the parent does not wait for the child's exec then, and does not see what the child stores.
    chosen {
        vfork = process::choose_fork,
        __vfork = process::choose_fork,
    }
}
