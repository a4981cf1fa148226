//! One end of a reliable connection: a queue pair (RC).
//!
//! ```text
//!  RESET ── new ──> INIT ── connect ──> RTR ──> RTS ── an error, or `end` ──> ERR
//! ```
//! Writes are done in order. A write wants a place at the other end, posted there before ([`Pair::expect`]): one that comes too early is
//! tried again for as long as `RNR_RETRIES` say, which here is for ever.

use crate::abi::{self, told};
use crate::device::{Domain, Mtu};
use crate::error::Error;
use crate::memory::{Lent, Source, Window};
use crate::queue::Queue;
use std::ptr::NonNull;

/// How a pair is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairConfig {
    pub port: u8,
    /// Which of the port's names this end has.
    pub gid_index: u32,
    /// Writes that may be under way.
    pub writes: u32,
    /// Places for the peer's writes.
    pub places: u32,
    /// So short ones go without the device's reading our memory.
    pub inline_bytes: u32,
}

/// Which end this is: told to the other host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    pub gid: [u8; 16],
    pub lid: u16,
    pub number: u32,
    /// Of the first packet.
    pub first: u32,
    pub mtu: Mtu,
}

/// One end of a reliable connection.
pub struct Pair {
    // Both outlive the pair.
    domain: Domain,
    queue: Queue,
    raw: NonNull<abi::Qp>,
    config: PairConfig,
    own: Address,
    inline_bytes: usize,
}

// SAFETY: as for contexts: the library's functions on a pair are thread safe, and methods that post take it alone.
unsafe impl Send for Pair {}

/// 4.096 us times two to the power of this: 67 ms until a packet is sent again.
const TIMEOUT: u8 = 14;
/// rxe takes 7 for ever, as all devices do with the next one: that the peer is gone would never be told.
const RETRIES: u8 = 6;
/// 7: for ever.
const RNR_RETRIES: u8 = 7;
/// 0.64 ms, `enum` of the specification: what a peer waits when no place was posted.
const MIN_RNR_TIMER: u8 = 12;
const NUMBER_BITS: u32 = (1 << 24) - 1;

impl Pair {
    /// Completions of both directions go to `queue`, which has room for all that may be under way. `first` is any number.
    pub fn new(domain: &Domain, queue: &Queue, config: PairConfig, first: u32) -> Result<Pair, Error> {
        let context = domain.context();
        let port = context.port(config.port)?;
        if !port.is_active {
            return Err(Error::PortDown(config.port));
        }
        let gid = context.gid(config.port, config.gid_index)?;
        let mut init = abi::QpInit {
            qp_context: std::ptr::null_mut(),
            send_cq: queue.raw(),
            recv_cq: queue.raw(),
            srq: std::ptr::null_mut(),
            capacity: abi::Capacity {
                send_requests: config.writes,
                recv_requests: config.places,
                send_pieces: 1,
                recv_pieces: 1,
                inline_bytes: config.inline_bytes,
            },
            kind: abi::QPT_RC,
            signals_all: 0,
        };
        // SAFETY: domain and queue are of open contexts and are held by the pair; the structure is read, and written with what it became.
        let raw = unsafe { (context.library().create_qp)(domain.raw(), &raw mut init) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_qp"))?;
        // SAFETY: the structure lives as long as the pair.
        let number = unsafe { (*raw.as_ptr()).number };
        let own = Address { gid, lid: port.lid, number, first: first & NUMBER_BITS, mtu: port.mtu };
        let inline_bytes = init.capacity.inline_bytes as usize;
        let pair = Pair { domain: domain.clone(), queue: queue.clone(), raw, config, own, inline_bytes };
        let attributes = abi::QpAttributes {
            state: abi::QPS_INIT,
            port: config.port,
            access: abi::ACCESS_REMOTE_WRITE as u32,
            ..Default::default()
        };
        pair.modify(attributes, told::STATE | told::PKEY_INDEX | told::PORT | told::ACCESS)?;
        Ok(pair)
    }

    /// What the other host is to know.
    pub fn address(&self) -> Address {
        self.own
    }

    /// Connects to the other end, which does the same with ours. Nobody waits: what is sent before it has done so is sent again.
    pub fn connect(&mut self, other: &Address) -> Result<(), Error> {
        let route = abi::Route {
            gid: other.gid,
            own_gid_index: u8::try_from(self.config.gid_index)
                .map_err(|_| Error::NoGid(self.config.gid_index))?,
            hop_limit: 64,
            dlid: other.lid,
            is_global: 1,
            port: self.config.port,
            ..Default::default()
        };
        let receive = abi::QpAttributes {
            state: abi::QPS_RTR,
            path_mtu: self.own.mtu.min(other.mtu).0,
            other_qp: other.number & NUMBER_BITS,
            rq_psn: other.first & NUMBER_BITS,
            min_rnr_timer: MIN_RNR_TIMER,
            route,
            ..Default::default()
        };
        let all = told::ROUTE | told::PATH_MTU | told::OTHER_QP | told::RQ_PSN | told::READS_ANSWERED;
        self.modify(receive, told::STATE | told::MIN_RNR_TIMER | all)?;
        let send = abi::QpAttributes {
            state: abi::QPS_RTS,
            sq_psn: self.own.first,
            timeout: TIMEOUT,
            retries: RETRIES,
            rnr_retries: RNR_RETRIES,
            ..Default::default()
        };
        let all = told::TIMEOUT | told::RETRIES | told::RNR_RETRIES | told::SQ_PSN | told::READS;
        self.modify(send, told::STATE | all)
    }

    /// Ends it: what waits comes back as flushed.
    pub fn end(&mut self) -> Result<(), Error> {
        self.modify(abi::QpAttributes { state: abi::QPS_ERR, ..Default::default() }, told::STATE)
    }

    /// Whether it has failed or was ended.
    pub fn is_ended(&self) -> Result<bool, Error> {
        let mut said = abi::QpAttributes::default();
        // SAFETY: all-zero is a value of it; it is only written.
        let mut init: abi::QpInit = unsafe { std::mem::zeroed() };
        let library = self.domain.context().library();
        // SAFETY: the pair lives; one structure of each kind is written.
        let errno =
            unsafe { (library.query_qp)(self.raw.as_ptr(), &raw mut said, told::STATE, &raw mut init) };
        Error::check("ibv_query_qp", errno)?;
        Ok(said.state == abi::QPS_ERR)
    }

    /// Posts a place for one of the peer's writes; its completion has this name.
    pub fn expect(&mut self, id: u64) -> Result<(), Error> {
        let mut request =
            abi::RecvRequest { id, next: std::ptr::null_mut(), pieces: std::ptr::null_mut(), pieces_len: 0 };
        let mut bad = std::ptr::null_mut();
        // SAFETY: the pair's context is open, and has the table that the header's inline functions use.
        let post = unsafe { (*self.domain.context().raw()).post_recv }
            .ok_or(Error::Verb { name: "ibv_post_recv", errno: libc::ENOSYS })?;
        // SAFETY: the request has no pieces and no successor, and is read before this returns.
        posted("ibv_post_recv", unsafe { post(self.raw.as_ptr(), &raw mut request, &raw mut bad) })
    }

    /// Writes bytes of `from` to a place in the peer's window, and tells it `immediate`. The completion has this name, where one `is_told`; each
    /// tells of all before it. A queue in which none is told fills up.
    pub fn write_with_immediate(
        &mut self,
        id: u64,
        from: (&Source, usize, usize),
        to: (&Window, u64),
        immediate: u32,
        is_told: bool,
    ) -> Result<(), Error> {
        let (source, offset, len) = from;
        let piece = source.piece(offset, len)?;
        let is_inline = len <= self.inline_bytes;
        let flags =
            if is_told { abi::SEND_SIGNALED } else { 0 } | if is_inline { abi::SEND_INLINE } else { 0 };
        self.write(id, piece, to, abi::WR_RDMA_WRITE_WITH_IMM, flags, immediate)
    }

    /// Writes bytes of `from` to a place in the peer's window, and tells nobody: the peer knows by the next write with an immediate, and so does the
    /// caller by its completion.
    pub fn write_silently(
        &mut self,
        id: u64,
        from: (&Lent, usize, usize),
        to: (&Window, u64),
    ) -> Result<(), Error> {
        let (lent, offset, len) = from;
        self.write(id, lent.piece(offset, len)?, to, abi::WR_RDMA_WRITE, 0, 0)
    }

    fn write(
        &mut self,
        id: u64,
        mut piece: abi::Piece,
        to: (&Window, u64),
        opcode: u32,
        flags: u32,
        immediate: u32,
    ) -> Result<(), Error> {
        let ((window, at), len) = (to, piece.length);
        let is_inside = at.checked_add(len.into()).is_some_and(|end| end <= window.len);
        let Some(remote_addr) = window.addr.checked_add(at).filter(|_| is_inside) else {
            let region_len = usize::try_from(window.len).unwrap_or(usize::MAX);
            return Err(Error::OutOfBounds { offset: at as usize, len: len as usize, region_len });
        };
        let mut request = abi::SendRequest {
            id,
            next: std::ptr::null_mut(),
            pieces: &raw mut piece,
            pieces_len: i32::from(len > 0),
            opcode,
            flags,
            immediate: immediate.to_be(),
            remote_addr,
            rkey: window.key,
            _other: [0; 19],
        };
        let mut bad = std::ptr::null_mut();
        // SAFETY: as in `expect`.
        let post = unsafe { (*self.domain.context().raw()).post_send }
            .ok_or(Error::Verb { name: "ibv_post_send", errno: libc::ENOSYS })?;
        // SAFETY: request and piece are read before this returns. The piece is of registered memory that is mapped until the device
        // reaches it no more; inline bytes, too, are read now.
        posted("ibv_post_send", unsafe { post(self.raw.as_ptr(), &raw mut request, &raw mut bad) })
    }

    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    fn modify(&self, mut attributes: abi::QpAttributes, told: i32) -> Result<(), Error> {
        let library = self.domain.context().library();
        // SAFETY: the pair lives; the structure is read.
        let errno = unsafe { (library.modify_qp)(self.raw.as_ptr(), &raw mut attributes, told) };
        Error::check("ibv_modify_qp", errno)
    }
}

/// A full queue is no fault.
fn posted(name: &'static str, errno: i32) -> Result<(), Error> {
    match errno {
        libc::ENOMEM => Err(Error::Full),
        errno => Error::check(name, errno),
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: it is destroyed once, before queue and domain; its completions that were not taken vanish with it.
        unsafe { (self.domain.context().library().destroy_qp)(self.raw.as_ptr()) };
    }
}
