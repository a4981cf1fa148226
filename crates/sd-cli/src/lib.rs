//! What the command `sd` and its benchmark, `sd-bench`, both need. `sd` measures nothing itself: whoever only runs programs
//! with the library needs no benchmark, and `sd bench` becomes the program beside it.
//!
//! | module | what |
//! |---|---|
//! | [`cli`] | the command line, `sd bench` included: one definition for help, errors, man pages and completions |
//! | [`failure`] | the one way in which a command fails |
//! | [`library`], [`place`] | where libsd.so and the monitor's socket are |
//! | [`client`], [`status`] | questions to the monitor, and what its answer lists |
//! | [`peers`] | other hosts' engines in it |
//! | [`program`], [`process`] | becoming another program; starting others and talking to them |
//! | [`scratch`] | a directory and a monitor that end with the command |
//! | [`table`] | columns of text |

pub mod cli;
pub mod client;
pub mod failure;
pub mod library;
pub mod peers;
pub mod place;
pub mod process;
pub mod program;
pub mod scratch;
pub mod status;
pub mod table;
