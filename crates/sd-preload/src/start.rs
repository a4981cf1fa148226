//! The start-up order.
//!
//! | step | works afterwards |
//! |---|---|
//! | (none yet) | every hook with a system call of the same shape, as that raw call; the others look their symbol up |
//! | 1. resolve | every hook as pass-through, through the next library's function |
//! | 2. `calls::start` | acceleration |
//!
//! The dynamic linker runs [`constructor`] before `main`, but after the constructors of the program's other libraries:
//! what those open is the kernel's, and stays so. Hence `sd_socket::calls` must answer Kernel before its `start`.

use crate::table;
use sd_socket::calls;

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

extern "C" fn constructor() {
    for slot in table::SLOTS {
        slot.resolve();
    }
    // SAFETY: no arguments. A symbol that this libc lacks has left an error text, which is not the program's.
    unsafe { libc::dlerror() };
    calls::start();
}
