//! Why the library is not brought into a program, in words.

#[cfg(target_arch = "x86_64")]
use crate::windows::Refusal;
use core::fmt::{Display, Formatter, Result};

/// Why not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unled {
    /// None that these files know.
    Unknown,
    /// Instructions could be written while it runs.
    Open,
    /// By Go's linker, but not as is known here.
    Go,
    /// Of a system call, or for the want of one.
    #[cfg(target_arch = "x86_64")]
    Calls(Refusal),
}

impl Display for Unled {
    /// What follows "it is statically linked".
    fn fmt(&self, to: &mut Formatter<'_>) -> Result {
        match self {
            Unled::Unknown => to.write_str("by no linker that is known here"),
            Unled::Open => to.write_str("with memory that is both written and executed"),
            Unled::Go => to.write_str("by a Go whose system calls are not known here (1.19 and later are)"),
            #[cfg(target_arch = "x86_64")]
            Unled::Calls(refusal) => calls(*refusal, to),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn calls(refusal: Refusal, to: &mut Formatter<'_>) -> Result {
    match refusal {
        Refusal::None => to.write_str("and has no system call of its own, or too many"),
        Refusal::Unclear(at) => {
            write!(to, "and what stands at {at:#x} of its text may be a system call, or not")
        }
        Refusal::Gs(at) => write!(to, "and at {at:#x} of its text it takes the register GS for itself"),
        Refusal::Neighbours(at) => {
            write!(to, "and the system call at {at:#x} of its text cannot be replaced")
        }
    }
}
