//! clone(2) in its kinds, by libc's function and by number, with a connection that both processes use.

use super::exec::ask;
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("clone/own_stack", own_stack),
    solo("clone/handler_on_own_stack", handler_on_own_stack),
    solo("clone/old_name", old_name),
    solo("clone/by_number", by_number),
    solo("clone/like_vfork", like_vfork),
    solo("clone/shared_while_the_parent_waits", shared_while_the_parent_waits),
    solo("clone/hot_allocator", hot_allocator),
];

type Entry = extern "C" fn(*mut c_void) -> c_int;
type Clone = unsafe extern "C" fn(Entry, *mut c_void, c_int, *mut c_void, ...) -> c_int;

unsafe extern "C" {
    fn __clone(entry: Entry, stack: *mut c_void, flags: c_int, argument: *mut c_void, ...) -> c_int;
}

/// Answers one word in upper case, and ends; nothing here allocates.
fn answer(fd: i32) -> i32 {
    let mut buffer = [0; 64];
    let got = recv(fd, &mut buffer, 0).count();
    buffer[..got].make_ascii_uppercase();
    send(fd, &buffer[..got], 0);
    0
}

extern "C" fn answer_at(fd: *mut c_void) -> c_int {
    answer(fd as usize as i32)
}

/// A child on a stack of its own.
fn child_on_stack(clone: Clone, entry: Entry, flags: c_int, fd: i32) -> i32 {
    let stack = Vec::leak(vec![0u128; 1 << 14]);
    let top = stack.as_mut_ptr_range().end.cast();
    // SAFETY: the stack is large enough, and lives as long as the process.
    let pid = unsafe { clone(entry, top, flags | libc::SIGCHLD, fd as usize as *mut c_void) };
    if pid < 0 {
        give_up("clone failed");
    }
    pid
}

/// The child answers, then the parent, which still has the connection.
fn in_turn(child: impl FnOnce(i32) -> i32) {
    let pair = connected();
    let child = child(pair.server);
    say!("child: {}", ask(pair.client, "to the child"));
    say!("child: {}", wait_child(child));
    show_poll("still open", pair.client);
    to_the_parent(&pair);
    close(pair.server);
    await_events(pair.client, libc::POLLRDHUP);
    show_recv("client", pair.client, 8, 0);
}

fn to_the_parent(pair: &Connected) {
    send(pair.client, b"to the parent", 0);
    await_readable(pair.server);
    answer(pair.server);
    await_readable(pair.client);
    show_recv("client", pair.client, 64, 0);
}

fn own_stack() {
    in_turn(|fd| child_on_stack(libc::clone, answer_at, 0, fd));
}

/// What the handler uses.
static OTHER: AtomicI32 = AtomicI32::new(-1);

extern "C" fn asks_for_more(_: c_int) {
    let fd = OTHER.load(Ordering::Relaxed);
    send(fd, b"in the handler", 0);
    answer(fd);
}

extern "C" fn answer_beside_a_handler(fd: *mut c_void) -> c_int {
    handle(libc::SIGUSR1, asks_for_more, libc::SA_RESTART);
    send(OTHER.load(Ordering::Relaxed), b"ready", 0);
    answer_at(fd) + answer_at(fd)
}

/// A handler comes while the child waits, and waits itself, on the same stack.
fn handler_on_own_stack() {
    let (pair, other) = (connected(), connected());
    OTHER.store(other.server, Ordering::Relaxed);
    let child = child_on_stack(libc::clone, answer_beside_a_handler, 0, pair.server);
    await_bytes(other.client, 5);
    show_recv("child", other.client, 16, 0);
    for word in ["once", "twice"] {
        pause(30);
        call!(libc::kill(child, libc::SIGUSR1));
        await_bytes(other.client, 14);
        show_recv("handler", other.client, 16, 0);
        pause(30);
        say!("handler: {}", ask(other.client, word));
        say!("child: {}", ask(pair.client, word));
    }
    say!("child: {}", wait_child(child));
}

fn old_name() {
    in_turn(|fd| child_on_stack(__clone, answer_at, libc::CLONE_FS, fd));
}

/// fork, clone and clone3 by number, where the child goes on behind the call.
fn by_number() {
    let arguments = {
        let mut words = [0u64; 8];
        words[4] = libc::SIGCHLD as u64;
        words
    };
    for number in [old_calls::SYS_fork, libc::SYS_clone, libc::SYS_clone3] {
        let (first, second) = match number {
            libc::SYS_clone3 => (arguments.as_ptr() as usize, size_of_val(&arguments)),
            libc::SYS_clone => (libc::SIGCHLD as usize, 0),
            _ => (0, 0),
        };
        in_turn(|fd| match call!(libc::syscall(number, first, second, 0, 0, 0)).fd() {
            0 => exit_now(answer(fd)),
            pid => pid,
        });
    }
}

/// The kind that programs start others with: the child closes what it does not need, and the parent keeps it.
extern "C" fn close_and_end(fd: *mut c_void) -> c_int {
    let fd = fd as usize as i32;
    answer(fd);
    close(fd);
    // SAFETY: ends the child.
    unsafe { libc::_exit(3) }
}

fn like_vfork() {
    for clone in [libc::clone as Clone, __clone as Clone] {
        let pair = connected();
        send(pair.client, b"to the child", 0);
        let flags = libc::CLONE_VM | libc::CLONE_VFORK;
        let child = child_on_stack(clone, close_and_end, flags, pair.server);
        await_readable(pair.client);
        show_recv("client", pair.client, 64, 0);
        say!("child: {}", wait_child(child));
        show_poll("still open", pair.client);
        to_the_parent(&pair);
    }
}

/// With descriptors in common too: what the child does is as if the parent had done it.
fn shared_while_the_parent_waits() {
    let pair = connected();
    send(pair.client, b"to the child", 0);
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES;
    let child = child_on_stack(libc::clone, close_and_end, flags, pair.server);
    await_readable(pair.client);
    show_recv("client", pair.client, 64, 0);
    say!("child: {}", wait_child(child));
    await_events(pair.client, libc::POLLRDHUP);
    show_recv("client", pair.client, 64, 0);
    show_send("closed", pair.server, b"x", 0);
}

/// Children of a bare clone while other threads hold the allocator's lock: each makes a connection of its own.
fn hot_allocator() {
    one_arena();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let sizes = (2000..30_000).step_by(997);
                    std::hint::black_box(sizes.map(Vec::<u8>::with_capacity).collect::<Vec<_>>());
                }
            });
        }
        let (listening, addr) = listener();
        let mut answered = 0;
        for _ in 0..30 {
            let child = match call!(libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0)).fd() {
                0 => exit_now(answer(dial(&addr))),
                pid => pid,
            };
            let server = accept(listening).fd();
            send(server, b"word", 0);
            await_readable(server);
            answered += u32::from(recv(server, &mut [0; 8], 0).count() == 4);
            close(server);
            wait_child(child);
        }
        say!("{answered} answered");
        is_over.store(true, Ordering::Relaxed);
    });
}
