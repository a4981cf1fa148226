//! Runs the monitor as a process of its own and talks with it by hand.

mod authority;
mod bounds;
mod client;
mod cut_off;
mod death;
mod demote;
mod fuzz;
mod helpers;
mod holding;
mod hostile;
mod matching;
mod memory;
mod metrics;
mod offers;
mod peers;
mod process;
mod pumps;
mod quotas;
#[path = "../../../../tests/fuzz/src/random.rs"]
mod random;
mod remains;
mod restart;
mod routes;
mod server;
mod silent;
mod start;

/// Not a test: what [`server::Server`] starts, which is this very program.
#[test]
fn monitor_process() {
    let Some(socket) = std::env::var_os("SD_TEST_SOCKET") else { return };
    let policy = std::env::var_os("SD_TEST_POLICY").map(Into::into);
    let helper = std::env::var_os("SD_TEST_HELPER").map(Into::into);
    let pump = std::env::var_os("SD_TEST_PUMP").map(|_| sd_monitor::Pump::Late);
    let metrics = std::env::var("SD_TEST_METRICS").ok().map(|place| place.parse().unwrap());
    let promote = match std::env::var_os("SD_TEST_PROMOTE") {
        Some(_) => sd_monitor::Promote::Earned,
        None => sd_monitor::Promote::Nothing,
    };
    let options = sd_monitor::Options {
        socket: socket.into(),
        policy,
        helper,
        pump,
        metrics,
        promote,
        hosts: std::env::var_os("SD_TEST_HOSTS").map(Into::into),
        wander: None,
    };
    let ended = sd_monitor::run(options);
    if let Err(error) = &ended {
        eprintln!("failed: {error}");
    }
    std::process::exit(i32::from(ended.is_err()));
}
