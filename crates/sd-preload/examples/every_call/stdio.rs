//! stdio on a descriptor.

use crate::report::{close, show};
use libc::{FILE, c_char, c_int, c_void};

unsafe extern "C" {
    fn _IO_fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    fn dprintf(fd: c_int, format: *const c_char, ...) -> c_int;
    fn __dprintf_chk(fd: c_int, flag: c_int, format: *const c_char, ...) -> c_int;
    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
}

pub(crate) fn run() {
    let mut bytes = [0u8; 100];
    // An empty va_list: its format names no arguments.
    let none = [0u64; 3].as_mut_ptr().cast();
    // SAFETY: all pointers are literals or local variables of the right kind.
    let len = unsafe {
        let mut pair = [0; 2];
        libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, pair.as_mut_ptr());
        show("dprintf", dprintf(pair[0], c"%d %s %.2f %ld\n".as_ptr(), 1, c"two".as_ptr(), 3.0, 4i64));
        show("__dprintf_chk", __dprintf_chk(pair[0], 1, c"%d %.1f\n".as_ptr(), 5, 6.0));
        show("dprintf", dprintf(-1, c"x".as_ptr()));
        show("vdprintf", vdprintf(pair[0], c"seven\n".as_ptr(), none));
        show("__vdprintf_chk", __vdprintf_chk(pair[0], 1, c"eight\n".as_ptr(), none));
        let file = libc::fdopen(pair[0], c"r+".as_ptr());
        show("fdopen", libc::fileno(file));
        show("fdopen", libc::fputs(c"nine\n".as_ptr(), file).min(1));
        show("fdopen", libc::fclose(file));
        println!("fdopen: {:?}", libc::fdopen(-1, c"r".as_ptr()));
        println!("fdopen: {:?}", libc::fdopen(pair[1], c"x".as_ptr()));
        let len = libc::read(pair[1], bytes.as_mut_ptr().cast(), bytes.len());
        show("_IO_fdopen", libc::fclose(_IO_fdopen(pair[1], c"r".as_ptr())));
        close(pair[1]);
        len
    };
    println!("{}", String::from_utf8_lossy(&bytes[..usize::try_from(len).unwrap()]));
}
