//! Structures and numbers of libibverbs' ABI, as far as they are used: those of `infiniband/verbs.h` for libraries of the name
//! `libibverbs.so.1`, which never change, but grow at their ends in versions of single functions.
//!
//! Sizes and offsets are proved below against numbers that a C compiler gave for the header (rdma-core 44, x86-64), and once more by
//! `tests/layout.rs` where the header is installed. aarch64 has the same: no member's size or alignment differs there.

use std::ffi::{c_char, c_int, c_void};

/// Who a port is, in the network.
pub(crate) type Gid = [u8; 16];

/// Everything that is only handed on.
#[repr(C)]
pub(crate) struct Opaque {
    _bytes: [u8; 0],
}

pub(crate) type PollCq = unsafe extern "C" fn(*mut Cq, c_int, *mut WorkCompletion) -> c_int;
pub(crate) type ReqNotifyCq = unsafe extern "C" fn(*mut Cq, c_int) -> c_int;
pub(crate) type PostSend = unsafe extern "C" fn(*mut Qp, *mut SendRequest, *mut *mut SendRequest) -> c_int;
pub(crate) type PostRecv = unsafe extern "C" fn(*mut Qp, *mut RecvRequest, *mut *mut RecvRequest) -> c_int;

/// `struct ibv_context`, and in it `struct ibv_context_ops`: what the header's inline functions call.
#[repr(C)]
pub(crate) struct Context {
    pub(crate) device: *mut Opaque,
    _before_poll_cq: [*mut c_void; 11],
    pub(crate) poll_cq: Option<PollCq>,
    pub(crate) req_notify_cq: Option<ReqNotifyCq>,
    _before_post_send: [*mut c_void; 12],
    pub(crate) post_send: Option<PostSend>,
    pub(crate) post_recv: Option<PostRecv>,
    _after_post_recv: [*mut c_void; 5],
    pub(crate) cmd_fd: c_int,
    pub(crate) async_fd: c_int,
}

/// The beginning of `struct ibv_cq`.
#[repr(C)]
pub(crate) struct Cq {
    pub(crate) context: *mut Context,
}

/// The beginning of `struct ibv_qp`.
#[repr(C)]
pub(crate) struct Qp {
    pub(crate) context: *mut Context,
    _until_number: [*mut c_void; 5],
    pub(crate) handle: u32,
    pub(crate) number: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(crate) struct Mr {
    pub(crate) context: *mut Context,
    pub(crate) pd: *mut Opaque,
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub(crate) struct Channel {
    pub(crate) context: *mut Context,
    pub(crate) fd: c_int,
    pub(crate) refcnt: c_int,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) addr: u64,
    pub(crate) length: u32,
    pub(crate) lkey: u32,
}

/// `struct ibv_send_wr`, of whose union `wr` the member `rdma` is used.
#[repr(C)]
pub(crate) struct SendRequest {
    pub(crate) id: u64,
    pub(crate) next: *mut SendRequest,
    pub(crate) pieces: *mut Piece,
    pub(crate) pieces_len: c_int,
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    /// In network byte order.
    pub(crate) immediate: u32,
    pub(crate) remote_addr: u64,
    pub(crate) rkey: u32,
    /// What other requests have there.
    pub(crate) _other: [u32; 19],
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub(crate) struct RecvRequest {
    pub(crate) id: u64,
    pub(crate) next: *mut RecvRequest,
    pub(crate) pieces: *mut Piece,
    pub(crate) pieces_len: c_int,
}

/// `struct ibv_wc`. All numbers, whatever the device says.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct WorkCompletion {
    pub(crate) id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) vendor_error: u32,
    pub(crate) byte_len: u32,
    /// In network byte order.
    pub(crate) immediate: u32,
    pub(crate) qp_number: u32,
    pub(crate) source_qp: u32,
    pub(crate) flags: u32,
    pub(crate) pkey_index: u16,
    pub(crate) slid: u16,
    pub(crate) sl: u8,
    pub(crate) dlid_path_bits: u8,
}

/// `struct ibv_async_event`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct AsyncEvent {
    /// Of a union: a pointer, or a port's number in its first four bytes.
    pub(crate) element: [u32; 2],
    pub(crate) kind: u32,
    pub(crate) _none: u32,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Capacity {
    pub(crate) send_requests: u32,
    pub(crate) recv_requests: u32,
    pub(crate) send_pieces: u32,
    pub(crate) recv_pieces: u32,
    pub(crate) inline_bytes: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub(crate) struct QpInit {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut Opaque,
    pub(crate) capacity: Capacity,
    pub(crate) kind: u32,
    pub(crate) signals_all: c_int,
}

/// `struct ibv_ah_attr`, with its `struct ibv_global_route`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(crate) struct Route {
    pub(crate) gid: Gid,
    pub(crate) flow_label: u32,
    pub(crate) own_gid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) _none: u8,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    pub(crate) src_path_bits: u8,
    pub(crate) static_rate: u8,
    pub(crate) is_global: u8,
    pub(crate) port: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct QpAttributes {
    pub(crate) state: u32,
    pub(crate) current_state: u32,
    pub(crate) path_mtu: u32,
    pub(crate) migration: u32,
    pub(crate) qkey: u32,
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) other_qp: u32,
    pub(crate) access: u32,
    pub(crate) capacity: Capacity,
    pub(crate) route: Route,
    pub(crate) other_route: Route,
    pub(crate) pkey_index: u16,
    pub(crate) other_pkey_index: u16,
    pub(crate) _sqd_notify: u8,
    pub(crate) _sq_draining: u8,
    pub(crate) reads: u8,
    pub(crate) reads_answered: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) port: u8,
    pub(crate) timeout: u8,
    pub(crate) retries: u8,
    pub(crate) rnr_retries: u8,
    pub(crate) _other_port: u8,
    pub(crate) _other_timeout: u8,
    pub(crate) rate_limit: u32,
}

/// `struct ibv_port_attr`; libraries before its last members leave them as they are.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct PortAttributes {
    pub(crate) state: u32,
    pub(crate) max_mtu: u32,
    pub(crate) active_mtu: u32,
    pub(crate) gids: c_int,
    pub(crate) capabilities: u32,
    pub(crate) message_max: u32,
    pub(crate) bad_pkeys: u32,
    pub(crate) bad_qkeys: u32,
    pub(crate) pkeys: u16,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    pub(crate) lmc: u8,
    pub(crate) vls: u8,
    pub(crate) sm_sl: u8,
    pub(crate) subnet_timeout: u8,
    pub(crate) init_type: u8,
    pub(crate) width: u8,
    pub(crate) speed: u8,
    pub(crate) physical_state: u8,
    pub(crate) link_layer: u8,
    pub(crate) flags: u8,
    pub(crate) capabilities_2: u16,
}

pub(crate) const WR_RDMA_WRITE: u32 = 0;
pub(crate) const WR_RDMA_WRITE_WITH_IMM: u32 = 1;
pub(crate) const SEND_SIGNALED: u32 = 1 << 1;
pub(crate) const SEND_INLINE: u32 = 1 << 3;
pub(crate) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(crate) const ACCESS_REMOTE_WRITE: c_int = 1 << 1;
pub(crate) const QPT_RC: u32 = 2;
pub(crate) const QPS_INIT: u32 = 1;
pub(crate) const QPS_RTR: u32 = 2;
pub(crate) const QPS_RTS: u32 = 3;
pub(crate) const QPS_ERR: u32 = 6;
pub(crate) const WC_RDMA_WRITE: u32 = 1;
pub(crate) const WC_RECV_RDMA_WITH_IMM: u32 = 129;
pub(crate) const PORT_ACTIVE: u32 = 4;
pub(crate) const LINK_LAYER_ETHERNET: u8 = 2;

/// Of `enum ibv_event_type`.
pub(crate) mod event {
    pub(crate) const CQ_ERR: u32 = 0;
    pub(crate) const DEVICE_FATAL: u32 = 8;
    pub(crate) const PORT_ERR: u32 = 10;
    pub(crate) const GID_CHANGE: u32 = 18;
}

/// Of `enum ibv_qp_attr_mask`: which members of [`QpAttributes`] are told.
pub(crate) mod told {
    pub(crate) const STATE: i32 = 1 << 0;
    pub(crate) const ACCESS: i32 = 1 << 3;
    pub(crate) const PKEY_INDEX: i32 = 1 << 4;
    pub(crate) const PORT: i32 = 1 << 5;
    pub(crate) const ROUTE: i32 = 1 << 7;
    pub(crate) const PATH_MTU: i32 = 1 << 8;
    pub(crate) const TIMEOUT: i32 = 1 << 9;
    pub(crate) const RETRIES: i32 = 1 << 10;
    pub(crate) const RNR_RETRIES: i32 = 1 << 11;
    pub(crate) const RQ_PSN: i32 = 1 << 12;
    pub(crate) const READS: i32 = 1 << 13;
    pub(crate) const MIN_RNR_TIMER: i32 = 1 << 15;
    pub(crate) const SQ_PSN: i32 = 1 << 16;
    pub(crate) const READS_ANSWERED: i32 = 1 << 17;
    pub(crate) const OTHER_QP: i32 = 1 << 20;
}

/// Functions that have a symbol.
pub(crate) type GetDeviceList = unsafe extern "C" fn(*mut c_int) -> *mut *mut Opaque;
pub(crate) type FreeDeviceList = unsafe extern "C" fn(*mut *mut Opaque);
pub(crate) type GetDeviceName = unsafe extern "C" fn(*mut Opaque) -> *const c_char;
pub(crate) type OpenDevice = unsafe extern "C" fn(*mut Opaque) -> *mut Context;
pub(crate) type CloseDevice = unsafe extern "C" fn(*mut Context) -> c_int;
pub(crate) type QueryPort = unsafe extern "C" fn(*mut Context, u8, *mut PortAttributes) -> c_int;
pub(crate) type QueryGid = unsafe extern "C" fn(*mut Context, u8, c_int, *mut Gid) -> c_int;
pub(crate) type AllocPd = unsafe extern "C" fn(*mut Context) -> *mut Opaque;
pub(crate) type DeallocPd = unsafe extern "C" fn(*mut Opaque) -> c_int;
pub(crate) type RegMr = unsafe extern "C" fn(*mut Opaque, *mut c_void, usize, c_int) -> *mut Mr;
pub(crate) type DeregMr = unsafe extern "C" fn(*mut Mr) -> c_int;
pub(crate) type CreateChannel = unsafe extern "C" fn(*mut Context) -> *mut Channel;
pub(crate) type DestroyChannel = unsafe extern "C" fn(*mut Channel) -> c_int;
pub(crate) type CreateCq =
    unsafe extern "C" fn(*mut Context, c_int, *mut c_void, *mut Channel, c_int) -> *mut Cq;
pub(crate) type DestroyCq = unsafe extern "C" fn(*mut Cq) -> c_int;
pub(crate) type GetCqEvent = unsafe extern "C" fn(*mut Channel, *mut *mut Cq, *mut *mut c_void) -> c_int;
pub(crate) type AckCqEvents = unsafe extern "C" fn(*mut Cq, u32);
pub(crate) type GetAsyncEvent = unsafe extern "C" fn(*mut Context, *mut AsyncEvent) -> c_int;
pub(crate) type AckAsyncEvent = unsafe extern "C" fn(*mut AsyncEvent);
pub(crate) type CreateQp = unsafe extern "C" fn(*mut Opaque, *mut QpInit) -> *mut Qp;
pub(crate) type ModifyQp = unsafe extern "C" fn(*mut Qp, *mut QpAttributes, c_int) -> c_int;
pub(crate) type QueryQp = unsafe extern "C" fn(*mut Qp, *mut QpAttributes, c_int, *mut QpInit) -> c_int;
pub(crate) type DestroyQp = unsafe extern "C" fn(*mut Qp) -> c_int;

/// Name, size, and the offsets of the members that are used, of each structure: what a compiler of C says of the header.
macro_rules! layouts {
    ($($name:ident = $c:literal, $size:literal { $($member:ident = $c_member:literal @ $offset:literal),* $(,)? })*) => {
        const _: () = {
            $(assert!(size_of::<$name>() == $size || $size == 0);
            $(assert!(std::mem::offset_of!($name, $member) == $offset);)*)*
        };

        /// The same for a test that asks the compiler: structure, size (0: only its beginning is described), members.
        #[doc(hidden)]
        pub const LAYOUTS: &[(&str, usize, &[(&str, usize)])] =
            &[$(($c, $size, &[$(($c_member, $offset)),*])),*];
    };
}

layouts! {
    Context = "ibv_context", 0 {
        device = "device" @ 0, poll_cq = "ops.poll_cq" @ 96, req_notify_cq = "ops.req_notify_cq" @ 104,
        post_send = "ops.post_send" @ 208, post_recv = "ops.post_recv" @ 216, cmd_fd = "cmd_fd" @ 264, async_fd = "async_fd" @ 268,
    }
    Cq = "ibv_cq", 0 { context = "context" @ 0 }
    Qp = "ibv_qp", 0 { context = "context" @ 0, handle = "handle" @ 48, number = "qp_num" @ 52 }
    Mr = "ibv_mr", 48 { addr = "addr" @ 16, length = "length" @ 24, lkey = "lkey" @ 36, rkey = "rkey" @ 40 }
    Channel = "ibv_comp_channel", 16 { fd = "fd" @ 8, refcnt = "refcnt" @ 12 }
    Piece = "ibv_sge", 16 { addr = "addr" @ 0, length = "length" @ 8, lkey = "lkey" @ 12 }
    SendRequest = "ibv_send_wr", 128 {
        id = "wr_id" @ 0, next = "next" @ 8, pieces = "sg_list" @ 16, pieces_len = "num_sge" @ 24, opcode = "opcode" @ 28,
        flags = "send_flags" @ 32, immediate = "imm_data" @ 36, remote_addr = "wr.rdma.remote_addr" @ 40, rkey = "wr.rdma.rkey" @ 48,
    }
    RecvRequest = "ibv_recv_wr", 32 { id = "wr_id" @ 0, next = "next" @ 8, pieces = "sg_list" @ 16, pieces_len = "num_sge" @ 24 }
    WorkCompletion = "ibv_wc", 48 {
        id = "wr_id" @ 0, status = "status" @ 8, opcode = "opcode" @ 12, byte_len = "byte_len" @ 20, immediate = "imm_data" @ 24,
        qp_number = "qp_num" @ 28, flags = "wc_flags" @ 36, dlid_path_bits = "dlid_path_bits" @ 45,
    }
    AsyncEvent = "ibv_async_event", 16 { element = "element" @ 0, kind = "event_type" @ 8 }
    Capacity = "ibv_qp_cap", 20 { inline_bytes = "max_inline_data" @ 16 }
    QpInit = "ibv_qp_init_attr", 64 {
        send_cq = "send_cq" @ 8, recv_cq = "recv_cq" @ 16, capacity = "cap" @ 32, kind = "qp_type" @ 52, signals_all = "sq_sig_all" @ 56,
    }
    Route = "ibv_ah_attr", 32 { gid = "grh.dgid" @ 0, own_gid_index = "grh.sgid_index" @ 20, dlid = "dlid" @ 24, is_global = "is_global" @ 29, port = "port_num" @ 30 }
    QpAttributes = "ibv_qp_attr", 144 {
        path_mtu = "path_mtu" @ 8, rq_psn = "rq_psn" @ 20, sq_psn = "sq_psn" @ 24, other_qp = "dest_qp_num" @ 28,
        access = "qp_access_flags" @ 32, capacity = "cap" @ 36, route = "ah_attr" @ 56, pkey_index = "pkey_index" @ 120,
        reads = "max_rd_atomic" @ 126, reads_answered = "max_dest_rd_atomic" @ 127, min_rnr_timer = "min_rnr_timer" @ 128,
        port = "port_num" @ 129, timeout = "timeout" @ 130, retries = "retry_cnt" @ 131, rnr_retries = "rnr_retry" @ 132,
        rate_limit = "rate_limit" @ 136,
    }
    PortAttributes = "ibv_port_attr", 52 {
        state = "state" @ 0, active_mtu = "active_mtu" @ 8, gids = "gid_tbl_len" @ 12, message_max = "max_msg_sz" @ 20, lid = "lid" @ 34,
        link_layer = "link_layer" @ 46, capabilities_2 = "port_cap_flags2" @ 48,
    }
}
