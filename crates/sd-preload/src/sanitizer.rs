//! What AddressSanitizer has to know of us.
//!
//! A program with the shared runtime of ASan (gcc's usual one) ends at once when another library was loaded before the
//! runtime: its allocator would come too late for one that brings its own. We bring none and pass every call on, so the
//! order does no harm. The runtime asks this function for options; ASAN_OPTIONS, and a program's own definition, win.

use core::ffi::c_char;

#[unsafe(no_mangle)]
extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}
