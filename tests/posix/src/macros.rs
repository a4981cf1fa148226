//! The two macros of the suite.

/// Prints one line of the transcript.
macro_rules! say {
    ($($words:tt)*) => { $crate::sys::out(&format!($($words)*)) };
}

/// Makes one libc call and keeps its value and errno.
macro_rules! call {
    ($call:expr) => {{
        // SAFETY: buffers are passed with their own lengths and outlive the call; wrong descriptors and deliberately
        // bad pointers are for the callee to refuse, which is what the suite looks at.
        let value = unsafe { $call };
        $crate::sys::Ret::of(value as i64)
    }};
}
