//! What the carrier over RDMA costs between two ends of the first device, which have the names of its first two IPv4 addresses.
//!
//! `verbs round-trip|messages|bytes SIZE COUNT [sleep]` prints the median in microseconds, messages a second, megabytes a second. Each end has a
//! thread; `sleep`: they wait at the descriptor, else they look and yield, as rxe wants the processor too. What is longer than a packet is
//! several. In the lab: `cargo xtask rdma --one`, `our_carrier`.

use sd_carrier::{Carrier, Flushed, Received, Verbs, VerbsConfig};
use std::os::fd::AsRawFd;
use std::time::Instant;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// An end, with what it has received.
struct End {
    carrier: Verbs,
    came: usize,
    sleeps: bool,
}

impl End {
    /// Sends so many bytes in packets of this length at most, and flushes.
    fn send(&mut self, bytes: usize, packet_len: usize) -> Result<()> {
        let mut left = bytes;
        loop {
            let flushed = self.carrier.send(&mut |room| {
                let len = left.min(packet_len).min(room.len());
                room[..len].fill(left as u8);
                left -= len;
                (len > 0).then_some(len)
            });
            match flushed {
                Flushed::All if left == 0 => return Ok(()),
                Flushed::All => {}
                // What the other end says makes room.
                Flushed::Blocked => self.look()?,
                Flushed::Ended => return Err("the carrier has ended".into()),
            }
        }
    }

    /// Reads until so many bytes have come since the last time.
    fn receive(&mut self, bytes: usize) -> Result<()> {
        while self.came < bytes {
            self.look()?;
        }
        self.came -= bytes;
        Ok(())
    }

    fn look(&mut self) -> Result<()> {
        let came = &mut self.came;
        match self.carrier.receive(&mut |packet, _| *came += packet.len()) {
            Received::Ended => {
                return Err(format!("the carrier has ended: {:?}", self.carrier.state()).into());
            }
            Received::More => return Ok(()),
            Received::Drained => {}
        }
        if self.sleeps {
            let fd = self.carrier.fd().as_raw_fd();
            let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry of ours.
            unsafe { libc::poll(&raw mut poll, 1, 1000) };
            self.carrier.woken();
        } else {
            std::thread::yield_now();
        }
        Ok(())
    }
}

fn ends(sleeps: bool) -> Result<[End; 2]> {
    let device = sd_verbs::Device::all()?.into_iter().next().ok_or("no device")?;
    let context = device.open()?;
    let mut names = context.addresses(1)?;
    names.retain(|(_, address)| address.is_ipv4());
    let make = |which: usize| -> Result<Verbs> {
        let (gid_index, _) = *names.get(which).or(names.first()).ok_or("no name of an IPv4 address")?;
        Ok(Verbs::new(&context.domain()?, VerbsConfig { gid_index, ..VerbsConfig::default() }, 1)?)
    };
    let mut carriers = [make(0)?, make(1)?];
    let told = [carriers[0].end(), carriers[1].end()];
    carriers[0].connect(&told[1])?;
    carriers[1].connect(&told[0])?;
    Ok(carriers.map(|carrier| End { carrier, came: 0, sleeps }))
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (what, size, count) = match &words[..] {
        [what, size, count, ..] => (what.as_str(), size.parse::<usize>()?, count.parse::<usize>()?),
        _ => return Err("verbs round-trip|messages|bytes SIZE COUNT [sleep]".into()),
    };
    let is_round_trip = what == "round-trip";
    let [mut here, mut there] = ends(words.get(3).is_some_and(|word| word == "sleep"))?;
    let other = std::thread::spawn(move || -> Result<()> {
        for _ in 0..count {
            there.receive(size)?;
            if is_round_trip {
                there.send(size, size)?;
            }
        }
        // That all has come.
        there.send(1, 1)
    });
    let start = Instant::now();
    let mut round_trips = Vec::with_capacity(count);
    if is_round_trip {
        for _ in 0..count {
            let start = Instant::now();
            here.send(size, size)?;
            here.receive(size)?;
            round_trips.push(start.elapsed());
        }
        round_trips.sort_unstable();
    } else {
        here.send(size * count, size)?;
    }
    here.receive(1)?;
    let seconds = start.elapsed().as_secs_f64();
    other.join().map_err(|_| "the other end broke down")??;
    let value = match what {
        "round-trip" => round_trips.get(count / 2).ok_or("none was made")?.as_secs_f64() * 1e6,
        "messages" => count as f64 / seconds,
        _ => (size * count) as f64 / seconds / 1e6,
    };
    println!("{value}");
    Ok(())
}
