//! Lines of the form `name: result` or `name: error`.

use std::ffi::c_int;
use std::io::Error;

/// Prints the result of function `name`, and passes it on.
pub(crate) fn show<T: Copy + Into<i64>>(name: &str, result: T) -> T {
    let error = Error::last_os_error();
    match result.into() {
        -1 => println!("{name}: errno {}", error.raw_os_error().unwrap_or_default()),
        value => println!("{name}: {value}"),
    }
    result
}

/// As [`show`], for numbers that differ from run to run.
pub(crate) fn show_success(name: &str, result: c_int) -> c_int {
    show(name, result.min(0));
    result
}

pub(crate) fn close(fd: c_int) {
    // SAFETY: no pointers.
    unsafe { libc::close(fd) };
}

/// As [`show`] for the creator of a descriptor, which is closed again.
pub(crate) fn show_fd(name: &str, fd: c_int) {
    if show(name, fd) >= 0 {
        close(fd);
    }
}
