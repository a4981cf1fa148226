//! What a hook adds to a call on a descriptor that is not ours.
//!
//!     cargo build --release -p sd-preload --lib --examples && target/release/examples/hook_cost [LIBSD]
//!
//! Runs itself again under the library. Each function is called through its symbol (so through the hook) and, in
//! turn, through the address that libc.so.6 itself gives; rounds are interleaved, and the figures are medians.

use libc::{c_char, c_int, c_void, nfds_t, pollfd, size_t, ssize_t};
use std::hint::black_box;
use std::os::unix::process::CommandExt;
use std::time::Instant;

const ROUNDS: usize = 41;
const CHILD: &str = "HOOK_COST_CHILD";

fn main() {
    if std::env::var_os(CHILD).is_some() {
        return measure();
    }
    let here = std::env::current_exe().expect("own path");
    let beside = here.parent().and_then(|p| p.parent()).expect("target directory").join("libsd.so");
    let library = std::env::args_os().nth(1).map_or(beside, Into::into);
    assert!(library.is_file(), "{} is not there", library.display());
    let error = std::process::Command::new(here).env("LD_PRELOAD", library).env(CHILD, "1").exec();
    panic!("{error}");
}

/// The function as libc.so.6 has it, whatever was preloaded.
fn libc_function(name: &std::ffi::CStr) -> *mut c_void {
    // SAFETY: both names are C strings; the library is loaded already.
    unsafe {
        let libc_so = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        libc::dlsym(libc_so, name.as_ptr())
    }
}

fn ns_per_call(calls: u32, call: &dyn Fn()) -> f64 {
    let start = Instant::now();
    (0..calls).for_each(|_| call());
    start.elapsed().as_nanos() as f64 / f64::from(calls)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn compare(name: &str, calls: u32, hooked: &dyn Fn(), direct: &dyn Fn()) {
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        with.push(ns_per_call(calls, hooked));
        without.push(ns_per_call(calls, direct));
    }
    let (with, without) = (median(with), median(without));
    println!("{name:24} {with:8.2} {without:8.2} {:+8.2}", with - without);
}

type Write = unsafe extern "C" fn(c_int, *const c_void, size_t) -> ssize_t;
type Fcntl = unsafe extern "C" fn(c_int, c_int, ...) -> c_int;
type Poll = unsafe extern "C" fn(*mut pollfd, nfds_t, c_int) -> c_int;
type Fdopen = unsafe extern "C" fn(c_int, *const c_char) -> *mut libc::FILE;

fn measure() {
    println!("{:24} {:>8} {:>8} {:>8}", "ns per call (median)", "hooked", "libc", "hook");
    // SAFETY: the addresses are those of functions of these types.
    let (write, fcntl, poll, fdopen) = unsafe {
        (
            std::mem::transmute::<*mut c_void, Write>(libc_function(c"write")),
            std::mem::transmute::<*mut c_void, Fcntl>(libc_function(c"fcntl")),
            std::mem::transmute::<*mut c_void, Poll>(libc_function(c"poll")),
            std::mem::transmute::<*mut c_void, Fdopen>(libc_function(c"fdopen")),
        )
    };
    let (empty, mode): (*const c_void, *const c_char) = (c"".as_ptr().cast(), c"x".as_ptr());
    let call_fdopen = |f: Fdopen| {
        // SAFETY: the mode is a literal, and invalid, so that nothing is opened.
        move || _ = black_box(unsafe { black_box(f)(0, mode) })
    };
    let call_write = |f: Write| {
        // SAFETY: a literal.
        move || _ = black_box(unsafe { black_box(f)(-1, empty, 0) })
    };
    let call_fcntl = |f: Fcntl| {
        // SAFETY: no pointers.
        move || _ = black_box(unsafe { black_box(f)(0, libc::F_GETFL) })
    };
    let call_poll = |f: Poll| {
        // SAFETY: an empty array.
        move || _ = black_box(unsafe { black_box(f)(std::ptr::null_mut(), 0, 0) })
    };
    // No system call in it, so that the hook's own nanosecond shows.
    compare("fdopen(0, \"x\")", 1_000_000, &call_fdopen(libc::fdopen), &call_fdopen(fdopen));
    compare("write(-1, \"\", 0)", 100_000, &call_write(libc::write), &call_write(write));
    compare("fcntl(0, F_GETFL)", 100_000, &call_fcntl(libc::fcntl), &call_fcntl(fcntl));
    compare("poll(NULL, 0, 0)", 100_000, &call_poll(libc::poll), &call_poll(poll));
}
