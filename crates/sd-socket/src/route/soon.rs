//! A route to a listener that is about to be there ("soon"): the monitor is asked again. Why it comes to an end:
//! `setup::first_contact`.

/// How often a side asks again, and how long it pauses before that.
pub(crate) const TRIES: u32 = 60;
pub(crate) const PAUSE_NS: u64 = 20_000;
/// After so many tries pauses are longer: whoever is waited for has to be found first (`sd-monitor/src/shell/expected.rs`).
const LONG_PAUSE_NS: u64 = 500_000;
/// So long the connecting side asks at most, whatever the monitor says.
const TIMEOUT_NS: u64 = 1_000_000_000;

pub(crate) fn pause(nanoseconds: u64) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: nanoseconds as i64 };
    // SAFETY: the kernel reads one timespec.
    unsafe { sd_sys::syscall!(libc::SYS_nanosleep, &raw const time, 0) };
}

/// Asks until the answer is another than "soon", with pauses.
pub(super) fn ask_until_known<T>(mut ask: impl FnMut() -> T, is_soon: impl Fn(&T) -> bool) -> T {
    let mut answer = ask();
    let (mut tries, mut begin) = (0, 0);
    while is_soon(&answer) {
        let now = sd_sys::time::now_ns();
        if tries == 0 {
            begin = now;
        } else if now - begin > TIMEOUT_NS {
            break;
        }
        pause(if tries < TRIES { PAUSE_NS } else { LONG_PAUSE_NS });
        tries += 1;
        answer = ask();
    }
    answer
}
