//! Finding 6: a server that forks a child without privileges, as nginx and sshd do. Run with the library, as root. The
//! child closes its sockets, then looks for what its parent is told afterwards (`read`), or overwrites all it can
//! (`write`). With `threads-` before that it has threads in accept, epoll_wait, poll and a computation when it gives its
//! rights up; with `confined-` it gives up no user but sets no_new_privs, with threads as well.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;

/// Not as one word: what is found must not be this program's own text.
fn secret() -> Vec<u8> {
    [b"TOP-SECRET", &b"-AFTER-DROP"[..]].concat()
}

/// The client: says the secret when it is told to, and talks on for a while.
pub(crate) fn talk(port: u16) -> io::Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(std::time::Duration::from_secs(10)))?;
    stream.write_all(b"hello")?;
    let mut go = [0];
    stream.read_exact(&mut go)?;
    stream.write_all(&secret())?;
    for round in 0..200u8 {
        stream.read_exact(&mut go)?;
        if go != [round] {
            return Err(io::Error::other(format!("{go:?} came, not {round}")));
        }
        stream.write_all(&[round])?;
    }
    println!("all came");
    Ok(())
}

pub(crate) fn serve(way: &str, port: u16, user: u32) -> io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    println!("listening");
    let (mut stream, _) = listener.accept()?;
    let mut hello = [0; 5];
    stream.read_exact(&mut hello)?;
    let (mut told, tells) = io::pipe()?;
    let (waits, mut wakes) = io::pipe()?;
    // SAFETY: this process has one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop((stream, wakes, told));
        let (how, way) = way.split_once('-').unwrap_or(("", way));
        if how.is_empty() {
            drop(listener);
        } else {
            busy(listener);
        }
        let found = child_main(way, (how != "confined").then_some(user), tells, waits);
        // SAFETY: ends the process.
        unsafe { libc::_exit(found.unwrap_or(9)) };
    }
    drop((tells, waits));
    told.read_exact(&mut [0])?;
    stream.write_all(b"!")?;
    let mut got = vec![0; secret().len()];
    stream.read_exact(&mut got)?;
    wakes.write_all(b"!")?;
    told.read_exact(&mut [0])?;
    // It overwrites after it has told.
    std::thread::sleep(std::time::Duration::from_millis(50));
    let mut echo = [0];
    for round in 0..200u8 {
        stream.write_all(&[round])?;
        stream.read_exact(&mut echo)?;
        if echo != [round] {
            return Err(io::Error::other(format!("{echo:?} came, not {round}")));
        }
    }
    let mut status = 0;
    // SAFETY: the kernel writes one word.
    unsafe { libc::waitpid(child, &mut status, 0) };
    println!("child: {}", if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -1 });
    Ok(())
}

/// Threads that do what threads do, and are asleep, or in the middle of it, from then on.
fn busy(listener: TcpListener) {
    let listening = listener.as_raw_fd();
    std::thread::spawn(move || while listener.accept().is_ok() {});
    std::thread::spawn(move || {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: one event, read and then written again and again.
        unsafe {
            let epoll = libc::epoll_create1(0);
            libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, listening, &mut event);
            loop {
                libc::epoll_wait(epoll, &mut event, 1, -1);
            }
        }
    });
    std::thread::spawn(move || {
        loop {
            let mut entry = libc::pollfd { fd: listening, events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry.
            unsafe { libc::poll(&mut entry, 1, -1) };
        }
    });
    std::thread::spawn(|| while std::hint::black_box(true) {});
    std::thread::sleep(std::time::Duration::from_millis(30));
}

/// 0: nothing was to be found; 7: the secret was.
fn child_main(way: &str, user: Option<u32>, mut tells: impl Write, mut waits: impl Read) -> io::Result<i32> {
    // SAFETY: no pointers but a null one, of no groups.
    let result = unsafe {
        match user {
            Some(user) => {
                libc::setgroups(0, std::ptr::null());
                libc::setresgid(user, user, user);
                libc::setresuid(user, user, user)
            }
            None => libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        }
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    tells.write_all(b"!")?;
    waits.read_exact(&mut [0])?;
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let found = match way {
        "read" => maps.lines().filter_map(shared).any(|place| has(place, &secret())) || any_descriptor(),
        _ => {
            // The answer first: what is overwritten may be needed to give it.
            tells.write_all(b"!")?;
            maps.lines().filter(|line| line.contains(" rw-s ")).filter_map(shared).for_each(scribble);
            return Ok(0);
        }
    };
    tells.write_all(b"!")?;
    Ok(if found { 7 } else { 0 })
}

/// Where a segment is mapped.
fn shared(line: &str) -> Option<(usize, usize)> {
    let (range, _) = line.split_once(' ').filter(|_| line.contains("/memfd:sd-"))?;
    let (from, to) = range.split_once('-')?;
    Some((usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?))
}

/// The pages of it that exist.
fn pages((from, to): (usize, usize)) -> impl Iterator<Item = usize> {
    let mut there = vec![0u8; (to - from).div_ceil(4096)];
    // SAFETY: the kernel writes a byte for each page.
    let done = unsafe { libc::mincore(from as *mut _, to - from, there.as_mut_ptr()) };
    let count = if done == 0 { there.len() } else { 0 };
    (0..count).filter(move |page| there[*page] & 1 != 0).map(move |page| from + page * 4096)
}

fn has(place: (usize, usize), wanted: &[u8]) -> bool {
    pages(place).any(|page| {
        // SAFETY: a page that is mapped to be read.
        let bytes = unsafe { std::slice::from_raw_parts(page as *const u8, 4096) }.to_vec();
        bytes.windows(wanted.len()).any(|window| window == wanted)
    })
}

fn scribble(place: (usize, usize)) {
    for page in pages(place) {
        // SAFETY: a page that is mapped to be written; what it holds is no reference of this program's.
        unsafe { std::ptr::write_bytes(page as *mut u8, 0x41, 4096) };
    }
}

/// The secret is in a segment of which this process still has a descriptor.
fn any_descriptor() -> bool {
    (3..20_000).any(|number| {
        let link = std::fs::read_link(format!("/proc/self/fd/{number}")).unwrap_or_default();
        if !link.to_string_lossy().contains("memfd:sd-channel") {
            return false;
        }
        // SAFETY: the number is open, and is not closed by this.
        let file = std::mem::ManuallyDrop::new(unsafe { File::from_raw_fd(number) });
        let (mut at, mut page) = (0, vec![0; 4096]);
        loop {
            // SAFETY: no pointers.
            at = unsafe { libc::lseek(file.as_raw_fd(), at, libc::SEEK_DATA) };
            if at < 0 {
                return false;
            }
            let got = file.read_at(&mut page, at as u64).unwrap_or(0);
            if page[..got].windows(secret().len()).any(|window| window == secret()) {
                return true;
            }
            at += 4096;
        }
    })
}
