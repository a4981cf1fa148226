//! Reading a `posix_spawn_file_actions_t`, which has no public reader.
//!
//! glibc's layout has been the same since 2.2, musl's since 1.1. Before anything is believed of a list, one that was made here with
//! known actions is looked at; with another layout nothing is read, and the real posix_spawn(3) is called.

use alloc::vec::Vec;
use core::ffi::{c_char, c_int};
use core::mem::MaybeUninit;
use libc::{mode_t, posix_spawn_file_actions_t};
use sd_sys::libcs;

/// A file action; paths belong to the list that it was read from.
pub(crate) enum Step {
    Close { fd: c_int },
    Duplicate { from: c_int, to: c_int },
    Open { fd: c_int, path: *const c_char, flags: c_int, mode: mode_t },
    ChangeDirectory { path: *const c_char },
    ChangeToFd { fd: c_int },
    CloseFrom { fd: c_int },
    Foreground { fd: c_int },
}

/// glibc's `posix_spawn_file_actions_t`, but for what is never read.
#[repr(C)]
struct List {
    allocated: c_int,
    used: c_int,
    first: *const Action,
}

/// glibc's `struct __spawn_action`.
#[repr(C)]
struct Action {
    kind: c_int,
    body: Body,
}

#[repr(C)]
union Body {
    fd: c_int,
    duplicate: (c_int, c_int),
    open: OpenBody,
    path: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct OpenBody {
    fd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
}

impl Action {
    /// `None` when it is of a kind that glibc did not have.
    fn step(&self) -> Option<Step> {
        let Action { kind, body } = self;
        // SAFETY: the kind says which body it is.
        unsafe {
            Some(match kind {
                0 => Step::Close { fd: body.fd },
                1 => Step::Duplicate { from: body.duplicate.0, to: body.duplicate.1 },
                2 => {
                    let OpenBody { fd, path, flags, mode } = body.open;
                    Step::Open { fd, path, flags, mode }
                }
                3 => Step::ChangeDirectory { path: body.path },
                4 => Step::ChangeToFd { fd: body.fd },
                5 => Step::CloseFrom { fd: body.fd },
                6 => Step::Foreground { fd: body.fd },
                _ => return None,
            })
        }
    }
}

/// musl's `struct fdop`: the last that was added comes first.
#[repr(C)]
struct Linked {
    next: *const Linked,
    previous: *const Linked,
    kind: c_int,
    fd: c_int,
    from: c_int,
    flags: c_int,
    mode: mode_t,
    /// A C string, from here on.
    path: [c_char; 0],
}

impl Linked {
    /// `None` when it is of a kind that musl did not have.
    fn step(&self) -> Option<Step> {
        let path = self.path.as_ptr();
        Some(match self.kind {
            1 => Step::Close { fd: self.fd },
            2 => Step::Duplicate { from: self.from, to: self.fd },
            3 => Step::Open { fd: self.fd, path, flags: self.flags, mode: self.mode },
            4 => Step::ChangeDirectory { path },
            5 => Step::ChangeToFd { fd: self.fd },
            _ => return None,
        })
    }
}

/// The steps of a list; `None` when it cannot be read.
///
/// # Safety
/// `given` is null or an initialised list.
pub(crate) unsafe fn read(given: *const posix_spawn_file_actions_t) -> Option<Vec<Step>> {
    if given.is_null() {
        return Some(Vec::new());
    }
    if !layout_is_known() {
        return None;
    }
    // SAFETY: by contract, and the layout is the known one.
    unsafe { steps(given) }
}

/// # Safety
/// `given` is an initialised list of the known layout.
unsafe fn steps(given: *const posix_spawn_file_actions_t) -> Option<Vec<Step>> {
    // SAFETY: by contract; a list of glibc's has `used` actions, one of musl's as many as are linked.
    unsafe {
        let list = &*(given as *const List);
        if !libcs::is_musl() {
            return (0..usize::try_from(list.used).ok()?).map(|at| (*list.first.add(at)).step()).collect();
        }
        let mut steps = Vec::new();
        let mut at = list.first.cast::<Linked>();
        while let Some(action) = at.as_ref() {
            steps.push(action.step()?);
            at = action.next;
        }
        steps.reverse();
        Some(steps)
    }
}

/// Descriptors that get another number.
pub(crate) fn duplicated(steps: &[Step]) -> Vec<c_int> {
    let source = |step: &Step| if let Step::Duplicate { from, .. } = *step { Some(from) } else { None };
    steps.iter().filter_map(source).collect()
}

/// Whether libc lays actions out as it always did.
fn layout_is_known() -> bool {
    let mut list = MaybeUninit::<posix_spawn_file_actions_t>::zeroed();
    let list = list.as_mut_ptr();
    // SAFETY: the list is initialised by libc, and destroyed. A zeroed one reads as empty. While glibc's has as many
    // actions as were added, its array is as long in any layout that has the numbers in these places.
    unsafe {
        if libc::posix_spawn_file_actions_init(list) != 0 {
            return false;
        }
        let added = libc::posix_spawn_file_actions_addclose(list, 71) == 0
            && libc::posix_spawn_file_actions_adddup2(list, 72, 73) == 0
            && libc::posix_spawn_file_actions_addopen(list, 74, c"/".as_ptr(), 75, 0o76) == 0;
        let counted = added && (libcs::is_musl() || (*(list as *const List)).used == 3);
        let known = counted
            && matches!(
                steps(list).as_deref(),
                Some([
                    Step::Close { fd: 71 },
                    Step::Duplicate { from: 72, to: 73 },
                    Step::Open { fd: 74, flags: 75, mode: 0o76, .. },
                ])
            );
        libc::posix_spawn_file_actions_destroy(list);
        known
    }
}
