//! `cargo xtask cable`: two networks joined by a bad cable, to try things by hand. Needs no `netem`.
//!
//! ```text
//! cargo xtask cable --loss 1% --delay 1ms -- sh -c 'nsenter --net=$THERE iperf3 -s -1 -D; nsenter --net=$HERE iperf3 -c $THERE_ADDRESS'
//! ```
//! Both networks are made here, unless `--ends` names some that exist, which get a device `eth0` each. The cable lasts as long as the command,
//! or until it is interrupted. What the options of a cable mean other commands share: [`Bad`].

use harness::cable::{Cable, Counts, Faults};
use harness::network::Network;
use harness::{Result, fail};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    bad: Bad,
    /// Of the packets, in percent, so many come twice
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = ppm)]
    doubled: u32,
    /// Up to so much more delay, another for each packet: they overtake each other
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = time)]
    jitter: Duration,
    /// Networks that exist, as /run/netns/NAME or /proc/PID/ns/net
    #[arg(long, num_args = 2, value_names = ["HERE", "THERE"])]
    ends: Option<Vec<PathBuf>>,
    /// Decides which packets are lost
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// What to run; it finds the networks in $HERE and $THERE, their addresses in $HERE_ADDRESS and $THERE_ADDRESS
    #[arg(last = true)]
    command: Vec<String>,
}

/// What a cable does to packets, in both directions.
#[derive(clap::Args, Clone, Copy)]
pub(crate) struct Bad {
    /// Of the packets between the two hosts so many are lost, each way: 1%
    #[arg(long, value_name = "PERCENT", default_value = "0", value_parser = ppm)]
    pub(crate) loss: u32,
    /// A packet between the two hosts takes so much longer, each way: 1ms, 200us
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = time)]
    pub(crate) delay: Duration,
}

impl Bad {
    pub(crate) fn faults(self) -> Faults {
        Faults { lost_ppm: self.loss, delay: self.delay, ..Faults::default() }
    }
}

const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 79, 0, 1), Ipv4Addr::new(10, 79, 0, 2)];

pub(crate) fn run(options: &Options) -> Result<()> {
    let [here, there] = match options.ends.as_deref() {
        Some([here, there]) => [Network::at(here)?, Network::at(there)?],
        _ => [Network::new()?, Network::new()?],
    };
    let faults = Faults { doubled_ppm: options.doubled, jitter: options.jitter, ..options.bad.faults() };
    let seed = match options.seed {
        Some(seed) => seed,
        None => UNIX_EPOCH.elapsed()?.as_nanos() as u64,
    };
    let cable = Cable::join([(&here, ADDRESSES[0]), (&there, ADDRESSES[1])], faults, seed)?;
    let words = [("HERE", &here, ADDRESSES[0]), ("THERE", &there, ADDRESSES[1])];
    let Some((program, args)) = options.command.split_first() else {
        for (word, network, address) in words {
            println!("{word}={} {word}_ADDRESS={address}", network.path().display());
        }
        println!("--seed {seed}; enter one by: nsenter --net=$HERE; until it is interrupted");
        loop {
            std::thread::park();
        }
    };
    let mut command = Command::new(program);
    command.args(args);
    for (word, network, address) in words {
        command.env(word, network.path()).env(format!("{word}_ADDRESS"), address.to_string());
    }
    let status = command.status().map_err(|error| format!("{program}: {error}"))?;
    let Counts { taken, lost, doubled } = cable.counts();
    eprintln!("cable: --seed {seed}: {taken} packets, {lost} lost, {doubled} doubled");
    if status.success() { Ok(()) } else { fail!("{program}: {status}") }
}

/// `1%`, `0.5`: of a million.
fn ppm(text: &str) -> std::result::Result<u32, String> {
    match text.strip_suffix('%').unwrap_or(text).parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok((percent * 1e4).round() as u32),
        _ => Err("must be a percentage".to_owned()),
    }
}

/// `1ms`, `200us`, `0.1s`.
fn time(text: &str) -> std::result::Result<Duration, String> {
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let number =
        |(unit, seconds): &(&str, f64)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * seconds);
    match units.iter().find_map(number) {
        Some(seconds) if (0.0..=60.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        None if text == "0" => Ok(Duration::ZERO),
        _ => Err("must be a time up to a minute, as 1ms or 200us".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_and_times() {
        assert_eq!((ppm("1%"), ppm("0.25"), ppm("0")), (Ok(10_000), Ok(2_500), Ok(0)));
        assert_eq!(
            (time("1ms"), time("0.5s")),
            (Ok(Duration::from_millis(1)), Ok(Duration::from_millis(500)))
        );
        assert_eq!((time("200us"), time("0")), (Ok(Duration::from_micros(200)), Ok(Duration::ZERO)));
        for bad in ["", "x", "-1", "101%"] {
            ppm(bad).unwrap_err();
        }
        for bad in ["", "1", "-1ms", "61s"] {
            time(bad).unwrap_err();
        }
    }
}
