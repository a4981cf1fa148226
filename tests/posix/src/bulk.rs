//! A byte pattern that shows loss, repetition and reordering, and calls that move much of it.

use crate::sys::*;

/// The byte at a position of the stream: it has a long period that is no multiple of a page or a power of two.
pub(crate) fn pattern_byte(position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

pub(crate) fn pattern(start: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|index| pattern_byte(start + index)).collect()
}

pub(crate) fn is_pattern(start: u64, bytes: &[u8]) -> bool {
    bytes.iter().zip(start..).all(|(byte, position)| *byte == pattern_byte(position))
}

/// What a reader made of a stream.
pub(crate) struct Tally {
    pub(crate) bytes: u64,
    pub(crate) intact: bool,
    /// How it ended: 0 for the end of the stream, or an errno.
    pub(crate) end: Ret,
}

impl Tally {
    pub(crate) fn show(&self, label: &str) {
        say!("{label}: received {} bytes, intact {}, then recv = {}", self.bytes, self.intact, self.end);
    }
}

/// Sends `total` bytes of the pattern in calls of the given sizes, taken in turn; returns the number sent.
pub(crate) fn send_pattern(fd: i32, total: u64, sizes: &[usize]) -> u64 {
    let mut sent = 0;
    for size in sizes.iter().cycle() {
        let want = (*size as u64).min(total - sent) as usize;
        if want == 0 {
            break;
        }
        let result = send(fd, &pattern(sent, want), libc::MSG_NOSIGNAL);
        if !result.ok() {
            say!("send at {sent} = {result}");
            break;
        }
        sent += result.count() as u64;
    }
    sent
}

/// Receives up to `limit` bytes in calls of the given sizes, until the stream ends or fails.
pub(crate) fn receive_pattern(fd: i32, limit: u64, sizes: &[usize]) -> Tally {
    let mut buffer = vec![0; sizes.iter().copied().max().unwrap_or(1)];
    let mut tally = Tally { bytes: 0, intact: true, end: Ret { value: 1, errno: 0 } };
    for size in sizes.iter().cycle() {
        let want = (*size as u64).min(limit - tally.bytes) as usize;
        if want == 0 {
            break;
        }
        tally.end = recv(fd, &mut buffer[..want], 0);
        if tally.end.value <= 0 {
            break;
        }
        let got = tally.end.count();
        tally.intact &= is_pattern(tally.bytes, &buffer[..got]);
        tally.bytes += got as u64;
    }
    tally
}

/// Sends the pattern without blocking until nothing more fits, not even a byte; returns the number of bytes sent.
///
/// A kernel socket may take more a moment after its first EAGAIN, when the peer's stack has taken what was under way,
/// and takes a byte while `poll` still says that it is not writable; hence the pauses and the single bytes. It also
/// lets its send buffer grow whenever an acknowledgement comes, unless `SO_SNDBUF` was set, and acknowledgements may
/// be delayed by 40 ms.
pub(crate) fn fill(fd: i32, start: u64) -> u64 {
    set_int(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, 200_000);
    let mut sent = start;
    let mut quiet = 0;
    while quiet < 3 {
        let before = sent;
        for chunk in [65_537, 1] {
            loop {
                let result = send(fd, &pattern(sent, chunk), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
                match result.ok() {
                    true => sent += result.count() as u64,
                    false if result.errno == libc::EAGAIN => break,
                    false => {
                        say!("fill: send = {result}");
                        return sent - start;
                    }
                }
            }
        }
        quiet = if sent == before { quiet + 1 } else { 0 };
        sleep(20);
    }
    sent - start
}

/// Receives until nothing has come for a while.
pub(crate) fn drain(fd: i32) {
    let mut room = vec![0; 1 << 16];
    while poll_one(fd, libc::POLLIN, 50).0.value == 1 && recv(fd, &mut room, libc::MSG_DONTWAIT).value > 0 {}
}
