//! The whole of it, once: two programs under `sd run`, a monitor, a connection, a look at its path.

use super::Check;
use crate::bench::{Job, Launch, Stage, System};
use crate::failure::Result;
use crate::peer::Work;

pub(super) fn check() -> Check {
    let name = "self-test";
    match ping_pong() {
        Ok(ns) => {
            Check::ok(name, format!("two programs under sd run: path shm, 8 B there and back in {ns:.0} ns"))
        }
        Err(failure) => {
            let advice = "see the lines above; sd ss shows why a connection uses the kernel";
            Check::fail(name, failure.text, advice)
        }
    }
}

/// Median round trip; an error unless it went over shared memory.
fn ping_pong() -> Result<f64> {
    let mut stage = Stage::new(Launch::Run)?;
    stage.prepare_socksdirect()?;
    let job = Job { work: Work::Latency, size: 8, millis: 20, count: 1 };
    stage.measure(System::Socksdirect, &job).map(|outcome| outcome.client.value)
}
