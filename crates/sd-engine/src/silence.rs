//! For how long another host may be silent before its session is over: as long as the kernel waits for an acknowledgement of what its own connections
//! have sent before they end with ETIMEDOUT (`net.ipv4.tcp_retries2`, ip-sysctl; RFC 1122, 4.2.3.5).

const FILE: &str = "/proc/sys/net/ipv4/tcp_retries2";
/// The kernel's default.
const RETRIES: u32 = 15;
/// The kernel's first and last time-out (TCP_RTO_MIN, TCP_RTO_MAX), by which it counts whatever the round trip is.
const RTO_NS: [u64; 2] = [200_000_000, 120_000_000_000];
/// An engine may stand still for a moment.
const LEAST_NS: u64 = 1_000_000_000;

/// As this network says.
pub(crate) fn silence_ns() -> u64 {
    let said = std::fs::read_to_string(FILE).ok();
    of(said.and_then(|text| text.trim().parse().ok()).unwrap_or(RETRIES))
}

/// The time-outs of so many retries, each twice as long as the one before, up to the last one.
fn of(retries: u32) -> u64 {
    let [first, last] = RTO_NS;
    let time_outs = std::iter::successors(Some(first), |ns| Some((2 * ns).min(last)));
    // Whatever is said, the sum ends.
    let all: u64 = time_outs.take(retries.min(255) as usize + 1).sum();
    all.max(LEAST_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_long_as_the_kernel_waits() {
        let ms = |retries| of(retries) / 1_000_000;
        assert_eq!([0, 3, 8, 9, 15].map(ms), [1_000, 3_000, 102_200, 204_600, 924_600]);
        assert_eq!(of(u32::MAX), of(255));
    }
}
