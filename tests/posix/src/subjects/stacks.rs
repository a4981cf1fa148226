//! Calls on small stacks: a thread's, which may have 16 KiB (PTHREAD_STACK_MIN of pthread_attr_setstacksize(3)), and a handler's
//! of its own (sigaltstack(2)), of which the kernel's frame takes up to 3.5: what is 8 in Rust's programs is four frames in others
//! (`_SC_SIGSTKSZ` of sysconf(3)).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};

use super::handlers::whole_life;
use crate::setup::*;
use crate::sys::*;
use crate::table::{Subject, solo};

pub(crate) const SUBJECTS: &[Subject] = &[
    solo("stacks/thread", on_a_threads),
    solo("stacks/handler", on_a_handlers),
    solo("stacks/handler_smallest", on_the_smallest),
    solo("stacks/handler_first", on_a_handlers_first),
];

const SMALL: usize = 16 << 10;
const SMALLEST: usize = 8 << 10;
const STEPS: usize = 10;

/// What the steps need, which is made before, on a large stack.
struct Means {
    listener: (i32, Addr),
    pair: Connected,
    file: i32,
    pipe: (i32, i32),
}

static MEANS: OnceLock<Means> = OnceLock::new();
static FOUND: [AtomicI64; STEPS] = [const { AtomicI64::new(-1) }; STEPS];

fn make() -> &'static Means {
    MEANS.get_or_init(|| Means {
        listener: listener(),
        pair: connected(),
        file: temporary_file(&[7; 20_000]),
        pipe: pipe(0),
    })
}

/// What is received until `wanted` bytes have come.
fn received(fd: i32, wanted: i64) -> i64 {
    let (mut bytes, mut sum) = ([0; 512], 0);
    while sum < wanted {
        match recv(fd, &mut bytes, 0).value {
            got @ 1.. => sum += got,
            other => return other,
        }
    }
    sum
}

/// What a handler does with a connection that there is.
fn go_on() {
    let Some(means) = MEANS.get() else { return };
    let Connected { client, server, .. } = means.pair;
    let found = [
        // Beyond the end of the file.
        sendfile(client, means.file, 50_000).value,
        received(server, 20_000),
        send(client, &[5; 400], 0).value,
        splice(server, means.pipe.1, 8000, 0).value,
        splice(means.pipe.0, client, 8000, 0).value,
        received(server, 400),
        // The process that this one is a child of may have it, too.
        shutdown(client, libc::SHUT_WR).value,
        received(server, 1),
        close(client).value,
    ];
    FOUND.iter().zip(found).for_each(|(place, found)| place.store(found, Ordering::Relaxed));
}

fn go() {
    let Some(means) = MEANS.get() else { return };
    go_on();
    let wrong = whole_life(means.listener.0, &means.listener.1);
    FOUND[STEPS - 1].store(i64::from(wrong), Ordering::Relaxed);
}

fn tell() {
    let found: Vec<i64> = FOUND.iter().map(|found| found.load(Ordering::Relaxed)).collect();
    say!("found {found:?}");
}

fn on_a_threads() {
    make();
    let thread = std::thread::Builder::new().stack_size(SMALL).spawn(go);
    say!("ended well {}", thread.is_ok_and(|thread| thread.join().is_ok()));
    tell();
}

/// A stack with a page below it that nobody may touch.
fn stack(len: usize) -> *mut libc::c_void {
    const GUARD: usize = 4096;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let at = call!(libc::mmap(std::ptr::null_mut(), len + GUARD, libc::PROT_NONE, flags, -1, 0));
    let at = (at.value as usize + GUARD) as *mut libc::c_void;
    show("mprotect", call!(libc::mprotect(at, len, libc::PROT_READ | libc::PROT_WRITE)));
    at
}

extern "C" fn goes(_: i32) {
    go();
}

extern "C" fn goes_on(_: i32) {
    go_on();
}

fn raise_on(ss_size: usize, handler: extern "C" fn(i32)) {
    let stack = libc::stack_t { ss_sp: stack(ss_size), ss_flags: 0, ss_size };
    show("sigaltstack", call!(libc::sigaltstack(&raw const stack, std::ptr::null_mut())));
    handle(libc::SIGUSR1, handler, libc::SA_ONSTACK);
    show("raise", call!(libc::raise(libc::SIGUSR1)));
}

fn on_a_handlers() {
    make();
    raise_on(SMALL, goes);
    tell();
}

fn on_the_smallest() {
    make();
    raise_on(SMALLEST, goes_on);
    tell();
}

/// All of it, where much happens for the first time: the handler runs in a child.
fn on_a_handlers_first() {
    make();
    let pid = fork_child(|| {
        raise_on(SMALL, goes);
        tell();
        0
    });
    say!("{}", wait_child(pid));
}
