//! exec: sockets given to the next program of the process (ADR 17).
//!
//! ```text
//!  old image --state memfd, segments, control socket: inherited descriptors--> libsd.so in the new image
//! ```
//! Before exec it is decided whether the new program will load us (`target`). If so, what it needs to go on
//! with the same endpoints is written down (`image`) and left open; the start of the library in the new image
//! takes it over (`attach`), as the child of a fork would, and the monitor hears of nothing. If not, its
//! connections are bridged to kernel sockets (see `bridge`). A failed exec is undone.

mod attach;
mod cleared;
mod image;
mod listeners;
mod proof;
pub(crate) mod quiet;
pub(crate) mod target;

use crate::family::bridge::Reads;
use crate::fd::table::{self, Entry};
use crate::process::PROCESS;
use crate::socket::endpoint::EndpointExt;
use crate::socket::endpoint::NONBLOCK;
use alloc::vec::Vec;
pub(crate) use attach::{attach, take_over_words};
use cleared::Completed;
use core::ffi::c_char;
use core::sync::atomic::Ordering;
use image::Image;
pub use quiet::Variables;
use sd_shm::slab::{Endpoint, State};
pub use target::Program;
use target::{Answer, Company};

/// Connections, at most, that an exec bridges beside those on the standard numbers.
const BRIDGES_MAX: usize = 8;

/// An exec under way.
pub struct Prepared {
    image: Option<Image>,
    environment: Option<Completed>,
    company: Option<Company>,
}

impl Prepared {
    const NOTHING: Prepared = Prepared { image: None, environment: None, company: None };

    /// The environment to execute `program` with, where `given` is the caller's choice; it may be in `room`.
    ///
    /// # Safety
    /// As for execve(2).
    pub unsafe fn environment(
        &self,
        program: Program,
        given: *const *const c_char,
        room: &mut Variables,
    ) -> *const *const c_char {
        match (&self.environment, &self.image) {
            (Some(completed), _) => completed.as_ptr(),
            (None, Some(_)) => given,
            // SAFETY: by contract.
            (None, None) => unsafe { quiet::environment(program, given, room) },
        }
    }

    /// Executes the program, where another file is to be executed for it than the caller names: the errno, as it returns only when that failed.
    ///
    /// # Safety
    /// As for execve(2).
    pub unsafe fn execute(
        &self,
        arguments: *const *const c_char,
        environment: *const *const c_char,
    ) -> Option<sd_sys::Errno> {
        // SAFETY: by contract.
        self.company.as_ref().and_then(|company| unsafe { company.execute(arguments, environment) })
    }
}

/// Before exec of `program` with `environment`.
///
/// # Safety
/// The program's strings and the environment are what execve(2) wants.
pub(crate) unsafe fn prepare(program: Program, environment: *const *const c_char) -> Prepared {
    // SAFETY: by contract.
    let company = unsafe { target::accompany(program, environment) };
    // SAFETY: by contract.
    let prepared = unsafe { prepare_sockets(program, environment, company.is_some()) };
    Prepared { company, ..prepared }
}

/// Whether the library is brought into `program` by who executes it, so that this must be one that has it.
///
/// # Safety
/// As for [`prepare`].
pub(crate) unsafe fn is_accompanied(program: Program, environment: *const *const c_char) -> bool {
    // SAFETY: by contract.
    unsafe { target::wants_company(program, environment) }.is_some()
}

/// # Safety
/// As for [`prepare`].
unsafe fn prepare_sockets(
    program: Program,
    environment: *const *const c_char,
    accompanied: bool,
) -> Prepared {
    // A child of a clone that we have not seen has our table but none of our sockets.
    let is_known = || PROCESS.pid.load(Ordering::Relaxed) == sd_sys::fd::getpid();
    if PROCESS.slab_count.load(Ordering::Acquire) == 0 || !is_known() {
        return Prepared::NOTHING;
    }
    crate::setup::syn_sent::all_to_kernel();
    let mut sockets = Vec::new();
    table::for_each(0, u32::MAX, |fd, entry| {
        match entry {
            Entry::Socket(endpoint) if crate::fd::table::survives_exec(fd) => sockets.push((fd, endpoint)),
            // The next program has it without our knowing, and so would a relative that keeps it not be alone with it.
            Entry::Kernel(_) | Entry::Early if crate::fd::table::survives_exec(fd) => {
                crate::setup::watched::never(fd);
                sockets.extend(crate::fd::table::socket(fd).map(|endpoint| (fd, endpoint)));
            }
            _ => {}
        }
    });
    let (mut image, mut completed) = (None, None);
    if !sockets.is_empty() {
        // SAFETY: by contract.
        match unsafe { target::loads_us(program, environment, accompanied) } {
            // There is no such program, so exec will fail.
            None => return Prepared::NOTHING,
            // It is a stranger to the family (see `separate`).
            Some(_) if crate::family::separate::is_left_by_exec() => {}
            Some(Answer::Loaded) => image = Image::write(&sockets, false),
            Some(Answer::Forgotten) => {
                // SAFETY: by contract.
                completed = unsafe { Completed::of(environment) };
                image = completed.as_ref().and_then(|_| Image::write(&sockets, true));
            }
            Some(Answer::NotLoaded) => {}
        }
        if image.is_none() {
            give_to_stranger(&sockets);
        }
    }
    if image.is_none() && !crate::monitor::client::end_is_seen() {
        let_go();
    }
    Prepared { environment: completed.filter(|_| image.is_some()), image, company: None }
}

/// The exec has failed.
pub(crate) fn failed(prepared: Prepared) {
    if let Some(image) = prepared.image {
        image.undo();
    }
    if let Some(company) = prepared.company {
        company.dismiss();
    }
}

/// The program will only have what the kernel knows.
fn give_to_stranger(sockets: &[(i32, &'static Endpoint)]) {
    // A server that executes a helper has many connections open by accident; a bridge for each would
    // be a process each. Standard input and output are always meant.
    let few = sockets.len() <= BRIDGES_MAX;
    for &(fd, endpoint) in sockets {
        if table::socket(fd).is_none() {
            continue;
        }
        match endpoint.state_now() {
            State::Connected if (few || fd <= 2) && crate::epoll::hand_over(endpoint) => {}
            State::Connected if few || fd <= 2 => {
                let _ = crate::family::bridge::to_kernel_socket(endpoint, Reads::AsRead);
            }
            // The placeholder is shared with other sockets.
            State::Fresh | State::Bound => drop(crate::socket::kernel_socket::materialize(endpoint)),
            State::Listen => {
                give_listener(fd, endpoint);
                // The new program sees what comes to the kernel, and relatives may only keep it.
                crate::setup::withdrawn::cannot_take(fd);
            }
            _ => {}
        }
    }
}

/// The kernel's listener as the program has set it: ours is always non-blocking underneath (see `listen`).
fn give_listener(fd: i32, endpoint: &Endpoint) {
    let flags = if endpoint.flag(NONBLOCK) { libc::O_NONBLOCK } else { 0 };
    let _ = sd_sys::fd::fcntl(fd, libc::F_SETFL, flags as usize);
}

/// Without a monitor nobody sees that this image ends: a child that never registered lets go itself.
fn let_go() {
    if PROCESS.own_slab.load(Ordering::Acquire) != 0 {
        return;
    }
    let mut all = Vec::new();
    table::for_each(0, u32::MAX, |fd, entry| {
        if let Entry::Socket(endpoint) | Entry::Kernel(endpoint) = entry {
            all.push((fd, endpoint));
        }
    });
    for (fd, endpoint) in all {
        table::clear(fd);
        crate::socket::life::release(endpoint);
    }
}
