//! What a program does with numbers: close, dup, fcntl, ioctl.
//!
//! `copies` is close, dup and kcmp, `commands` fcntl and ioctl. The table of numbers itself is `fd`'s.
//!
//! *Owns*: nothing. *Uses*: `setup`, `epoll`, `route`, `socket`, `link`, `fd`.
//!
//! | task | place |
//! |---|---|
//! | close, close_range, dup, dup2, F_DUPFD, kcmp | `copies` |
//! | another command of fcntl, another request of ioctl | `commands` |

mod commands;
mod copies;

pub(crate) use commands::{fcntl, ioctl};
pub(crate) use copies::{close, close_range, compare, dup, dup_to};
