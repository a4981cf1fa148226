//! What a `syscall` instruction becomes, in bytes.
//!
//! ```text
//! text     jmp island                 over two instructions before it, which are six bytes
//!          syscall                    for calls that are the kernel's; others go on behind it
//! island   what was before it         mov %rcx,%rsi; mov %rbx,%rdi
//!          lea text(%rip),%rcx        the instruction would change rcx, too
//!          jmp *entry
//! ```
//!
//! So whoever looks where a thread stands that is in the kernel, or just back from it, as profilers do, finds it where it would stand without us.
//! The others are found where few look:
//!
//! ```text
//! text     jmp island                 five bytes, over the instruction and a neighbour that they replace
//! island   what was before it         pop %r12
//!          lea after(%rip),%rcx
//!          jmp *entry
//! after:   syscall
//!          what was behind it         push %r12
//!          jmp text                   behind what was replaced
//! ```
//!
//! That by which a program makes its threads stays where it is; behind it the thread forgets whose block it has inherited:
//!
//! ```text
//! island   mov $56,%eax; syscall
//!          test %eax,%eax; jne back
//!          mov block(%rip),%rcx; wrgsbase %rcx      of a thread that has none
//! back:    jmp text
//! ```
//!
//! Nothing here is unsafe. Tested by `tests/sites.rs`, which runs some.

use sd_attach::sites::Kind;

/// Of one site, at most.
pub(super) const ISLAND_LEN: usize = 64;
/// What is replaced, at least.
pub(super) const JUMP_LEN: usize = 5;

/// `jmp rel32` from a place to another.
pub(super) fn jump(from: usize, to: usize) -> Option<[u8; JUMP_LEN]> {
    let distance = i32::try_from((to as i64).checked_sub(from as i64 + JUMP_LEN as i64)?).ok()?;
    let [a, b, c, d] = distance.to_le_bytes();
    Some([0xe9, a, b, c, d])
}

/// The island of a site at `at`, which will be at `island`; `None` if they are too far apart.
pub(super) fn build(
    place: &mut [u8; ISLAND_LEN],
    island: usize,
    at: usize,
    kind: Kind,
    entry: usize,
) -> Option<()> {
    let mut code = Code::new(place);
    let replaced = kind.replaced();
    let instruction_at = kind.instruction_at();
    // `entry` stands at the island's end.
    let address_at = ISLAND_LEN - size_of::<usize>();
    match kind {
        Kind::Clone => {
            code.put(replaced)?;
            code.put(&[0x85, 0xc0, 0x75, 12])?;
            code.put(&[0x48, 0x8b, 0x0d])?;
            code.put_distance(address_at)?;
            code.put(&[0xf3, 0x48, 0x0f, 0xae, 0xd9])?;
            code.put(&jump(island + code.len, at + replaced.len())?)?;
            return code.end(address_at, entry);
        }
        Kind::Exit => code.put(replaced.get(..instruction_at)?)?,
        Kind::Number(number) => {
            code.put(&[0xb8])?;
            code.put(&number.to_le_bytes())?;
        }
        Kind::Any => {
            code.put(replaced)?;
            const LEA_LEN: usize = 7;
            let distance = (at + instruction_at) as i64 - (island + code.len + LEA_LEN) as i64;
            code.put(&[0x48, 0x8d, 0x0d])?;
            code.put(&i32::try_from(distance).ok()?.to_le_bytes())?;
            code.put(&[0xff, 0x25])?;
            code.put_distance(address_at)?;
            return code.end(address_at, entry);
        }
        Kind::Vfork => code.put(replaced.get(..instruction_at)?)?,
    }
    // lea 6(%rip),%rcx; jmp *N(%rip)
    const FAR_JUMP_LEN: u32 = 6;
    code.put(&[0x48, 0x8d, 0x0d])?;
    code.put(&FAR_JUMP_LEN.to_le_bytes())?;
    code.put(&[0xff, 0x25])?;
    code.put_distance(address_at)?;
    code.put(replaced.get(instruction_at..)?)?;
    code.put(&jump(island + code.len, at + replaced.len())?)?;
    code.end(address_at, entry)
}

pub(super) struct Code<'a> {
    place: &'a mut [u8],
    len: usize,
}

impl<'a> Code<'a> {
    pub(super) fn new(place: &'a mut [u8]) -> Code<'a> {
        Code { place, len: 0 }
    }

    #[cfg_attr(not(sd_freestanding), allow(dead_code, reason = "of `moved`"))]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn put(&mut self, bytes: &[u8]) -> Option<()> {
        self.place.get_mut(self.len..)?.get_mut(..bytes.len())?.copy_from_slice(bytes);
        self.len += bytes.len();
        Some(())
    }

    /// How far it is from behind this to a place of the island.
    fn put_distance(&mut self, to: usize) -> Option<()> {
        let distance = to.checked_sub(self.len + 4)?;
        self.put(&(distance as u32).to_le_bytes())
    }

    /// The word that the code reads, at its place.
    fn end(&mut self, at: usize, word: usize) -> Option<()> {
        (self.len <= at).then_some(())?;
        self.len = at;
        self.put(&word.to_le_bytes())
    }
}
