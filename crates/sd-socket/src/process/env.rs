//! The few environment variables the library reads, without allocation.

use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

type Environment = *const *const core::ffi::c_char;

unsafe extern "C" {
    static environ: Environment;
}

/// A variable of the program's environment as it is now.
pub(crate) fn current(name: &[u8]) -> Option<&'static [u8]> {
    // SAFETY: the C library's own variable.
    get(unsafe { environ }, name)
}

/// The value of `NAME=`; valid until the program changes its environment.
pub(crate) fn get(environment: Environment, name: &[u8]) -> Option<&'static [u8]> {
    // SAFETY: null or a null-terminated array of C strings, by the C library's rules.
    unsafe {
        let mut at = environment;
        if at.is_null() {
            return None;
        }
        while !(*at).is_null() {
            let entry = CStr::from_ptr(*at).to_bytes();
            if let Some(value) = entry.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"=")) {
                return Some(value);
            }
            at = at.add(1);
        }
    }
    None
}

/// What the library reads of the environment at the start, by one walk: the programs that are executed are many, and
/// their environments are long.
struct Variables {
    /// The values of [`NAMES`].
    values: [Option<&'static [u8]>; NAMES.len()],
}

const NAMES: [&[u8]; 6] =
    [b"SD_MONITOR", b"XDG_RUNTIME_DIR", b"HOME", b"SD_IDLE_SECONDS", b"LISTEN_PID", b"LISTEN_FDS"];

impl Variables {
    /// # Safety
    /// `environment` is null or a null-terminated array of C strings.
    unsafe fn read(environment: Environment) -> Variables {
        let mut values = [None; NAMES.len()];
        let mut at = environment;
        // SAFETY: by contract.
        unsafe {
            while !at.is_null() && !(*at).is_null() {
                if matches!(**at as u8, b'S' | b'X' | b'H' | b'L') {
                    let entry = CStr::from_ptr(*at).to_bytes();
                    for (value, name) in values.iter_mut().zip(NAMES) {
                        let found = entry.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"="));
                        *value = value.or(found);
                    }
                }
                at = at.add(1);
            }
        }
        Variables { values }
    }

    /// Descriptors that systemd says are listeners for this process.
    fn activation(&self) -> Range<i32> {
        match self.values {
            [.., Some(pid), Some(count)] => activation(pid, count),
            _ => FIRST..FIRST,
        }
    }
}

/// The first descriptor that systemd passes (sd_listen_fds(3)).
const FIRST: i32 = 3;

#[cold]
fn activation(pid: &[u8], count: &[u8]) -> Range<i32> {
    let number = |value| core::str::from_utf8(value).ok()?.parse::<i32>().ok();
    let is_ours = number(pid) == Some(sd_sys::fd::getpid());
    let count = number(count).filter(|count| is_ours && (0..=256).contains(count));
    FIRST..FIRST + count.unwrap_or(0)
}

/// The user at the start, and what is known of the monitor's place; zero before [`remember`].
static USER: AtomicU32 = AtomicU32::new(0);
static PLACE: AtomicU32 = AtomicU32::new(NOWHERE);
const NOWHERE: u32 = 0;
/// PATH: SD_MONITOR has named it, or it was found.
const NAMED: u32 = 1;
const FOUND: u32 = 2;
/// The host's, or else `/run/user/UID`, or else PATH: nobody has looked yet.
const OPEN: u32 = 3;
/// The host's, or else PATH: nobody has looked yet.
const OPEN_BUT_FOR_USER: u32 = 4;
const SYSTEM: u32 = 5;
const RUN_USER: u32 = 6;

/// What `remember` found, and its length; programs may change their environment later.
static mut PATH: [u8; 108] = [0; 108];
static PATH_LEN: AtomicUsize = AtomicUsize::new(0);

/// At start-up, before the program runs: notes where the monitor is, and for how long idle memory is to be kept. Returns the
/// listeners that the program was started with. Makes no system call, unless there are some.
///
/// # Safety
/// `environment` is null or a null-terminated array of C strings.
pub(crate) unsafe fn remember(environment: Environment) -> Range<i32> {
    // SAFETY: by contract.
    let variables = unsafe { Variables::read(environment) };
    let [monitor, directory, home, seconds, ..] = variables.values;
    seconds.into_iter().for_each(crate::process::retention::remember);
    // SAFETY: no pointers.
    let user = unsafe { libc::getauxval(libc::AT_EUID) } as u32;
    let mut buf = [0u8; 108];
    let (place, path) = find_path(user, [monitor, directory, home], &mut buf);
    let len = path.map_or(0, <[u8]>::len);
    // SAFETY: the constructor runs on one thread, before anything reads PATH.
    unsafe { (&raw mut PATH).write(buf) };
    USER.store(user, Ordering::Relaxed);
    PATH_LEN.store(len, Ordering::Relaxed);
    PLACE.store(place, Ordering::Release);
    variables.activation()
}

/// Whether the library may do something of its own in this process: it was started, the memory is the process's own, and no
/// filter kills for that. Asked before anything is done.
pub(crate) fn may_work() -> bool {
    PLACE.load(Ordering::Acquire) != NOWHERE && is_free()
}

/// Whether the library may bring itself into the program that is executed next: that notes nothing, so the memory may be another's.
pub(crate) fn may_accompany() -> bool {
    let is_let = match super::borrowed::is_borrowed() {
        false => sd_sys::filters::let_us_work,
        true => sd_sys::filters::would_let_us_work,
    };
    PLACE.load(Ordering::Acquire) != NOWHERE && is_let()
}

/// The library was started, but must not do anything.
pub(crate) fn is_forbidden() -> bool {
    PLACE.load(Ordering::Acquire) != NOWHERE && !is_free()
}

fn is_free() -> bool {
    !super::borrowed::is_borrowed() && sd_sys::filters::let_us_work()
}

/// Where the monitor's socket is, and whether SD_MONITOR names it. There is none before [`remember`], and never in a
/// program that the library leaves alone ([`may_work`]).
pub(crate) fn monitor_path(buf: &mut [u8; 108]) -> Option<(&[u8], bool)> {
    if may_work() { place(buf) } else { None }
}

/// Whether the monitor moves connections that last to shared memory, where it says so. If its place is known, makes no
/// calls but those that the loader of the program has made before, so no filter needs to be asked about.
pub(crate) fn monitor_promotes() -> bool {
    let mut path = [0u8; 108];
    !super::borrowed::is_borrowed() && place(&mut path).is_some_and(|(path, _)| sd_sys::trust::promotes(path))
}

fn place(buf: &mut [u8; 108]) -> Option<(&[u8], bool)> {
    let place = match PLACE.load(Ordering::Acquire) {
        open @ (OPEN | OPEN_BUT_FOR_USER) => look(open),
        place => place,
    };
    match place {
        SYSTEM => return Some((join(buf, &[system()?])?, false)),
        RUN_USER => return Some((run_user(buf, b"/socksdirect/monitor.sock")?, false)),
        _ => {}
    }
    let len = Some(PATH_LEN.load(Ordering::Relaxed)).filter(|len| *len != 0)?;
    // SAFETY: written once, before `PLACE` was.
    *buf = unsafe { (&raw const PATH).read() };
    Some((buf.get(..len)?, place == NAMED))
}

/// Whether the host has a monitor, or else whether there is a `/run/user/UID`: once.
#[cold]
fn look(open: u32) -> u32 {
    let mut buf = [0u8; 108];
    let is_users = |buf| open == OPEN && run_user(buf, b"\0").is_some_and(exists);
    let place = match exists(sd_sys::trust::SYSTEM_SOCKET) {
        true => SYSTEM,
        false if is_users(&mut buf) => RUN_USER,
        false => FOUND,
    };
    PLACE.store(place, Ordering::Release);
    place
}

fn system() -> Option<&'static [u8]> {
    sd_sys::trust::SYSTEM_SOCKET.strip_suffix(b"\0")
}

fn run_user<'a>(buf: &'a mut [u8; 108], rest: &[u8]) -> Option<&'a [u8]> {
    let mut digits = [0u8; 10];
    let digits = sd_sys::procfs::decimal(USER.load(Ordering::Relaxed), &mut digits);
    join(buf, &[b"/run/user/", digits, rest])
}

/// SD_MONITOR, or a default place: the first of these that there is, as `sd run` finds it
/// (`default_socket_path` in sd-monitor). None is in a directory that others could have made before.
/// ```text
///  /run/socksdirect/monitor.sock                  the host's, where there is one: for all users
///  $XDG_RUNTIME_DIR/socksdirect                   named
///  /run/user/UID/socksdirect                      where that directory is
///  $HOME/.local/state/socksdirect                 but not for root
///  /run/socksdirect/UID                           root's, or what root has made for the user
/// ```
/// What is known of the place before anybody has looked, and the path, where there is one that is not too long.
fn find_path<'a>(
    user: u32,
    variables: [Option<&[u8]>; 3],
    buf: &'a mut [u8; 108],
) -> (u32, Option<&'a [u8]>) {
    let [monitor, directory, home] = variables.map(|value| value.filter(|path| !path.is_empty()));
    if let Some(path) = monitor {
        return (NAMED, join(buf, &[path]));
    }
    if let Some(directory) = directory {
        return (OPEN_BUT_FOR_USER, join(buf, &[directory, b"/socksdirect/monitor.sock"]));
    }
    let mut digits = [0u8; 10];
    let digits = sd_sys::procfs::decimal(user, &mut digits);
    let path = match home.filter(|_| user != 0) {
        Some(home) => join(buf, &[home, b"/.local/state/socksdirect/monitor.sock"]),
        None => join(buf, &[b"/run/socksdirect/", digits, b"/monitor.sock"]),
    };
    (OPEN, path)
}

/// Whether a path that ends with a zero byte names something.
fn exists(path: &[u8]) -> bool {
    sd_sys::fd::access(path, libc::F_OK).is_ok()
}

fn join<'a>(buf: &'a mut [u8; 108], parts: &[&[u8]]) -> Option<&'a [u8]> {
    let mut len = 0;
    for part in parts {
        buf.get_mut(len..len + part.len())?.copy_from_slice(part);
        len += part.len();
    }
    buf.get(..len)
}
