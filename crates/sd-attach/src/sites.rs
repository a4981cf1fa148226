//! Where the `syscall` instructions of a Go program are that a socket could pass through.
//!
//! | function | Go | the instruction and its neighbours |
//! |---|---|---|
//! | `internal/runtime/syscall.Syscall6` | 1.19 on | `mov %rcx,%rsi; mov %rbx,%rdi; syscall; cmp $-4095,%rax`: exactly one |
//! | `syscall.rawVforkSyscall` | where os/exec is used | `pop %r12; syscall; push %r12` |
//! | `runtime.epollcreate1`, `epollctl`, `epollwait` | up to 1.20 | `mov $number,%eax; syscall; mov %eax,N(%rsp); ret` |
//! | `runtime.write1` | | the same: what the runtime prints, to a standard stream |
//! | `runtime.clone` | static programs | `mov $56,%eax; syscall; cmp $0,%rax; je 5; mov %eax,N(%rsp); ret` |
//! | `runtime.exitThread` | static programs | `mov $60,%eax; syscall; int $3` |
//!
//! A program in which one of them looks otherwise, or is there twice, is none that this file knows; nor is a static one that has a libc in it, which makes the
//! threads then (cgo): it is told by set_tid_address(2), which each libc calls when it begins, and Go never does, and all its calls are led ([`crate::windows`]). The others, all in the runtime, are about memory,
//! threads, signals, clocks, and files and pipes that the runtime has opened itself, which are no sockets.
//! Nothing here is unsafe. Tested by `tests/sites.rs` on bytes.

/// One `syscall` instruction, and what is to stand in for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Site {
    /// Which text it is in, and where in that its first byte is that is replaced.
    pub text: usize,
    /// See `text`.
    pub at: usize,
    /// What it is.
    pub kind: Kind,
}

/// See the table above.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The one for all calls.
    Any,
    /// That of vfork.
    Vfork,
    /// For one call, by its number.
    Number(u32),
    /// That by which the runtime makes its threads, where libc does not.
    Clone,
    /// That by which they end.
    Exit,
}

/// Those of a program, at most.
pub const SITES_MAX: usize = 8;

/// What was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sites {
    found: [Option<Site>; SITES_MAX],
}

impl Sites {
    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &Site> {
        self.found.iter().flatten()
    }

    /// False if there is one of that kind already, or no room.
    fn add(&mut self, site: Site) -> bool {
        let place = self.found.iter_mut().find(|place| place.is_none_or(|other| other.kind == site.kind));
        match place {
            Some(place @ None) => {
                *place = Some(site);
                true
            }
            _ => false,
        }
    }
}

impl Kind {
    /// What is replaced of the program: instructions before `syscall`; and itself, and one behind, where five bytes need that.
    pub fn replaced(self) -> &'static [u8] {
        match self {
            Kind::Any => &ARGUMENTS,
            Kind::Vfork => &[0x41, 0x5c, 0x0f, 0x05, 0x41, 0x54],
            // The number is not looked at.
            Kind::Number(_) => &[0xb8, 0, 0, 0, 0, 0x0f, 0x05],
            Kind::Clone => &CLONE,
            Kind::Exit => &EXIT,
        }
    }

    /// Where from its beginning `syscall` is; behind it, where that stays.
    pub fn instruction_at(self) -> usize {
        match self {
            Kind::Any => ARGUMENTS.len(),
            Kind::Vfork => 2,
            Kind::Number(_) | Kind::Clone | Kind::Exit => 5,
        }
    }
}

const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// `mov %rcx,%rsi; mov %rbx,%rdi`
const ARGUMENTS: [u8; 6] = [0x48, 0x89, 0xce, 0x48, 0x89, 0xdf];
const CLONE: [u8; 7] = [0xb8, libc::SYS_clone as u8, 0, 0, 0, 0x0f, 0x05];
const EXIT: [u8; 7] = [0xb8, libc::SYS_exit as u8, 0, 0, 0, 0x0f, 0x05];
/// `cmp $0,%rax; je 5`: the child goes on elsewhere.
const IS_CHILD: [u8; 6] = [0x48, 0x83, 0xf8, 0x00, 0x74, 0x05];
/// `int $3`
const TRAP: [u8; 2] = [0xcd, 0x03];
/// `cmp $0xfffffffffffff001,%rax`
const COMPARE: [u8; 6] = [0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff];
/// `mov %eax,N(%rsp)`, N, and `ret`
const STORE: [u8; 3] = [0x89, 0x44, 0x24];
const RETURN: u8 = 0xc3;

/// Of epoll, and of what the runtime prints.
const EPOLL: [u32; 4] = [
    libc::SYS_epoll_create1 as u32,
    libc::SYS_epoll_ctl as u32,
    libc::SYS_epoll_wait as u32,
    libc::SYS_epoll_pwait as u32,
];
const WRITE: u32 = libc::SYS_write as u32;

/// What a `0f 05` is.
enum Meaning {
    Site(Kind),
    /// None of those that matter; or these two bytes are no instruction.
    Other,
    /// One that matters, in a form that is not known.
    Unknown,
}

/// Who makes a program's threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Threads {
    /// libc: the runtime's own way is not used.
    OfLibc,
    /// The runtime.
    OfRuntime,
}

/// All sites of a program's texts; `None` if it cannot be led by them.
pub fn sites<'a>(texts: impl Iterator<Item = &'a [u8]>, threads: Threads) -> Option<Sites> {
    let mut sites = Sites::default();
    for (text, bytes) in texts.enumerate() {
        let mut from = 0;
        while let Some(at) = next_instruction(bytes, from) {
            from = at + 1;
            if threads == Threads::OfRuntime && is_of_libc(bytes, at) {
                return None;
            }
            match meaning(bytes, at) {
                Meaning::Other => {}
                Meaning::Unknown => return None,
                Meaning::Site(Kind::Clone | Kind::Exit) if threads == Threads::OfLibc => {}
                Meaning::Site(kind) => {
                    let site = Site { text, at: at - kind.instruction_at(), kind };
                    if !sites.add(site) {
                        return None;
                    }
                }
            }
        }
    }
    let needed: &[Kind] = match threads {
        Threads::OfLibc => &[Kind::Any],
        Threads::OfRuntime => &[Kind::Any, Kind::Clone, Kind::Exit],
    };
    needed.iter().all(|kind| sites.iter().any(|site| site.kind == *kind)).then_some(sites)
}

/// Whether it is one that a goroutine may make on its stack: for any call, or one of a few.
pub(crate) fn is_gos(text: &[u8], at: usize) -> bool {
    matches!(meaning(text, at), Meaning::Site(Kind::Any | Kind::Vfork | Kind::Number(_)))
}

/// Whether there is a libc in a program's texts.
pub fn has_libc<'a>(mut texts: impl Iterator<Item = &'a [u8]>) -> bool {
    texts.any(|bytes| {
        let mut from = 0;
        let next = || {
            let at = next_instruction(bytes, from)?;
            from = at + 1;
            Some(at)
        };
        core::iter::from_fn(next).any(|at| is_of_libc(bytes, at))
    })
}

/// Whether it is the call by which a libc begins: `mov $218,%eax`, perhaps something between, `syscall`.
fn is_of_libc(text: &[u8], at: usize) -> bool {
    const SET_TID_ADDRESS: [u8; 5] = [0xb8, libc::SYS_set_tid_address as u8, 0, 0, 0];
    const WITHIN: usize = 24;
    text.get(at.saturating_sub(WITHIN)..at)
        .is_some_and(|before| before.windows(SET_TID_ADDRESS.len()).any(|bytes| bytes == SET_TID_ADDRESS))
}

fn meaning(text: &[u8], at: usize) -> Meaning {
    let before = |len: usize| text.get(at.checked_sub(len)?..at);
    let behind = text.get(at + SYSCALL.len()..).unwrap_or(&[]);
    if before(3).is_some_and(|before| ARGUMENTS.ends_with(before)) && behind.starts_with(&COMPARE) {
        let is_known = before(ARGUMENTS.len()) == Some(&ARGUMENTS);
        return if is_known { Meaning::Site(Kind::Any) } else { Meaning::Unknown };
    }
    if before(2) == Some(&[0x41, 0x5c]) && behind.starts_with(&[0x41, 0x54]) {
        return Meaning::Site(Kind::Vfork);
    }
    let Some([0xb8, a, b, c, d]) = before(5) else { return Meaning::Other };
    let number = u32::from_le_bytes([*a, *b, *c, *d]);
    match i64::from(number) {
        libc::SYS_clone if behind.starts_with(&IS_CHILD) => return Meaning::Site(Kind::Clone),
        libc::SYS_exit if behind.starts_with(&TRAP) => return Meaning::Site(Kind::Exit),
        _ => {}
    }
    let is_stored = behind.starts_with(&STORE) && behind.get(STORE.len() + 1) == Some(&RETURN);
    match (EPOLL.contains(&number), is_stored) {
        (true, true) => Meaning::Site(Kind::Number(number)),
        (true, false) => Meaning::Unknown,
        (false, true) if number == WRITE => Meaning::Site(Kind::Number(number)),
        (false, _) => Meaning::Other,
    }
}

/// The next `0f 05` from a place on.
pub(crate) fn next_instruction(text: &[u8], from: usize) -> Option<usize> {
    next_of([SYSCALL], text, from)
}

/// The next of these pairs of bytes from a place on. Programs have tens of megabytes, so the compiler is to look at many bytes at once.
#[inline(always)]
pub(crate) fn next_of<const N: usize>(wanted: [[u8; 2]; N], text: &[u8], from: usize) -> Option<usize> {
    const BLOCK: usize = 256;
    let is_wanted =
        |a: u8, b: u8| wanted.iter().fold(false, |any, pair| any | (pair[0] == a) & (pair[1] == b));
    let mut at = from;
    loop {
        let rest = text.get(at..)?;
        let (Some(these), Some(following)) = (rest.get(..BLOCK), rest.get(1..=BLOCK)) else {
            let mut pairs = rest.iter().zip(rest.iter().skip(1));
            return pairs.position(|(a, b)| is_wanted(*a, *b)).map(|place| at + place);
        };
        let pairs = || these.iter().zip(following).map(|(a, b)| is_wanted(*a, *b));
        if pairs().fold(false, |any, is_it| any | is_it) {
            return pairs().position(|is_it| is_it).map(|place| at + place);
        }
        at += BLOCK;
    }
}
