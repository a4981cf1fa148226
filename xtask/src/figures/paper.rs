//! The figures of "SocksDirect: Datacenter Sockets can be Fast and Compatible" (SIGCOMM 2019), as its text and tables
//! give them. Its machine: two Xeon E5-2698 v3, Linux 4.15. Curves that are only drawn there are not guessed here.

/// Table 2: operation, round trip or duration in microseconds.
pub(crate) const TABLE_2: &[(&str, f64)] = &[
    ("inter-core cache migration", 0.03),
    ("poll 32 empty queues", 0.04),
    ("system call", 0.05),
    ("spinlock, no contention", 0.10),
    ("allocate and free a buffer", 0.13),
    ("spinlock, contended", 0.20),
    ("lockless shared memory queue", 0.25),
    ("SocksDirect inside a host", 0.30),
    ("copy one page", 0.40),
    ("cooperative context switch", 0.52),
    ("map one page", 0.78),
    ("map 32 pages", 1.2),
    ("open a socket", 1.6),
    ("process wake-up", 2.8),
    ("Linux pipe", 8.0),
    ("Unix socket", 9.0),
    ("Linux TCP inside a host", 11.0),
    ("copy 32 pages", 13.0),
];

/// A row of Table 4 in nanoseconds: SocksDirect, Linux.
pub(crate) struct Breakdown {
    pub(crate) name: &'static str,
    pub(crate) socksdirect: Option<f64>,
    pub(crate) linux: Option<f64>,
}

const fn row(name: &'static str, socksdirect: Option<f64>, linux: Option<f64>) -> Breakdown {
    Breakdown { name, socksdirect, linux }
}

/// Table 4, what happens inside a host.
pub(crate) const TABLE_4: &[Breakdown] = &[
    row("per operation: total (fcntl)", Some(53.0), Some(413.0)),
    row("per operation: kernel crossing", None, Some(205.0)),
    row("per packet: total", Some(150.0), Some(5800.0)),
    row("per packet: buffer management", Some(50.0), Some(430.0)),
    row("per packet: process wake-up", None, Some(5000.0)),
    row("per KiB: total", Some(13.0), Some(160.0)),
    row("per connection: total", Some(700.0), Some(14_700.0)),
];

/// Fig. 7, §5.2.1: round trip of 8 bytes in nanoseconds.
pub(crate) const RTT_8_NS: (f64, f64, f64) = (300.0, 10_500.0, 250.0);
/// One-way messages of 8 bytes per second: SocksDirect, Linux, bare queue.
pub(crate) const RATE_8: (f64, f64, f64) = (23e6, 1.15e6, 27e6);
/// Fig. 9, §5.2.3: pairs and messages per second.
pub(crate) const SCALE: &[(f64, f64)] = &[(1.0, 23e6), (16.0, 306e6)];
/// The same for Linux: 1/40 at 16 pairs.
pub(crate) const SCALE_LINUX: &[(f64, f64)] = &[(1.0, 1.15e6), (16.0, 7.65e6)];
/// Chapter on scalability: the monitor's time for each connection.
pub(crate) const MONITOR_NS: f64 = 1e9 / 5.3e6;
/// §6: connections per second of one thread, and Linux's.
pub(crate) const CONNECTIONS_PER_S: (f64, f64) = (1.4e6, 70e3);
/// §4.1.1: take-over of a token in nanoseconds.
pub(crate) const TAKE_OVER_NS: f64 = 600.0;
/// Fig. 8, §5.2.1: round trip of 8 bytes between hosts: SocksDirect over RDMA, Linux (Table 2).
pub(crate) const RTT_HOSTS_NS: (f64, f64) = (1_700.0, 30_000.0);
/// One-way messages of 8 bytes per second between hosts: SocksDirect over RDMA, Linux, which is a fifteenth.
pub(crate) const RATE_8_HOSTS: (f64, f64) = (18e6, 1.2e6);
/// Chapter on scalability: small messages per second of a transport on the processor.
pub(crate) const CPU_TRANSPORT: f64 = 10.8e6;
/// vSocket (VEE 2019), §6.1.1: round trip of 1 byte: vSocket, and a virtual machine with the kernel's Open vSwitch.
pub(crate) const VSOCKET_RTT_NS: (f64, f64) = (7_000.0, 61_000.0);
/// vSocket, §6.1.2: one connection.
pub(crate) const VSOCKET_GBITS: f64 = 40.0;
/// vSocket, §6.1.3: the first connection, another one, and the kernel's: microseconds.
pub(crate) const VSOCKET_SET_UP_US: (f64, f64, f64) = (15_330.0, 595.0, 107.0);
