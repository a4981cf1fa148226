//! stdio on our sockets: a `FILE` whose reads and writes go through our hooks (glibc's own go straight to the kernel),
//! and dprintf.

use crate::edge::fail;
use crate::file_layout;
use crate::next;
use crate::table::{VaList, hook};
use core::ffi::{c_char, c_int, c_void};
use core::ptr::null_mut;
use libc::{FILE, off64_t, size_t, ssize_t};
use sd_socket::{Outcome, calls};
use sd_sys::{Errno, libcs};

/// glibc's cookie_io_functions_t.
#[repr(C)]
struct CookieFunctions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: CookieFunctions) -> *mut FILE;
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, arguments: VaList) -> c_int;
}

/// fdopen(3). The checks are glibc's, in its order; the access mode of a socket always fits.
///
/// # Safety
/// libc's contract.
pub(crate) unsafe fn fdopen(fd: c_int, mode: *const c_char) -> Outcome<*mut FILE> {
    // SAFETY: libc's contract: `mode` is a C string.
    let kind = unsafe { *mode } as u8;
    if !matches!(kind, b'r' | b'w' | b'a') {
        return Outcome::Errno(Errno::EINVAL);
    }
    // SAFETY: no pointers.
    let flags = unsafe { hook::fcntl(fd, libc::F_GETFL, 0) };
    if flags == -1 {
        return Outcome::Done(null_mut());
    }
    if kind == b'a' && flags & libc::O_APPEND == 0 {
        // SAFETY: no pointers.
        let set = unsafe { hook::fcntl(fd, libc::F_SETFL, (flags | libc::O_APPEND) as _) };
        if set == -1 {
            return Outcome::Done(null_mut());
        }
    }
    let functions = CookieFunctions { read, write, seek, close };
    // SAFETY: the cookie is a number, not an address, to all four functions; `mode` as above.
    let file = unsafe { fopencookie(fd as usize as *mut c_void, mode, functions) };
    if !file.is_null() {
        // SAFETY: the field of a fresh FILE that no other thread knows; a cookie FILE uses it for nothing
        // but fileno(3).
        unsafe { file.byte_add(file_layout::fileno_offset()).cast::<c_int>().write(fd) };
    }
    Outcome::Done(file)
}

/// At the start of a program that exec has given sockets of ours: the standard streams go through our hooks too,
/// where their numbers are ours. Nobody has used the streams yet. musl's variables are constants: a program of its, whose standard streams
/// would be ours, is executed without the library (`sd_socket`, `exec::target`).
pub(crate) fn adopt_standard_streams() {
    if libcs::is_musl() {
        return;
    }
    let streams = [
        (&raw mut stdin, c"r", libc::_IOFBF),
        (&raw mut stdout, c"w", libc::_IOFBF),
        (&raw mut stderr, c"w", libc::_IONBF),
    ];
    for (fd, (variable, mode, buffering)) in (0..).zip(streams) {
        if !calls::is_ours(fd) {
            continue;
        }
        // SAFETY: libc's variables, which a program may assign; the mode is a literal.
        unsafe {
            if let Outcome::Done(stream) = fdopen(fd, mode.as_ptr())
                && !stream.is_null()
            {
                libc::setvbuf(stream, null_mut(), buffering, libc::BUFSIZ as size_t);
                *variable = stream;
            }
        }
    }
}

fn fd_of(cookie: *mut c_void) -> c_int {
    cookie as usize as c_int
}

unsafe extern "C" fn read(cookie: *mut c_void, buf: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: stdio's buffer.
    unsafe { hook::read(fd_of(cookie), buf.cast(), len) }
}

/// stdio takes anything short of `len` for an error, so this writes on after a partial write.
unsafe extern "C" fn write(cookie: *mut c_void, buf: *const c_char, len: size_t) -> ssize_t {
    // SAFETY: stdio's buffer.
    unsafe { write_all(fd_of(cookie), buf, len) as ssize_t }
}

unsafe extern "C" fn seek(_cookie: *mut c_void, _offset: *mut off64_t, _whence: c_int) -> c_int {
    fail(Errno::ESPIPE)
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: no pointers.
    unsafe { hook::close(fd_of(cookie)) }
}

/// How many bytes were written before the first error.
///
/// # Safety
/// `len` bytes at `buf` are readable.
unsafe fn write_all(fd: c_int, buf: *const c_char, len: size_t) -> size_t {
    let mut done = 0;
    while done < len {
        // SAFETY: `done` is less than `len`.
        match unsafe { hook::write(fd, buf.add(done).cast(), len - done) } {
            written if written < 0 => break,
            written => done += written as size_t,
        }
    }
    done
}

/// # Safety
/// libc's contract.
pub(crate) unsafe fn vdprintf(fd: c_int, format: *const c_char, arguments: VaList) -> Outcome<c_int> {
    let mut text = null_mut();
    // SAFETY: libc's contract; vasprintf allocates the text.
    unsafe {
        let len = vasprintf(&mut text, format, arguments);
        print(fd, text, len)
    }
}

/// # Safety
/// libc's contract.
pub(crate) unsafe fn vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    arguments: VaList,
) -> Outcome<c_int> {
    type Checked = unsafe extern "C" fn(*mut *mut c_char, c_int, *const c_char, VaList) -> c_int;
    let Some(address) = next::find(c"__vasprintf_chk").filter(|address| !address.is_null()) else {
        // SAFETY: libc's contract.
        return unsafe { vdprintf(fd, format, arguments) };
    };
    let mut text = null_mut();
    // SAFETY: libc's contract, and the function of that name, which allocates the text.
    unsafe {
        let vasprintf: Checked = core::mem::transmute(address);
        let len = vasprintf(&mut text, flag, format, arguments);
        print(fd, text, len)
    }
}

/// Writes and frees what vasprintf made; a negative `len` is its failure, with errno set.
///
/// # Safety
/// If `len` is not negative, `text` comes from malloc and holds as many bytes.
unsafe fn print(fd: c_int, text: *mut c_char, len: c_int) -> Outcome<c_int> {
    let Ok(wanted) = size_t::try_from(len) else { return Outcome::Done(-1) };
    // SAFETY: by contract; free(3) leaves errno alone.
    let written = unsafe {
        let written = write_all(fd, text, wanted);
        libc::free(text.cast());
        written
    };
    Outcome::Done(if written == wanted { len } else { -1 })
}
