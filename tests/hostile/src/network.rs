//! A network namespace with the loopback device up, for as long as this process lives.

use std::io;

/// Settings are names below /proc/sys and values.
pub(crate) fn keep(settings: &[&str]) -> io::Result<()> {
    // SAFETY: no pointers; this process has one thread.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(io::Error::last_os_error());
    }
    up()?;
    for pair in settings.chunks_exact(2) {
        std::fs::write(format!("/proc/sys/{}", pair[0]), pair[1])?;
    }
    crate::stand()
}

fn up() -> io::Result<()> {
    // SAFETY: an all-zero ifreq is valid; the kernel reads one, and writes one.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
        let done = libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw mut request);
        let error = io::Error::last_os_error();
        libc::close(socket);
        if done == 0 { Ok(()) } else { Err(error) }
    }
}
