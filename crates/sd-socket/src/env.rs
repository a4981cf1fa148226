//! The few environment variables the library reads, without allocation.

use core::ffi::CStr;

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

/// Path found by `remember`, and its length; programs may change their environment later.
static mut PATH: [u8; 108] = [0; 108];
static PATH_LEN: core::sync::atomic::AtomicUsize = core::sync::atomic::AtomicUsize::new(0);

/// At start-up, before the program runs: notes where the monitor is, and for how long idle memory is to be kept.
///
/// # Safety
/// `environment` is null or a null-terminated array of C strings.
pub(crate) unsafe fn remember(environment: Environment) {
    get(environment, b"SD_IDLE_SECONDS").into_iter().for_each(crate::patience::remember);
    let mut buf = [0u8; 108];
    if let Some(path) = find_path(environment, &mut buf) {
        let len = path.len();
        // SAFETY: the constructor runs on one thread, before anything reads PATH.
        unsafe { (&raw mut PATH).write(buf) };
        PATH_LEN.store(len, core::sync::atomic::Ordering::Release);
    }
}

/// Where the monitor's socket is.
pub(crate) fn monitor_path(buf: &mut [u8; 108]) -> Option<&[u8]> {
    match PATH_LEN.load(core::sync::atomic::Ordering::Acquire) {
        // SAFETY: the C library's own variable.
        0 => find_path(unsafe { environ }, buf),
        len => {
            // SAFETY: written once, before the length was.
            *buf = unsafe { (&raw const PATH).read() };
            buf.get(..len)
        }
    }
}

/// Where the monitor's socket is: SD_MONITOR, or the user's default place.
fn find_path(environment: Environment, buf: &mut [u8; 108]) -> Option<&[u8]> {
    if let Some(path) = get(environment, b"SD_MONITOR").filter(|p| !p.is_empty()) {
        return join(buf, &[path]);
    }
    if let Some(dir) = get(environment, b"XDG_RUNTIME_DIR").filter(|p| !p.is_empty()) {
        return join(buf, &[dir, b"/socksdirect/monitor.sock"]);
    }
    let mut digits = [0u8; 10];
    // SAFETY: no arguments.
    let uid = unsafe { sd_sys::syscall!(libc::SYS_getuid) } as u32;
    let digits = decimal(uid, &mut digits);
    if exists(join(buf, &[b"/run/user/", digits, b"\0"])?) {
        return join(buf, &[b"/run/user/", digits, b"/socksdirect/monitor.sock"]);
    }
    join(buf, &[b"/tmp/socksdirect-", digits, b"/monitor.sock"])
}

/// Whether a path that ends with a zero byte names something.
fn exists(path: &[u8]) -> bool {
    // SAFETY: the path is zero-terminated.
    sd_sys::check(unsafe { sd_sys::syscall!(libc::SYS_access, path.as_ptr(), libc::F_OK) }).is_ok()
}

fn join<'a>(buf: &'a mut [u8; 108], parts: &[&[u8]]) -> Option<&'a [u8]> {
    let mut len = 0;
    for part in parts {
        buf.get_mut(len..len + part.len())?.copy_from_slice(part);
        len += part.len();
    }
    buf.get(..len)
}

fn decimal(mut n: u32, digits: &mut [u8; 10]) -> &[u8] {
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
