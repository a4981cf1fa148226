//! libibverbs, loaded when it is first asked for.
//!
//! Hosts without RDMA neither need it nor load it. Once loaded it stays: its providers have threads and handlers of their own.

use crate::abi;
use crate::error::{Absent, Error};
use std::ffi::{CStr, c_void};
use std::sync::OnceLock;

const NAME: &CStr = c"libibverbs.so.1";

/// One table: the member, its type, its symbol, the version in which it has that type.
macro_rules! functions {
    ($($member:ident: $kind:ident = $symbol:literal, $version:literal;)*) => {
        /// Functions of the library that have a symbol; the others are members of [`abi::Context`].
        pub(crate) struct Library {
            $(pub(crate) $member: abi::$kind,)*
        }

        impl Library {
            fn load(handle: *mut c_void) -> Result<Library, Error> {
                Ok(Library {
                    $($member: {
                        let address = symbol(handle, $symbol, $version)?;
                        // SAFETY: the library's function of this name and version has the C signature that the type states.
                        unsafe { std::mem::transmute::<*mut c_void, abi::$kind>(address) }
                    },)*
                })
            }
        }
    };
}

functions! {
    get_device_list: GetDeviceList = c"ibv_get_device_list", c"IBVERBS_1.1";
    free_device_list: FreeDeviceList = c"ibv_free_device_list", c"IBVERBS_1.1";
    get_device_name: GetDeviceName = c"ibv_get_device_name", c"IBVERBS_1.1";
    open_device: OpenDevice = c"ibv_open_device", c"IBVERBS_1.1";
    close_device: CloseDevice = c"ibv_close_device", c"IBVERBS_1.1";
    query_port: QueryPort = c"ibv_query_port", c"IBVERBS_1.1";
    query_gid: QueryGid = c"ibv_query_gid", c"IBVERBS_1.1";
    alloc_pd: AllocPd = c"ibv_alloc_pd", c"IBVERBS_1.1";
    dealloc_pd: DeallocPd = c"ibv_dealloc_pd", c"IBVERBS_1.1";
    reg_mr: RegMr = c"ibv_reg_mr", c"IBVERBS_1.1";
    dereg_mr: DeregMr = c"ibv_dereg_mr", c"IBVERBS_1.1";
    create_channel: CreateChannel = c"ibv_create_comp_channel", c"IBVERBS_1.0";
    destroy_channel: DestroyChannel = c"ibv_destroy_comp_channel", c"IBVERBS_1.0";
    create_cq: CreateCq = c"ibv_create_cq", c"IBVERBS_1.1";
    destroy_cq: DestroyCq = c"ibv_destroy_cq", c"IBVERBS_1.1";
    get_cq_event: GetCqEvent = c"ibv_get_cq_event", c"IBVERBS_1.1";
    ack_cq_events: AckCqEvents = c"ibv_ack_cq_events", c"IBVERBS_1.1";
    get_async_event: GetAsyncEvent = c"ibv_get_async_event", c"IBVERBS_1.1";
    ack_async_event: AckAsyncEvent = c"ibv_ack_async_event", c"IBVERBS_1.1";
    create_qp: CreateQp = c"ibv_create_qp", c"IBVERBS_1.1";
    modify_qp: ModifyQp = c"ibv_modify_qp", c"IBVERBS_1.1";
    query_qp: QueryQp = c"ibv_query_qp", c"IBVERBS_1.1";
    destroy_qp: DestroyQp = c"ibv_destroy_qp", c"IBVERBS_1.1";
}

/// The library, or why it is not there: the same each time, as a library that is installed later needs another process.
pub(crate) fn library() -> Result<&'static Library, Error> {
    static LIBRARY: OnceLock<Result<Library, Error>> = OnceLock::new();
    LIBRARY.get_or_init(|| load(NAME)).as_ref().map_err(Clone::clone)
}

fn load(name: &CStr) -> Result<Library, Error> {
    // SAFETY: the name ends with a zero byte. What a library does when it is loaded is trusted as all that the administrator has installed.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    match handle.is_null() {
        true => Err(Error::NoDevice(Absent::Library)),
        false => Library::load(handle),
    }
}

fn symbol(handle: *mut c_void, name: &'static CStr, version: &CStr) -> Result<*mut c_void, Error> {
    // SAFETY: the handle is of a library that is loaded and stays so; both names end with a zero byte.
    let address = unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) };
    match address.is_null() {
        true => Err(Error::NoDevice(Absent::Function(name))),
        false => Ok(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there() {
        let error = load(c"libibverbs-of-nobody.so.1").err();
        assert_eq!(error, Some(Error::NoDevice(Absent::Library)));
    }

    #[test]
    fn a_library_that_is_another() {
        let error = load(c"libc.so.6").err();
        assert_eq!(error, Some(Error::NoDevice(Absent::Function(c"ibv_get_device_list"))));
    }
}
