//! Calls every function that libsd.so hooks, on the kernel's descriptors, and prints what came of each: the output must
//! be the same with and without the library (tests/pass_through.rs compares, and checks that none is missing).

mod create;
mod data;
mod privileges;
mod process;
mod report;
mod socket;
mod stdio;
mod wait;

fn main() {
    create::run();
    socket::run();
    data::run();
    wait::run();
    stdio::run();
    privileges::run();
    process::run();
}
