//! The few environment variables the library reads, without allocation.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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

/// Descriptors that systemd says are listeners for this process (sd_listen_fds(3)).
///
/// # Safety
/// `environment` is null or a null-terminated array of C strings.
pub(crate) unsafe fn activation(environment: Environment) -> core::ops::Range<i32> {
    const FIRST: i32 = 3;
    let number = |name| core::str::from_utf8(get(environment, name)?).ok()?.parse::<i32>().ok();
    let is_ours = number(b"LISTEN_PID") == Some(sd_sys::fd::getpid());
    let count = number(b"LISTEN_FDS").filter(|count| is_ours && (0..=256).contains(count));
    FIRST..FIRST + count.unwrap_or(0)
}

/// Path found by `remember`, its length, and whether it was named; programs may change their environment later.
static mut PATH: [u8; 108] = [0; 108];
static PATH_LEN: AtomicUsize = AtomicUsize::new(0);
static PATH_IS_NAMED: AtomicBool = AtomicBool::new(false);

/// At start-up, before the program runs: notes where the monitor is, and for how long idle memory is to be kept.
///
/// # Safety
/// `environment` is null or a null-terminated array of C strings.
pub(crate) unsafe fn remember(environment: Environment) {
    get(environment, b"SD_IDLE_SECONDS").into_iter().for_each(crate::process::retention::remember);
    let mut buf = [0u8; 108];
    if let Some((path, is_named)) = find_path(environment, &mut buf) {
        let len = path.len();
        // SAFETY: the constructor runs on one thread, before anything reads PATH.
        unsafe { (&raw mut PATH).write(buf) };
        PATH_IS_NAMED.store(is_named, Ordering::Relaxed);
        PATH_LEN.store(len, Ordering::Release);
    }
}

/// Where the monitor's socket is, and whether SD_MONITOR names it. There is none before [`remember`], and never in a
/// program that the library leaves alone (AT_SECURE).
pub(crate) fn monitor_path(buf: &mut [u8; 108]) -> Option<(&[u8], bool)> {
    let len = Some(PATH_LEN.load(Ordering::Acquire)).filter(|len| *len != 0)?;
    // SAFETY: written once, before the length was.
    *buf = unsafe { (&raw const PATH).read() };
    Some((buf.get(..len)?, PATH_IS_NAMED.load(Ordering::Relaxed)))
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
fn find_path(environment: Environment, buf: &mut [u8; 108]) -> Option<(&[u8], bool)> {
    let variable = |name| get(environment, name).filter(|path| !path.is_empty());
    if let Some(path) = variable(b"SD_MONITOR") {
        return Some((join(buf, &[path])?, true));
    }
    if let [place @ .., 0] = sd_sys::trust::SYSTEM_SOCKET
        && exists(sd_sys::trust::SYSTEM_SOCKET)
    {
        return Some((join(buf, &[place])?, false));
    }
    let mut digits = [0u8; 10];
    let uid = sd_sys::fd::geteuid();
    let digits = decimal(uid, &mut digits);
    let home = variable(b"HOME").filter(|_| uid != 0);
    let path = if let Some(directory) = variable(b"XDG_RUNTIME_DIR") {
        join(buf, &[directory, b"/socksdirect/monitor.sock"])
    } else if exists(join(buf, &[b"/run/user/", digits, b"\0"])?) {
        join(buf, &[b"/run/user/", digits, b"/socksdirect/monitor.sock"])
    } else if let Some(home) = home {
        join(buf, &[home, b"/.local/state/socksdirect/monitor.sock"])
    } else {
        join(buf, &[b"/run/socksdirect/", digits, b"/monitor.sock"])
    };
    Some((path?, false))
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

/// Without allocation.
pub(crate) fn decimal(mut n: u32, digits: &mut [u8; 10]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        if let Some(d) = digits.get_mut(at) {
            *d = b'0' + (n % 10) as u8;
        }
        n /= 10;
        if n == 0 || at == 0 {
            break;
        }
    }
    digits.get(at..).unwrap_or(&[])
}
