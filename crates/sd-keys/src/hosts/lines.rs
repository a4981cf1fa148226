//! The words of a line.

use super::names::{Engines, Named};
use super::{Carriers, Host, SWIFT_US, Tenant, Trust};
use sd_link::congestion::Congestion;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

pub(super) fn once<T>(place: &mut Option<T>, value: T) -> Result<(), String> {
    if place.replace(value).is_some() { Err("said twice".into()) } else { Ok(()) }
}

pub(super) fn socket(text: &str) -> Result<SocketAddr, String> {
    has_port(text.parse().map_err(|_| format!("{text:?} is not ADDRESS:PORT"))?, text)
}

fn has_port(address: SocketAddr, text: &str) -> Result<SocketAddr, String> {
    if address.port() == 0 { Err(format!("{text:?}: port 0")) } else { Ok(address) }
}

pub(super) fn tenant(name: &str, rest: &[&str]) -> Result<Tenant, String> {
    if !is_name(name) {
        return Err(format!("{name:?} is no name for a tenant"));
    }
    let (mut weight, mut rate, mut namespaces) = (None, None, Vec::new());
    for word in rest {
        let number = |text: &str| text.parse::<u64>().ok().filter(|number| *number > 0);
        match word.split_once('=') {
            Some(("weight", text)) => {
                let number = number(text).filter(|weight| *weight <= 1000);
                once(&mut weight, number.ok_or(format!("{text:?} is no weight from 1 to 1000"))? as u32)?;
            }
            Some(("rate", text)) => {
                once(&mut rate, number(text).ok_or(format!("{text:?} are no bytes a second"))?)?;
            }
            Some(("netns", path)) if is_of_namespaces(path) => namespaces.push(path.to_owned()),
            Some(("netns", path)) => {
                return Err(format!("{path:?} is no absolute path with at most a * at its end"));
            }
            _ => return Err(format!("{word:?}: no such word (weight=NUMBER, rate=BYTES, netns=PATH)")),
        }
    }
    Ok(Tenant { weight: weight.unwrap_or(1), rate, namespaces, ..Tenant::new(name) })
}

fn is_of_namespaces(path: &str) -> bool {
    let name = path.strip_suffix('*').unwrap_or(path);
    name.len() > 1 && name.starts_with('/') && !name.contains('*')
}

pub(super) fn carriers(name: &str) -> Result<Carriers, String> {
    match name {
        "either" => Ok(Carriers::Either),
        "trunk" => Ok(Carriers::Trunk),
        "datagram" => Ok(Carriers::Datagrams),
        "rdma" => Ok(Carriers::Rdma),
        _ => Err(format!("{name:?} is no carrier (either, trunk, datagram, rdma)")),
    }
}

pub(super) fn congestion(name: &str) -> Result<Congestion, String> {
    let (name, target) = name.split_once('=').map_or((name, None), |(name, target)| (name, Some(target)));
    let target = target.map(|text| text.parse().ok().filter(|us| (1..=1_000_000).contains(us)).ok_or(text));
    match (name, target.transpose()) {
        ("dctcp", Ok(None)) => Ok(Congestion::Dctcp),
        ("newreno", Ok(None)) => Ok(Congestion::NewReno),
        ("swift", Ok(target)) => Ok(Congestion::Swift(1_000 * target.unwrap_or(SWIFT_US))),
        ("swift", Err(text)) => Err(format!("{text:?} are no microseconds from 1 to 1000000")),
        _ => Err(format!("{name:?} is no controller (dctcp, newreno, swift, swift=MICROSECONDS)")),
    }
}

/// What a line says of a host: with an address, or with a name in its place.
pub(super) enum Line {
    Host(Host),
    Named(Named),
}

pub(super) fn host(line: usize, network: &str, engine: &str, rest: &[&str]) -> Result<Line, String> {
    let network = network.parse()?;
    let (name, engine) = place(engine)?;
    let (mut trust, mut tenant, mut each) = (None, None, None);
    for word in rest {
        match word.split_once('=') {
            None if *word == "shared" => once(&mut trust, Trust::Shared)?,
            None if *word == "plain" => once(&mut trust, Trust::Plain)?,
            None if *word == "each" && name.is_some() => once(&mut each, ())?,
            None if *word == "each" => return Err("each is for a name, not for an address".into()),
            Some(("key", key)) => {
                let key = key.parse().map_err(|error| format!("key={key}: {error}"))?;
                once(&mut trust, Trust::Key(key))?;
            }
            Some(("tenant", name)) if is_name(name) => once(&mut tenant, name.to_owned())?,
            Some(("tenant", name)) => return Err(format!("{name:?} is no name for a tenant")),
            _ => {
                return Err(format!("{word:?}: no such word (key=BASE64, shared, plain, each, tenant=NAME)"));
            }
        }
    }
    let trust = trust.ok_or("how the engine is known has to be said: key=BASE64, shared or plain")?;
    let host = Host { network, engine, trust, tenant, owner: 0, line };
    Ok(match name {
        None => Line::Host(host),
        Some(name) => {
            let engines = if each.is_some() { Engines::Each } else { Engines::One };
            Line::Named(Named { name, engines, host })
        }
    })
}

/// ADDRESS:PORT or NAME:PORT; with a name, an address that stands for none.
fn place(text: &str) -> Result<(Option<String>, SocketAddr), String> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        let address = has_port(address, text)?;
        return match may_have_an_engine(address.ip()) {
            true => Ok((None, address)),
            false => Err(format!("no engine is at {}", address.ip())),
        };
    }
    let wrong = || format!("{text:?} is neither ADDRESS:PORT nor NAME:PORT");
    let (name, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    let port = port.parse().ok().filter(|_| is_number).ok_or_else(wrong)?;
    // As of RFC 1123, and with the underscores that some services have.
    let is_label = |label: &str| {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        (1..=63).contains(&label.len()) && label.bytes().all(fits) && !label.starts_with('-')
    };
    let whole = name.strip_suffix('.').unwrap_or(name);
    let last = whole.rsplit('.').next().unwrap_or_default();
    let is_name = whole.len() <= 253 && whole.split('.').all(is_label);
    if !is_name || last.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let nowhere = has_port(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port), text)?;
    Ok((Some(name.to_ascii_lowercase()), nowhere))
}

pub(super) fn may_have_an_engine(ip: IpAddr) -> bool {
    !ip.is_unspecified() && !ip.is_multicast()
}

/// Seconds from 1 to a week.
pub(super) fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("{text:?} is no number"))
}

pub(super) fn seconds(text: &str) -> Result<u64, String> {
    let seconds = text.parse().ok().filter(|seconds| (1..=604_800).contains(seconds));
    seconds.ok_or(format!("{text:?} are no seconds from 1 to 604800"))
}

pub(super) fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("{text:?} is neither on nor off")),
    }
}

fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=64).contains(&name.len()) && name.bytes().all(fits)
}
