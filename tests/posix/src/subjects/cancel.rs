//! `pthread_cancel()` of threads that wait in a socket call: each is a cancellation point.

use std::ptr;

use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("cancel/recv", in_recv),
    solo("cancel/send", in_send),
    solo("cancel/accept", in_accept),
    solo("cancel/poll", in_poll),
    solo("cancel/select", in_select),
    solo("cancel/epoll_wait", in_epoll_wait),
    solo("cancel/epoll_wait_of_a_pipe", in_epoll_wait_of_a_pipe),
    solo("cancel/disabled", disabled),
    solo("cancel/bystander", bystander),
];

type Body = extern "C" fn(*mut libc::c_void) -> *mut libc::c_void;

unsafe extern "C" {
    fn pthread_cancel(thread: libc::pthread_t) -> libc::c_int;
    fn pthread_setcancelstate(state: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
}

/// A thread of libc's, as Rust's own cannot be cancelled; `fd` is its argument.
fn start(body: Body, fd: i32) -> libc::pthread_t {
    let mut thread = ptr::null_mut::<u8>() as libc::pthread_t;
    call!(libc::pthread_create(&raw mut thread, ptr::null(), body, fd as usize as *mut libc::c_void));
    thread
}

fn cancel(thread: libc::pthread_t) {
    say!("pthread_cancel = {}", call!(pthread_cancel(thread)).value);
}

fn show_end(thread: libc::pthread_t) {
    let mut end = ptr::null_mut();
    call!(libc::pthread_join(thread, &raw mut end));
    say!("the thread {}", if end as isize == -1 { "was cancelled" } else { "returned" });
}

fn cancelled_in(body: Body, fd: i32) {
    let thread = start(body, fd);
    sleep(20);
    cancel(thread);
    show_end(thread);
}

extern "C" fn recvs(fd: *mut libc::c_void) -> *mut libc::c_void {
    let mut room = [0u8; 8];
    // SAFETY: the room is there.
    unsafe { libc::recv(fd as usize as i32, room.as_mut_ptr().cast(), 8, 0) };
    ptr::null_mut()
}

/// The socket goes on working, so no lock was left behind.
fn show_alive(pair: &Connected) {
    send(pair.client, b"after", 0);
    await_readable(pair.server);
    show_recv("server", pair.server, 8, 0);
    send(pair.server, b"back", 0);
    await_readable(pair.client);
    show_recv("client", pair.client, 8, 0);
}

fn in_recv() {
    let pair = connected();
    cancelled_in(recvs, pair.server);
    show_alive(&pair);
    close(pair.server);
    await_events(pair.client, libc::POLLRDHUP);
    show_recv("client", pair.client, 8, 0);
}

extern "C" fn sends(fd: *mut libc::c_void) -> *mut libc::c_void {
    let bytes = [7u8; 4096];
    loop {
        // SAFETY: the bytes are there.
        if unsafe { libc::send(fd as usize as i32, bytes.as_ptr().cast(), 4096, 0) } < 0 {
            return ptr::null_mut();
        }
    }
}

fn in_send() {
    let pair = connected();
    let thread = start(sends, pair.client);
    sleep(300);
    cancel(thread);
    show_end(thread);
    crate::bulk::drain(pair.server);
    show_alive(&pair);
}

extern "C" fn accepts(fd: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: no address is wanted.
    unsafe { libc::accept(fd as usize as i32, ptr::null_mut(), ptr::null_mut()) };
    ptr::null_mut()
}

fn in_accept() {
    let (listening, addr) = listener();
    cancelled_in(accepts, listening);
    let free = lowest_free();
    let pair = connect_to(listening, &addr);
    say!("no number was lost: {}", pair.client == free);
    show_alive(&pair);
}

extern "C" fn polls(fd: *mut libc::c_void) -> *mut libc::c_void {
    let mut entry = libc::pollfd { fd: fd as usize as i32, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut entry, 1, -1) };
    ptr::null_mut()
}

fn in_poll() {
    let pair = connected();
    cancelled_in(polls, pair.server);
    show_alive(&pair);
}

extern "C" fn selects(fd: *mut libc::c_void) -> *mut libc::c_void {
    let fd = fd as usize as i32;
    // SAFETY: the sets are large enough for small numbers.
    unsafe {
        let mut set: libc::fd_set = std::mem::zeroed();
        libc::FD_SET(fd, &raw mut set);
        libc::FD_SET(0, &raw mut set);
        libc::FD_CLR(0, &raw mut set);
        libc::select(fd + 1, &raw mut set, ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    }
    ptr::null_mut()
}

fn in_select() {
    let pair = connected();
    cancelled_in(selects, pair.server);
    show_alive(&pair);
}

extern "C" fn epoll_waits(fd: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: all-zero events are valid, and there is one.
    unsafe {
        let mut event: libc::epoll_event = std::mem::zeroed();
        libc::epoll_wait(fd as usize as i32, &raw mut event, 1, -1);
    }
    ptr::null_mut()
}

fn in_epoll_wait() {
    let pair = connected();
    let ep = epoll();
    epoll_add(ep, pair.server, libc::EPOLLIN, 1);
    cancelled_in(epoll_waits, ep);
    show_alive(&pair);
    send(pair.client, b"x", 0);
    await_readable(pair.server);
    show_epoll("the set works", ep);
}

/// Nothing of ours is in the instance. Another thread waits there too, and goes on.
fn in_epoll_wait_of_a_pipe() {
    let pair = connected();
    let (ep, (read, wakes)) = (epoll(), pipe(0));
    epoll_add(ep, read, libc::EPOLLIN, 1);
    let waiting = std::thread::spawn(move || {
        let (_, found) = epoll_wait(ep, 4, -1);
        format!("{found:?}")
    });
    sleep(20);
    cancelled_in(epoll_waits, ep);
    show_poll_for("the instance is not ready", ep, libc::POLLIN, 0);
    write(wakes, b"x");
    say!("the other thread: {}", waiting.join().unwrap_or_default());
    show_epoll("the set works", ep);
    show_alive(&pair);
}

extern "C" fn recvs_uncancellable(fd: *mut libc::c_void) -> *mut libc::c_void {
    // SAFETY: the old state is not wanted.
    unsafe { pthread_setcancelstate(1, ptr::null_mut()) };
    recvs(fd)
}

fn disabled() {
    let pair = connected();
    let thread = start(recvs_uncancellable, pair.server);
    sleep(20);
    cancel(thread);
    sleep(20);
    send(pair.client, b"data", 0);
    show_end(thread);
    show_alive(&pair);
}

/// Others that wait at the same time go on waiting.
fn bystander() {
    let (pair, other) = (connected(), connected());
    let waiting = std::thread::spawn(move || recv(other.server, &mut [0; 8], 0).to_string());
    cancelled_in(recvs, pair.server);
    send(other.client, b"later", 0);
    say!("the bystander: recv = {}", waiting.join().unwrap_or_default());
    show_alive(&pair);
}
