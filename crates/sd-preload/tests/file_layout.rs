//! The offset in `FILE` that fdopen on a socket of ours writes.

#[path = "../src/file_layout.rs"]
mod file_layout;

use file_layout::fileno_offset;
use libc::{FILE, c_int};

fn fileno_field(file: *mut FILE) -> *mut c_int {
    file.wrapping_byte_add(fileno_offset()).cast()
}

#[test]
fn fileno_is_there() {
    // SAFETY: a FILE is larger than the offset.
    unsafe {
        for number in [7, 50] {
            let fd = libc::fcntl(0, libc::F_DUPFD, number);
            let file = libc::fdopen(fd, c"r".as_ptr());
            assert_eq!(*fileno_field(file), fd);
            assert_eq!(libc::fileno(file), fd);
            libc::fclose(file);
        }
    }
}
