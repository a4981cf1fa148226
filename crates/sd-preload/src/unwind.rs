//! Stands in for the unwinder that the standard library asks for.
//!
//! Nothing here unwinds: a panic aborts, and a backtrace is nobody's to print in a stranger's process. Without these
//! names the library would need libgcc_s.so.1, and each program that is executed would have to load it: more than
//! all the rest of our start-up. They are hidden, so that a program that unwinds finds the real ones.
//! Tested by `tests/exports.rs`.

/// `_URC_END_OF_STACK` of the C++ ABI for exceptions: a backtrace ends at once.
const END_OF_STACK: u32 = 5;

sd_sys::unwinder!(
    END_OF_STACK,
    "RaiseException, Resume, DeleteException, GetIP, GetIPInfo, SetIP, SetGR, GetCFA, GetLanguageSpecificData, \
     GetRegionStart, GetTextRelBase, GetDataRelBase, FindEnclosingFunction"
);
