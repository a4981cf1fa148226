//! A chain of network functions: each process reads packets from standard input, counts them, and writes them to
//! standard output, one call per packet, as the paper's §5.3.4 has it.
//!
//! ```text
//! source --packets--> function --packets--> function ... --packets--> sink --result--> driver
//! ```
//! Over sockets every process is a program of its own. Over pipes they are children of the source.

use super::clock::{Clock, ticks};
use super::link::{Socket, result};
use super::{Options, Report};
use sd_cli::failure::{Context, Failure, Result, last_os_error};
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

/// A packet of 64 bytes behind its header of a pcap file.
const PACKET_LEN: usize = 16 + 64;

/// Sends packets for a while; how many.
pub(crate) fn source(output: &OwnedFd, options: &Options) -> Result<u64> {
    let clock = Clock::start(options.duration());
    let mut sent = 0u64;
    while sent == 0 || !clock.is_over(ticks()) {
        for _ in 0..16 {
            let mut packet = [0u8; PACKET_LEN];
            packet[16] = sent as u8;
            write_all(output.as_raw_fd(), &packet)?;
            sent += 1;
        }
    }
    Ok(sent)
}

/// Reads packets from standard input and writes them to standard output, until there are no more.
pub(crate) fn function(input: OwnedFd, output: OwnedFd) -> Result<()> {
    for (fd, standard) in [(input, 0), (output, 1)] {
        // SAFETY: no pointers; the standard descriptors are ours to replace.
        result(unsafe { libc::dup2(fd.as_raw_fd(), standard) } as isize).context("dup2")?;
    }
    let mut seen = [0u64; 256];
    let mut packet = [0u8; PACKET_LEN];
    while read_all(0, &mut packet)? {
        seen[packet[16] as usize] += 1;
        write_all(1, &packet)?;
    }
    std::hint::black_box(&seen);
    Ok(())
}

/// Takes packets until there are no more: how many, and how many per second from the first to the last.
pub(crate) fn sink(input: &OwnedFd) -> Result<Report> {
    let mut packet = [0u8; PACKET_LEN];
    let mut clock = None;
    let mut count = 0u64;
    while read_all(input.as_raw_fd(), &mut packet)? {
        clock.get_or_insert_with(|| Clock::start(std::time::Duration::ZERO));
        count += 1;
    }
    let Some(clock) = clock else { return Err(Failure::new("no packet came")) };
    let value = count.saturating_sub(1) as f64 / (clock.elapsed_ns() / 1e9);
    Ok(Report { value, count: Some(count), ..Report::default() })
}

/// The whole chain over pipes, in children of this process.
pub(crate) fn over_pipes(options: &Options) -> Result<Report> {
    let (mut input, output) = pipe()?;
    let cpu = |place: usize| options.cpus.get(place % options.cpus.len().max(1)).copied().unwrap_or(0);
    for place in 1..=options.count {
        let (next_input, next_output) = pipe()?;
        let output = output.as_raw_fd();
        child(input, cpu(place), move |input| {
            // SAFETY: a copy of the source's end, which would keep the chain open.
            unsafe { libc::close(output) };
            function(input, next_output)
        })?;
        input = next_input;
    }
    let (reports, report) = pipe()?;
    let source_end = output.as_raw_fd();
    child(input, cpu(options.count + 1), move |input| {
        // SAFETY: as above.
        unsafe { libc::close(source_end) };
        let json = serde_json::to_string(&sink(&input)?).context("result")?;
        write_all(report.as_raw_fd(), json.as_bytes())
    })?;
    super::pin(cpu(0))?;
    super::wait_for_go()?;
    let sent = source(&output, options)?;
    drop(output);
    let text = std::io::read_to_string(std::fs::File::from(reports)).context("result")?;
    let report: Report = serde_json::from_str(&text).context("result of the sink")?;
    if report.count == Some(sent) { Ok(report) } else { Err(Failure::new("packets were lost")) }
}

/// Forks a stage that takes the input with it.
fn child(input: OwnedFd, cpu: usize, work: impl FnOnce(OwnedFd) -> Result<()>) -> Result<()> {
    // SAFETY: the process has one thread.
    match unsafe { libc::fork() } {
        -1 => Err(last_os_error()).context("fork"),
        0 => {
            // SAFETY: integer arguments only.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            let done = super::pin(cpu).and_then(|()| work(input));
            // SAFETY: ends the child without running the parent's clean-up.
            unsafe { libc::_exit(i32::from(done.is_err())) }
        }
        _ => Ok(()),
    }
}

fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    let (input, output) = std::io::pipe().context("pipe")?;
    Ok((input.into(), output.into()))
}

/// The descriptor of a socket, for read and write.
pub(crate) fn descriptor(socket: Socket) -> OwnedFd {
    // SAFETY: the socket gives its descriptor away.
    unsafe { OwnedFd::from_raw_fd(socket.0.into_raw_fd()) }
}

/// False at the end of the input.
fn read_all(fd: i32, bytes: &mut [u8]) -> Result<bool> {
    let mut got = 0;
    while got < bytes.len() {
        let rest = &mut bytes[got..];
        // SAFETY: the slice is valid for writes of its length.
        match result(unsafe { libc::read(fd, rest.as_mut_ptr().cast(), rest.len()) }).context("read")? {
            0 if got == 0 => return Ok(false),
            0 => return Err(Failure::new("a packet was cut")),
            n => got += n,
        }
    }
    Ok(true)
}

fn write_all(fd: i32, bytes: &[u8]) -> Result<()> {
    let mut sent = 0;
    while sent < bytes.len() {
        let rest = &bytes[sent..];
        // SAFETY: the slice is valid for reads of its length.
        sent += result(unsafe { libc::write(fd, rest.as_ptr().cast(), rest.len()) }).context("write")?;
    }
    Ok(())
}
