//! Programs that make system calls by an instruction of their own: Go programs that libc is linked into (cgo).
//!
//! ```text
//! program --syscall--> kernel                        as it was built
//! program --jmp--> island --jmp--> entry --number of interest?--> raw::by_instruction, on a stack of its own
//!                    ^--------------------\--any other: syscall, in the island
//! ```
//!
//! Go's standard library calls libc for names and users only; for sockets, files and epoll it has one `syscall` instruction
//! (`internal/runtime/syscall.Syscall6`), and its runtime has a few for itself. The constructor, which runs before the runtime does, looks for
//! those that a socket could pass through (`find`), and puts a jump to a piece of code of ours (`island`) in their place (`patch`): all of them, or none.
//! What comes out of them is answered as libc's `syscall` is, on a stack of the thread's own (`enter`), since a goroutine's has no room.
//!
//! Guarantees: a program that is not Go's, or whose runtime looks otherwise, is not touched, nor is it read beyond its table of
//! symbols in the first case; no call of the program's is left on the caller's stack; errno is kept.
//! Not here: programs without libc (static ones, and others that Go's own linker has made without cgo): nothing loads this library into them,
//! or their threads have no thread-local words of libc's ([ADR 108](../../../../docs/adr/0108-dynamic-go.md)).
//! Tested by `tests/sites.rs`, and the scenarios `go-*` of `tests/apps`.

mod enter;
mod find;
mod island;
mod patch;
mod program;

/// In the constructor: leads the program's own system calls to the library, if it is a program for that.
pub(crate) fn lead() {
    let Some(program) = program::go() else { return };
    let Some(sites) = find::sites(program.bytes()) else { return };
    if enter::is_ready() {
        patch::lead(&program, &sites, enter::address());
    }
}
