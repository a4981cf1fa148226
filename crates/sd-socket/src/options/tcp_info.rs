//! What a connection says of its segments and of itself, as one over the loopback interface does: TCP_MAXSEG, IP_MTU,
//! TCP_INFO.

use crate::Outcome;
use crate::options::put;
use crate::socket::cold;
use crate::socket::endpoint::{EndpointExt, OWN_SOCKET};
use crate::socket::kernel_socket::materialize;
use core::sync::atomic::Ordering;
use libc::{IPPROTO_TCP, c_int, c_void, socklen_t};
use sd_shm::channel::Side;
use sd_shm::slab::{End, Endpoint, State};

/// The loopback interface's, as IPv4 or IPv6 tell it.
pub(super) fn mtu(fd: c_int, is_v4: bool) -> i32 {
    const DEFAULT: i32 = 65536;
    let mut request = [0u64; 5];
    if let Some(name) = request.first_mut() {
        *name = u64::from_le_bytes(*b"lo\0\0\0\0\0\0");
    }
    // SAFETY: the kernel reads and writes one struct ifreq, of 40 bytes.
    let asked = sd_sys::check(unsafe {
        sd_sys::syscall!(libc::SYS_ioctl, fd, libc::SIOCGIFMTU, request.as_mut_ptr())
    });
    let [_, _, answer, ..] = request;
    let mtu = if asked.is_ok() { answer as i32 } else { DEFAULT };
    // IPv4's length field has 16 bits.
    if is_v4 { mtu.min(0xffff) } else { mtu }
}

/// What the option of time-stamps takes away from each segment.
const TIMESTAMPS: i32 = 12;

/// TCP_MAXSEG of a connection: what the interface carries, what the program has set, and not more than half of the
/// window that the other side begins with.
pub(super) fn mss(endpoint: &'static Endpoint, fd: c_int) -> i32 {
    const UNSET: i32 = 536;
    let is_v4 = cold::ip(endpoint, End::Remote).to_v4().is_some();
    let headers = if is_v4 { 40 } else { 60 };
    let largest = mtu(fd, is_v4).min(0xffff + if is_v4 { 0 } else { 1 }) - headers - TIMESTAMPS;
    let half_window = match endpoint.side.load(Ordering::Relaxed) == Side::A as u8 {
        true => largest / 2,
        false => 32768,
    };
    let has_own = endpoint.flag(OWN_SOCKET)
        || crate::socket::notes::is_noted(endpoint) && materialize(endpoint).is_ok();
    let set = if has_own { sd_sys::fd::getsockopt_int(fd, IPPROTO_TCP, libc::TCP_MAXSEG).ok() } else { None };
    let set = set.filter(|set| *set != UNSET).map_or(i32::MAX, |set| set - TIMESTAMPS);
    largest.min(half_window).min(set)
}

/// Largest struct tcp_info that is answered; kernels have added to it over the years.
const TCP_INFO_MAX: usize = 512;

/// TCP_INFO (tcp(7)): the kernel's answer for the placeholder, as long as that kernel makes it, with
/// what a healthy loopback connection shows; for a listener, with what waits there.
pub(crate) unsafe fn get(
    fd: c_int,
    endpoint: &'static Endpoint,
    value: *mut c_void,
    len: *mut socklen_t,
) -> Outcome<c_int> {
    let mut info = [0u8; TCP_INFO_MAX];
    let mut full = TCP_INFO_MAX as u32;
    // SAFETY: the kernel writes at most `full` bytes.
    let asked = sd_sys::check(unsafe {
        sd_sys::syscall!(
            libc::SYS_getsockopt,
            fd,
            IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr(),
            &mut full as *mut u32
        )
    });
    if let Err(e) = asked {
        return Outcome::Errno(e);
    }
    match endpoint.state_now() {
        State::Listen => count_waiting(&mut info, endpoint),
        _ => fill(&mut info, endpoint, mss(endpoint, fd) as u32, mtu(fd, true) as u32),
    }
    let answer = info.get(..(full as usize).min(TCP_INFO_MAX)).unwrap_or(&[]);
    // SAFETY: as the caller says.
    unsafe { put(answer, value, len) }
}

/// Of a listener tcpi_unacked is how many connections wait for accept: what `ss` shows as Recv-Q, and php-fpm on its status page.
fn count_waiting(info: &mut [u8; TCP_INFO_MAX], endpoint: &'static Endpoint) {
    const UNACKED: core::ops::Range<usize> = 24..28;
    let Some(place) = info.get_mut(UNACKED) else { return };
    let in_kernel = place.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
    crate::epoll::drain();
    let all = in_kernel.saturating_add(crate::backlog::listener::waiting(endpoint));
    place.copy_from_slice(&all.to_ne_bytes());
}

/// What a healthy connection shows.
fn fill(info: &mut [u8; TCP_INFO_MAX], endpoint: &'static Endpoint, mss: u32, mtu: u32) {
    const WORDS: usize = 8;
    // struct tcp_info of linux/tcp.h: eight bytes, then words, then from word 24 on counters of 64 bits.
    let words: [(usize, u32); 13] = [
        (0, 200_000),                 // tcpi_rto, us
        (1, 40_000),                  // tcpi_ato
        (2, mss),                     // tcpi_snd_mss
        (3, mss),                     // tcpi_rcv_mss
        (13, mtu),                    // tcpi_pmtu
        (14, mtu.saturating_sub(52)), // tcpi_rcv_ssthresh
        (15, 20),                     // tcpi_rtt, us
        (16, 10),                     // tcpi_rttvar
        (17, i32::MAX as u32),        // tcpi_snd_ssthresh
        (18, 10),                     // tcpi_snd_cwnd
        (19, mtu.saturating_sub(52)), // tcpi_advmss
        (20, 3),                      // tcpi_reordering
        (22, mtu.saturating_sub(40)), // tcpi_rcv_space
    ];
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(place) = info.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    };
    words.iter().for_each(|(index, value)| put(WORDS + index * 4, &value.to_ne_bytes()));
    let (sent, received) = crate::socket::parked::counts(endpoint);
    // tcpi_options: time-stamps, selective acknowledgements, window scaling; the scales of both sides.
    put(5, &[7, 0xaa]);
    put(120, &sent.to_ne_bytes()); // tcpi_bytes_acked
    put(128, &received.to_ne_bytes()); // tcpi_bytes_received
    put(0, &[crate::socket::names::tcp_state(endpoint)]);
}
