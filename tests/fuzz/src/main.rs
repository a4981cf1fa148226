//! Coverage-guided fuzzing of whatever reads what others wrote: `cargo xtask fuzz`.
//!
//! | target | input | oracle |
//! |---|---|---|
//! | `messages` | bytes of a control message | decoding never panics, and what is decoded encodes to these bytes |
//! | `policy` | text of a policy file | parsing never panics, nor does asking |
//! | `ring` | a ring's memory, and what a peer writes there while cursors move | no look or grant outside the ring |
//! | `views` | the words of a channel and a slab | accessors stay within the segment |
//! | `image` | the words that an exec leaves for the next image | no crash of that image, in a process of its own |
//! | `handshake` | messages of another engine, changed ones, packets and greetings, to an engine | nothing but the right ones is taken, and they still are |
//! | `hosts` | text of a hosts file | parsing never panics, and who is found is found by looking at each line |
//! | `engine` | what another engine says and sends after keys, and what processes write into channels with ours | bounds of what waits early; a third engine's connections, slots and rings are left alone |
//! | `monitor` | messages with descriptors, from several clients, to a live monitor | it lives, and answers a stranger within 10 ms |
//!
//! `sd-fuzz TARGET SECONDS CORPUS LAST [SEED] [write]`: runs the corpus (a line of hexadecimal digits for each input), then
//! looks for inputs that reach new code for so long. The input under way is in the file LAST, should it be the end of the
//! process. With `write` the corpus is written anew: the smallest inputs that reach all that was reached. Built without
//! coverage it runs the corpus and random changes of it. Why an engine of our own: ADR 50.

mod corpus;
mod coverage;
mod engine;
mod random;
mod targets;

use std::io;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sd-fuzz: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> io::Result<()> {
    let [name, seconds, corpus, last, rest @ ..] = args else {
        return Err(io::Error::other("see the head of tests/fuzz/src/main.rs"));
    };
    let target = targets::named(name).ok_or_else(|| io::Error::other(format!("no target {name}")))?;
    let seconds: f64 = seconds.parse().map_err(io::Error::other)?;
    let seed = rest.first().and_then(|text| text.parse().ok()).unwrap_or(1);
    let writes = rest.iter().any(|word| word == "write");
    engine::Engine::new(target, last.as_ref(), seed)?.run(seconds, corpus.as_ref(), writes)
}
