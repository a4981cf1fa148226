//! Where the `syscall` instructions are of a program that was not made for this: a static one of musl's or glibc's, in C or Rust. All of them are led,
//! since a socket could pass through any.
//!
//! `syscall` has two bytes, and a jump five. So a *window* is replaced: the instruction, and whole neighbours of it that together
//! have five bytes at least. They are executed elsewhere (`island` of `sd-preload`). Where those before it are enough, as `mov $number,%eax` is, the instruction
//! itself stays where it is, so whoever looks where a thread stands that is in the kernel (debuggers, profilers) finds it where it would be without us.
//!
//! | question | answer |
//! |---|---|
//! | is `0f 05` an instruction? | decoding from several places well before it ends in the same instructions, all such that compilers make, one of which sets rax; else the program is left alone |
//! | may a neighbour move? | nothing leads to a place within the window: far branches are searched in the whole text before. Near ones are searched as well, wherever bytes may be one; they are decoded only where no window is found so. Only the last instruction of a window leads elsewhere |
//! | may one be left out? | rt_sigreturn(2) always; and calls whose number stands before them and that no socket has to do with, where no window is found |
//!
//! Nothing here is unsafe. Tested by `tests/windows.rs`.

use crate::decode::{Flow, decode};
use crate::list::List;
use crate::segment::takes_gs;
use crate::sites::{is_gos, next_instruction};
use crate::targets::{NEAR, Targets, note_far};

/// One `syscall` instruction, and what is replaced with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Which text it is in.
    pub text: u16,
    /// How many bytes are replaced.
    pub len: u8,
    /// Where in them `syscall` is; behind the last of them it stays where it is.
    pub instruction_at: u8,
    /// Where in the text its first byte is.
    pub at: u32,
    /// Whether it is the one of musl's `__syscall_cp_asm`, in which threads are cancelled (pthread_cancel(3)).
    pub is_cancellable: bool,
    /// Whether it is one of Go's for all calls, in a program that is Go's ([`crate::sites`]).
    pub is_gos: bool,
}

/// What is replaced, at least: a jump.
const LEN_LEAST: usize = 5;
/// And at most, with neighbours on both sides.
pub const WINDOW_MAX: usize = 32;

/// All of a program, by their places.
#[derive(Debug)]
pub struct Windows(List<Window>);

impl Windows {
    /// Each of them.
    pub fn all(&self) -> &[Window] {
        self.0.all()
    }
}

/// Why a program is not led, and where in a text that is seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// No memory, no `syscall` at all, or too many.
    None,
    /// Bytes that may be an instruction, or not.
    Unclear(usize),
    /// No neighbours that may be moved.
    Neighbours(usize),
    /// It uses the register GS.
    Gs(usize),
}

/// All windows of a program's texts, or why it cannot be led by them. Allocates no memory but that of two lists.
pub fn windows<'a>(texts: impl Iterator<Item = &'a [u8]>) -> Result<Windows, Refusal> {
    let mut windows = Windows(List::new().ok_or(Refusal::None)?);
    for (text, bytes) in texts.enumerate() {
        if let Some(at) = takes_gs(bytes) {
            return Err(Refusal::Gs(at));
        }
        let mut candidates = List::new().ok_or(Refusal::None)?;
        let mut from = 0;
        while let Some(at) = next_instruction(bytes, from) {
            from = at + 1;
            candidates.add(Targets::new(at)).ok_or(Refusal::None)?;
        }
        note_far(bytes, candidates.all_mut());
        let mut free_from = 0;
        for far in candidates.all() {
            let Some((start, end, number)) = window(bytes, *far, free_from)? else { continue };
            free_from = end;
            let is_gos = is_gos(bytes, far.at);
            let stays = far.at - start >= LEN_LEAST && (is_gos || number.makes_no_thread());
            let window = Window {
                text: text as u16,
                len: (if stays { far.at } else { end } - start) as u8,
                instruction_at: (far.at - start) as u8,
                at: u32::try_from(start).map_err(|_| Refusal::None)?,
                is_cancellable: is_cancellable(bytes, far.at),
                is_gos,
            };
            windows.0.add(window).ok_or(Refusal::None)?;
        }
    }
    if windows.all().is_empty() { Err(Refusal::None) } else { Ok(windows) }
}

/// From where to where the window of what may be an instruction is, and the call's number. `None`: it is none, or one that is left out.
fn window(bytes: &[u8], far: Targets, free_from: usize) -> Result<Option<(usize, usize, Number)>, Refusal> {
    let at = far.at;
    if let Some(found) = numbered(bytes, far, free_from) {
        return Ok(Some(found));
    }
    let Some(chain) = Chain::to(bytes, at).ok_or(Refusal::Unclear(at))? else { return Ok(None) };
    let mut place = Place { at, before: chain.nearest(), targets: far };
    place.targets.note_possible(bytes);
    let mut number = place.number(bytes);
    let mut window = place.window(bytes, free_from);
    let mut look = |chain: &Chain| {
        place.targets = far;
        place.targets.note_near(bytes, chain.from, &chain.targets);
        (place.number(bytes), place.window(bytes, free_from))
    };
    if window.is_none() || number == Number::Unsure {
        (number, window) = look(&chain);
    }
    if window.is_none() {
        // What looks like a branch before the chain may be part of an instruction.
        let longer = Chain::agreed(bytes, at.saturating_sub(BEFORE_MAX), at).filter(|longer| longer.hits);
        (number, window) = longer.map_or((number, window), |longer| look(&longer));
    }
    let is_left_out = match number {
        Number::Is(RT_SIGRETURN) => return Ok(None),
        Number::Is(number) => window.is_none() && HARMLESS.contains(&i64::from(number)),
        _ => false,
    };
    match window {
        Some((start, end)) => Ok(Some((start, end, number))),
        None if is_left_out => Ok(None),
        None => Err(Refusal::Neighbours(at)),
    }
}

/// As `window`, of what most are: `mov $number,%eax; syscall`, to which no branch leads. What is around them need not be known.
fn numbered(bytes: &[u8], far: Targets, free_from: usize) -> Option<(usize, usize, Number)> {
    const SETS_EAX: u8 = 0xb8;
    let (at, start) = (far.at, far.at.checked_sub(LEN_LEAST)?);
    let [first, number @ ..] = *bytes.get(start..)?.first_chunk::<LEN_LEAST>()?;
    let number = u32::from_le_bytes(number);
    if first != SETS_EAX || number == RT_SIGRETURN || start < free_from {
        return None;
    }
    let mut targets = far;
    targets.note_possible(bytes);
    let is_led_to = (start + 1..=at).any(|place| targets.has(place));
    let chain = Chain::agreed(bytes, at.saturating_sub(BEFORE_LEAST), at).filter(|chain| chain.hits);
    let is_one = chain.is_some_and(|chain| chain.nearest().first() == Some(&start)) && !is_led_to;
    is_one.then_some((start, at + 2, Number::Is(number)))
}

/// Whether it is the one of musl's `__syscall_cp_asm`, which is in programs that can cancel a thread: `mov %r11,8(%rsp); syscall; ret`.
fn is_cancellable(bytes: &[u8], at: usize) -> bool {
    const BEFORE: &[u8] = &[0x4c, 0x89, 0x5c, 0x24, 0x08];
    bytes.get(..at).is_some_and(|before| before.ends_with(BEFORE)) && bytes.get(at + 2) == Some(&0xc3)
}

const RT_SIGRETURN: u32 = libc::SYS_rt_sigreturn as u32;

/// Calls that say nothing of a descriptor, and that neither begin nor end a thread.
const HARMLESS: &[i64] = &[
    libc::SYS_futex,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_arch_prctl,
    libc::SYS_set_tid_address,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_exit_group,
    libc::SYS_rt_sigprocmask,
    libc::SYS_tkill,
    libc::SYS_clock_gettime,
    libc::SYS_sched_yield,
    libc::SYS_getpid,
    libc::SYS_gettid,
];

/// So far before a place decoding begins. One of them at least is farther than [`SETS_RAX_WITHIN`].
const BEFORE: [usize; 3] = [96, 192, BEFORE_LEAST];
/// The nearest of them.
const BEFORE_LEAST: usize = 48;
/// The farthest of them.
const BEFORE_MAX: usize = 192;
/// From so many places it begins.
const STARTS: usize = 16;
/// So many of these must come to the same instructions.
const AGREE: usize = 3;
/// So many neighbours of an instruction may be replaced with it.
const NEIGHBOURS: usize = 6;
/// An instruction that sets rax is within so many bytes.
const SETS_RAX_WITHIN: usize = 180;

/// What stands around a `syscall` instruction.
struct Place {
    at: usize,
    /// The instructions before it, the nearest first: where they begin.
    before: [usize; 4],
    targets: Targets,
}

/// The number of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Number {
    /// It stands in the instruction before, and no other way leads here.
    Is(u32),
    /// It stands there, and another way may lead here.
    Unsure,
    /// It does not stand there.
    Unknown,
}

impl Number {
    /// It is known, and that of no call that may begin a thread, which has more in its island.
    fn makes_no_thread(self) -> bool {
        const MAKING: [i64; 4] = [libc::SYS_clone, libc::SYS_clone3, libc::SYS_fork, libc::SYS_vfork];
        matches!(self, Number::Is(number) if !MAKING.contains(&i64::from(number)))
    }
}

impl Place {
    /// The number of the call, as far as `targets` let it be known.
    fn number(&self, bytes: &[u8]) -> Number {
        let [before, ..] = self.before;
        let number = decode(bytes, before).filter(|_| before < self.at).and_then(|found| found.number);
        match number {
            Some(_) if self.targets.has(self.at) => Number::Unsure,
            Some(number) => Number::Is(number),
            None => Number::Unknown,
        }
    }

    /// From where to where: neighbours before it first, since the instruction that sets the number is often long enough.
    fn window(&self, bytes: &[u8], free_from: usize) -> Option<(usize, usize)> {
        let (starts, ends) = (self.starts(bytes, free_from), self.ends(bytes));
        (0..=NEIGHBOURS).find_map(|total| {
            (0..=total.min(self.before.len())).rev().find_map(|before| {
                let (start, end) = (*starts.get(before)?.as_ref()?, *ends.get(total - before)?.as_ref()?);
                let is_long_enough = (LEN_LEAST..=WINDOW_MAX).contains(&(end - start));
                let is_whole = !(start + 1..end).any(|place| self.targets.has(place));
                (is_long_enough && is_whole).then_some((start, end))
            })
        })
    }

    /// Where a window may begin, with so many instructions before this one.
    fn starts(&self, bytes: &[u8], free_from: usize) -> [Option<usize>; 5] {
        let mut starts = [None; 5];
        let goes_on = |at: usize| decode(bytes, at).is_some_and(|found| found.flow == Flow::On);
        let before = self.before.into_iter().filter(|before| *before < self.at);
        let all = core::iter::once(self.at).chain(before.take_while(|before| goes_on(*before)));
        let near = all.take_while(|start| *start >= free_from && start + NEAR >= self.at);
        starts.iter_mut().zip(near).for_each(|(place, start)| *place = Some(start));
        starts
    }

    /// Where it may end, with so many instructions behind.
    fn ends(&self, bytes: &[u8]) -> [Option<usize>; NEIGHBOURS + 1] {
        let mut ends = [None; NEIGHBOURS + 1];
        let (mut at, mut goes_on) = (self.at + 2, true);
        for end in &mut ends {
            if at >= self.at + NEAR {
                break;
            }
            *end = Some(at);
            let Some(found) = decode(bytes, at).filter(|found| goes_on && found.is_plausible) else { break };
            if found.flow == Flow::Syscall {
                break;
            }
            goes_on = found.flow == Flow::On;
            at += usize::from(found.len);
        }
        ends
    }
}

/// Instructions one behind the other, up to a place.
struct Chain {
    from: usize,
    /// Bit n: one begins at `from + n`.
    begins: [u64; (BEFORE_MAX + STARTS).div_ceil(64) + 1],
    /// One begins at the place itself.
    hits: bool,
    sets_rax: bool,
    /// How many there are.
    count: usize,
    /// Where the last four begin: the one of number n at n modulo four.
    last: [usize; 4],
    targets: Targets,
}

impl Chain {
    /// The one that leads to a `syscall`. `None`: not to be told. `Some(None)`: these bytes are no instruction.
    fn to(bytes: &[u8], at: usize) -> Option<Option<Chain>> {
        let chains =
            BEFORE.into_iter().filter_map(|before| Chain::agreed(bytes, at.saturating_sub(before), at));
        let mut clear = chains.filter(|chain| !chain.hits || chain.sets_rax);
        clear.next().map(|chain| Some(chain).filter(|chain| chain.hits))
    }

    /// The one that decoding comes to from several places, `last` the last of them.
    fn agreed(bytes: &[u8], last: usize, at: usize) -> Option<Chain> {
        let mut starts = last.saturating_sub(STARTS - 1)..=last;
        let chain = starts.by_ref().find_map(|from| Chain::from(bytes, from, at))?;
        // The text itself begins with an instruction.
        let mut agreeing = if chain.from == 0 { AGREE } else { 1 };
        for from in starts {
            match chain.is_joined(bytes, from, at) {
                Some(true) => agreeing += 1,
                Some(false) => return None,
                None => {}
            }
        }
        (agreeing >= AGREE).then_some(chain)
    }

    /// `None`: it ends before the place, with what is no instruction of a compiler's.
    fn from(bytes: &[u8], from: usize, at: usize) -> Option<Chain> {
        let mut chain = Chain {
            from,
            begins: Default::default(),
            hits: false,
            sets_rax: false,
            count: 0,
            last: [usize::MAX; 4],
            targets: Targets::new(at),
        };
        let mut now = from;
        while now < at {
            let found = decode(bytes, now).filter(|found| found.is_plausible)?;
            *chain.begins.get_mut((now - from) / 64)? |= 1 << ((now - from) % 64);
            *chain.last.get_mut(chain.count % 4)? = now;
            chain.count += 1;
            chain.targets.note(bytes, now, &found);
            chain.sets_rax |= found.sets_rax && now + SETS_RAX_WITHIN >= at;
            now += usize::from(found.len);
        }
        chain.hits = now == at;
        Some(chain)
    }

    /// Where the last ones begin, the nearest first.
    fn nearest(&self) -> [usize; 4] {
        core::array::from_fn(|n| {
            self.last.get(self.count.wrapping_sub(n + 1) % 4).copied().unwrap_or(usize::MAX)
        })
    }

    /// Whether decoding from another place comes to the same instructions, well before the place.
    fn is_joined(&self, bytes: &[u8], from: usize, at: usize) -> Option<bool> {
        let mut now = from;
        while now + NEAR / 2 < at {
            let place = now.checked_sub(self.from)?;
            if self.begins.get(place / 64).is_some_and(|word| word & 1 << (place % 64) != 0) {
                return Some(true);
            }
            now += usize::from(decode(bytes, now).filter(|found| found.is_plausible)?.len);
        }
        Some(false)
    }
}
