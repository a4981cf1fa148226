//! Waking processes of other users.
//!
//! A peer's eventfd is shared with its owner, who may have made it blocking and fill its counter between a look at it and
//! the write: the thread that writes would stay there. Among processes of one user that is no gain to anybody. For those of
//! another user the kernel signals the eventfd (`sd_sys::ringer`), which never waits. The monitor says who is a stranger.
//!
//! The context for that belongs to one address space: the child of a fork and the next image make their own. The end of a process that has one
//! waits until the kernel's readers are done (RCU), some 30 ms. So a monitor that was heard of a moment ago is asked to wake the first few hundred: programs
//! that live for milliseconds make none. Nor is there one where it is not to be had (fs.aio-max-nr, a filter): the monitor is asked each time.

use crate::fd::hidden::{Hidden, HiddenCell, put_back};
use crate::monitor::client;
use crate::process::PROCESS;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use sd_proto::Request;
use sd_shm::channel::Side;
use sd_sys::confine;
use sd_sys::lock::Lock;
use sd_sys::ringer::Ringer;

/// The context; zero: none yet.
static CONTEXT: AtomicUsize = AtomicUsize::new(0);
/// What it reads nothing from.
static FILE: HiddenCell = HiddenCell::empty();
/// The process that has made it.
static MAKER: AtomicU32 = AtomicU32::new(0);
static MAKING: Lock<()> = Lock::new(());

/// There is, or was, a channel to a stranger.
static ARE_THERE: AtomicBool = AtomicBool::new(false);
/// Wake-ups that the monitor was asked for before there was a context.
static ASKED: AtomicU32 = AtomicU32::new(0);
/// So many of them, at most.
const FEW: u32 = 256;
/// A monitor that was heard of so long ago runs.
const HEARD_NS: u64 = 1_000_000_000;

/// Wakes who watches an eventfd of the process, or of a thread of it, on the other side of a channel, of which this
/// process has the named side.
#[cold]
pub(super) fn ring(event_fd: i32, (channel, side): (u64, Side)) {
    let request = Request::Ring { channel, side: side as u32 };
    if is_first_asked(&request) || is_rung(event_fd) {
        return;
    }
    if confine::allows(libc::SYS_sendmsg) {
        client::tell(&request, &[]);
    } else {
        // The program wants to be confined to read and write.
        sd_sys::fd::eventfd_signal(event_fd);
    }
}

fn is_first_asked(request: &Request) -> bool {
    CONTEXT.load(Ordering::Relaxed) == 0
        && ASKED.load(Ordering::Relaxed) < FEW
        && !confine::is_on()
        && client::was_heard_within(HEARD_NS)
        && ASKED.fetch_add(1, Ordering::Relaxed) < FEW
        && client::tell_if_free(request) == Some(true)
}

/// The program may have closed what is read past libc.
pub(crate) fn drop_lost() {
    let file = FILE.raw();
    if file >= 0
        && !sd_sys::fd::is_open(file)
        && !sd_sys::mem::memfd_sealed(c"sd-nothing", 0).is_ok_and(|fresh| put_back(fresh, file))
    {
        FILE.lose();
    }
}

fn is_rung(event_fd: i32) -> bool {
    if !confine::allows(libc::SYS_io_submit) {
        return false;
    }
    if ringer().is_some_and(|ringer| ringer.ring(event_fd).is_ok()) {
        return true;
    }
    make() && ringer().is_some_and(|ringer| ringer.ring(event_fd).is_ok())
}

fn ringer() -> Option<ManuallyDrop<Ringer>> {
    let context = CONTEXT.load(Ordering::Acquire);
    (context != 0).then(|| ManuallyDrop::new(Ringer::of_parts(context, FILE.raw())))
}

/// A channel to a stranger is there.
pub(super) fn expected() {
    ARE_THERE.store(true, Ordering::Relaxed);
}

/// What a filter of the program's may forbid is done before.
pub(crate) fn before_filter() {
    if ARE_THERE.load(Ordering::Relaxed) && CONTEXT.load(Ordering::Relaxed) == 0 {
        make();
    }
}

/// Makes a context, unless this process has one.
#[cold]
fn make() -> bool {
    let Some(_making) = MAKING.try_lock() else { return false };
    let pid = sd_sys::fd::getpid() as u32;
    if MAKER.load(Ordering::Relaxed) == pid && CONTEXT.load(Ordering::Relaxed) != 0 {
        return false;
    }
    if !FILE.is_some() {
        let Ok(fresh) = sd_sys::mem::memfd_sealed(c"sd-nothing", 0) else { return false };
        FILE.put(Hidden::of(fresh));
    }
    let Ok(context) = Ringer::new_context() else { return false };
    MAKER.store(pid, Ordering::Relaxed);
    CONTEXT.store(context, Ordering::Release);
    true
}

/// In the child of a fork: it has its parent's file, but no context.
pub(crate) fn forked() {
    CONTEXT.store(0, Ordering::Relaxed);
    ASKED.store(0, Ordering::Relaxed);
    // SAFETY: the child has one thread.
    unsafe { MAKING.force_unlock() };
}

/// The process is another user's from now on, perhaps: its next message tells the monitor, which tells its peers.
pub fn may_have_become() {
    if PROCESS.channel_count.load(Ordering::Relaxed) != 0 {
        client::tell(&Request::Idle { channel: 0 }, &[]);
    }
}
