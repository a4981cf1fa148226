//! For processors that this is not written for: no program is one.

use core::convert::Infallible;
use core::ffi::CStr;

/// Which files are programs that the library can be brought into.
pub mod program {
    /// None.
    pub fn without_libc(_: i32) -> Option<core::convert::Infallible> {
        None
    }

    /// None.
    ///
    /// # Errors
    /// Always.
    pub fn can_be_led(_: i32) -> Result<(), crate::unled::Unled> {
        Err(crate::unled::Unled::Unknown)
    }
}

/// There is none.
#[derive(Debug)]
pub struct Tracer(Infallible);

/// ENOSYS.
///
/// # Errors
/// Always.
pub fn accompany(_: &CStr) -> sd_sys::Result<Tracer> {
    Err(sd_sys::Errno::ENOSYS)
}

impl Tracer {
    /// Never called.
    pub fn dismiss(self) {
        match self.0 {}
    }
}

/// The second way.
pub mod loader {
    use core::convert::Infallible;
    use core::ffi::{CStr, c_char};

    /// There is none.
    #[derive(Debug)]
    pub struct Loader(Infallible);

    impl Loader {
        /// ENOSYS.
        ///
        /// # Errors
        /// Always.
        pub fn of(_: i32, _: &CStr) -> sd_sys::Result<Loader> {
            Err(sd_sys::Errno::ENOSYS)
        }

        /// Never called.
        ///
        /// # Safety
        /// None is needed.
        pub unsafe fn execute(
            &self,
            _: &CStr,
            _: *const *const c_char,
            _: *const *const c_char,
        ) -> sd_sys::Errno {
            match self.0 {}
        }
    }
}
