//! What the kernel says of a TCP connection of its own.

use crate::{Errno, Result, check, syscall};

/// Some of `struct tcp_info`.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    /// As in the kernel's tcp_states.h; 1: established.
    pub state: u8,
    /// TCPI_OPT_*.
    pub options: u8,
    /// Bytes that the other end has acknowledged; the active end's SYN counts as one.
    pub acked: u64,
    /// Bytes that have come.
    pub received: u64,
}

/// Both directions are open.
pub const ESTABLISHED: u8 = 1;
/// Of [`Info::options`]: data came, or went, with the SYN.
pub const SYN_DATA: u8 = 32;

/// TCP_INFO.
pub fn info(fd: i32) -> Result<Info> {
    // Up to tcpi_bytes_received; the kernel gives as much as is asked for.
    const LEN: usize = 136;
    let mut bytes = [0u8; LEN];
    let mut len = LEN as u32;
    // SAFETY: the kernel writes at most `len` bytes.
    check(unsafe {
        syscall!(
            libc::SYS_getsockopt,
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            bytes.as_mut_ptr(),
            &mut len as *mut u32
        )
    })?;
    let word = |at: usize| {
        let mut word = [0; 8];
        word.iter_mut().zip(bytes.iter().skip(at)).for_each(|(to, from)| *to = *from);
        u64::from_ne_bytes(word)
    };
    let [state, _, _, _, _, options, ..] = bytes;
    Ok(Info { state, options, acked: word(120), received: word(128) })
}

/// Looks after which a count that changes all the time is given up.
const LOOKS_MAX: u32 = 1000;

/// Bytes that were written and not acknowledged yet (SIOCOUTQ).
pub fn queued(fd: i32) -> Result<u64> {
    const SIOCOUTQ: u64 = 0x5411;
    let mut queued = 0i32;
    // SAFETY: the kernel writes an int.
    check(unsafe { syscall!(libc::SYS_ioctl, fd, SIOCOUTQ, &mut queued as *mut i32) })?;
    Ok(queued.max(0) as u64)
}

/// Looks at a count of bytes that have passed and at what is queued, until both are of one moment.
fn steady(fd: i32, passed: impl Fn(&Info) -> u64, request: u64) -> Result<(Info, u64)> {
    for _ in 0..LOOKS_MAX {
        let before = info(fd)?;
        let mut queued = 0i32;
        // SAFETY: the kernel writes an int.
        check(unsafe { syscall!(libc::SYS_ioctl, fd, request, &mut queued as *mut i32) })?;
        let after = info(fd)?;
        if passed(&before) == passed(&after) {
            return Ok((after, queued.max(0) as u64));
        }
    }
    Err(Errno::EAGAIN)
}

/// Bytes that were written so far, in a call that nobody else writes in; `active`: this end has connected.
pub fn sent(fd: i32, active: bool) -> Result<u64> {
    const SIOCOUTQ: u64 = 0x5411;
    let (info, queued) = steady(fd, |info| info.acked, SIOCOUTQ)?;
    Ok((info.acked + queued).wrapping_sub(u64::from(active)))
}

/// Bytes that were read so far, in a call that nobody else reads in.
pub fn read(fd: i32) -> Result<u64> {
    const SIOCINQ: u64 = 0x541b;
    let (info, queued) = steady(fd, |info| info.received, SIOCINQ)?;
    Ok(info.received.wrapping_sub(queued))
}
