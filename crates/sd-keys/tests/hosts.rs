//! The hosts file: what it says, what it cannot mean, and that the longest prefix counts.

use proptest::prelude::*;
use sd_keys::hosts::{Carriers, Network, Tenant, tenant_id};
use sd_keys::{Hosts, Trust};
use sd_link::congestion::Congestion;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const KEY: &str = "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn a_file() {
    let text = format!(
        "# engines\n\nlisten [::]:7400 # all\nkey /etc/sd/key\nshared-key shared\n\
         host 10.0.0.0/8 10.0.0.1:7400 plain\n\
         host 10.1.0.0/16 10.1.0.1:7400 key={KEY} tenant=blue-1\n\
         \thost  10.1.2.3  10.1.0.1:7400  tenant=b key={KEY}\n\
         host fd00::/8 [fd00::1]:7400 shared\nhost ::ffff:192.168.0.0/112 192.168.0.1:1 shared\n"
    );
    let hosts = Hosts::parse(&text).unwrap();
    assert_eq!(hosts.listen, Some("[::]:7400".parse().unwrap()));
    assert_eq!(
        (hosts.key.clone(), hosts.shared_key.clone()),
        (Some("/etc/sd/key".into()), Some("shared".into()))
    );
    let line = |address| hosts.lookup(ip(address)).map(|host| host.line);
    assert_eq!(
        [
            "10.9.9.9",
            "10.1.9.9",
            "10.1.2.3",
            "::ffff:10.1.2.3",
            "fd12::9",
            "192.169.1.1",
            "192.168.0.77",
            "11.0.0.0",
            "::1"
        ]
        .map(line),
        [Some(6), Some(7), Some(8), Some(8), Some(9), None, Some(10), None, None]
    );
    let host = hosts.lookup(ip("10.1.9.9")).unwrap();
    assert_eq!((host.trust, host.tenant.as_deref()), (Trust::Key(KEY.parse().unwrap()), Some("blue-1")));
    assert_eq!(host.network.to_string(), "10.1.0.0/16");
    assert_eq!(hosts.trust_of_engine(ip("::ffff:10.0.0.1")), Some(Trust::Plain));
    assert_eq!(hosts.trust_of_engine(ip("10.0.0.2")), None);
    assert_eq!(hosts.iter().count(), 5);
    assert_eq!(Hosts::parse("trial off").unwrap().trial, Some(false));
    assert_eq!(Hosts::parse("").unwrap(), Hosts::default());
}

#[test]
fn what_it_cannot_mean() {
    for (text, line, said) in [
        ("hosts", 1, "no such word"),
        ("\nlisten", 2, "one word is wanted"),
        ("listen 1.2.3.4", 1, "not ADDRESS:PORT"),
        ("listen 1.2.3.4:0", 1, "port 0"),
        ("listen 1.2.3.4:1\nlisten 1.2.3.4:1", 2, "said twice"),
        ("key a b", 1, "one word is wanted"),
        ("key a\nkey b", 2, "said twice"),
        ("shared-key", 1, "one word is wanted"),
        ("host 10.0.0.0/8", 1, "host NETWORK"),
        ("host 10.0.0.0/8 10.0.0.1:1", 1, "has to be said"),
        ("host 10.0.0.0/8 10.0.0.1:1 tenant=a", 1, "has to be said"),
        ("host 10.0.0.0/8 10.0.0.1:1 plain plain", 1, "said twice"),
        ("host 10.0.0.0/8 10.0.0.1:1 plain shared", 1, "said twice"),
        ("host 10.0.0.0/8 10.0.0.1:1 plain tenant=a tenant=a", 1, "said twice"),
        ("host 10.0.0.0/8 10.0.0.1:1 plain tenant=", 1, "no name"),
        ("host 10.0.0.0/8 10.0.0.1:1 plain tenant=ä", 1, "no name"),
        ("host 10.0.0.0/8 10.0.0.1:1 Plain", 1, "no such word"),
        ("host 10.0.0.0/8 10.0.0.1:1 plain=1", 1, "no such word"),
        ("host 10.0.0.0/8 10.0.0.1:1 key=abc", 1, "not a key"),
        ("host 10.0.0.0/8 10.0.0.1:1 key=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", 1, "not a key"),
        ("host 10.0.0.1/8 10.0.0.1:1 plain", 1, "10.0.0.0/8?"),
        ("host 10.0.0.0/33 10.0.0.1:1 plain", 1, "no such prefix"),
        ("host 10.0.0.0/+8 10.0.0.1:1 plain", 1, "no such prefix"),
        ("host 10.0.0.0/ 10.0.0.1:1 plain", 1, "no such prefix"),
        ("host ::/129 10.0.0.1:1 plain", 1, "no such prefix"),
        ("host ::ffff:10.0.0.0/95 10.0.0.1:1 plain", 1, "mixes"),
        ("host example.org 10.0.0.1:1 plain", 1, "no address"),
        ("host 10.0.0.0/8 0.0.0.0:1 plain", 1, "no engine"),
        ("host 10.0.0.0/8 224.0.0.1:1 plain", 1, "no engine"),
        ("host 10.0.0.0/8 10.0.0.1:1 plain\nhost 10.0.0.0/8 10.0.0.2:1 plain", 2, "line 1 as well"),
        ("host 10.0.0.0/8 10.0.0.1:1 plain\nhost ::ffff:10.0.0.0/104 10.0.0.2:1 plain", 2, "line 1 as well"),
        (
            "shared-key s\nhost 10.0.0.0/8 10.0.0.1:1 plain\nhost 11.0.0.0/8 10.0.0.1:1 shared",
            3,
            "another way in line 2",
        ),
        ("host 10.0.0.0/8 10.0.0.1:1 shared", 1, "shared-key FILE"),
        ("host 10.0.0.0/8 a.example:1 shared", 1, "shared-key FILE"),
        ("host 10.0.0.0/8 10.0.0.1:1 plain each", 1, "not for an address"),
        ("host 10.0.0.0/8 a.example:0 plain", 1, "port 0"),
        ("host 10.0.0.0/8 a.example:+1 plain", 1, "neither ADDRESS:PORT nor NAME:PORT"),
        ("host 10.0.0.0/8 a..example:1 plain", 1, "neither ADDRESS:PORT nor NAME:PORT"),
        ("host 10.0.0.0/8 10.0.0.256:1 plain", 1, "neither ADDRESS:PORT nor NAME:PORT"),
        ("host 10.0.0.0/8 -a:1 plain", 1, "neither ADDRESS:PORT nor NAME:PORT"),
        ("host 10.0.0.0/8 a:1 plain\nhost 10.0.0.0/8 b:1 plain", 2, "line 1 as well"),
        ("shared-key s\nhost 10.0.0.0/8 a:1 plain\nhost 11.0.0.0/8 A:1 shared", 3, "another way in line 2"),
        ("rekey 0", 1, "no seconds"),
        ("pin -1", 1, "no number"),
        ("pin 4\npin 4", 2, "said twice"),
        ("trial 1", 1, "neither on nor off"),
        ("trial on\ntrial off", 2, "said twice"),
        ("rekey 1\nrekey 1", 2, "said twice"),
        ("resolve 604801", 1, "no seconds"),
        (&format!("shared-key s\nhost 10.0.0.0/8 10.0.0.1:1 key={KEY}"), 2, "`key FILE`"),
    ] {
        let error = Hosts::parse(text).unwrap_err();
        assert!(error.line == line && error.message.contains(said), "{text}\n{error}");
    }
}

#[test]
fn what_names_have_is_taken_within_networks_and_behind_addresses() {
    let text = "host 10.1.0.0/16 all:7 plain each tenant=a\nhost 10.1.0.5 10.9.0.1:7 plain\n\
                host 10.2.0.0/16 one.example.:8 plain\nrekey 60\nresolve 5\npin 6\n";
    let hosts = Hosts::parse(text).unwrap();
    assert_eq!((hosts.rekey_seconds, hosts.resolve_seconds), (Some(60), Some(5)));
    assert_eq!(hosts.pin_mebibytes, Some(6));
    assert_eq!(hosts.names().into_iter().collect::<Vec<_>>(), ["all", "one.example."]);
    assert!(hosts.lookup(ip("10.1.0.1")).is_none(), "nothing is known yet");
    let has = |name: &str, all: &[&str]| (name.to_owned(), all.iter().map(|text| ip(text)).collect());
    let seen = |answers: [(String, Vec<IpAddr>); 2]| {
        let (resolved, refused) = hosts.resolved(&answers.into(), ip("10.1.0.9"));
        let engine = |text| resolved.lookup(ip(text)).map(|host| host.engine.to_string()).unwrap_or_default();
        (["10.1.0.1", "10.1.0.5", "10.1.0.9", "10.2.3.4"].map(engine), refused.len())
    };
    let own = "10.1.0.9";
    let (found, refused) = seen([
        has("all", &[own, "::ffff:10.1.0.1", "10.1.0.5", "10.2.0.1", "fd00::1", "0.0.0.0"]),
        has("one.example.", &["10.2.0.9", "10.2.0.8", "224.0.0.1"]),
    ]);
    assert_eq!(found, ["10.1.0.1:7", "10.9.0.1:7", "", "10.2.0.8:8"]);
    // Two of other networks, two where no engine is, and one that a line says better.
    assert_eq!(refused, 5);
    // The order of what a name has says nothing.
    let (found, _) = seen([has("all", &[]), has("one.example.", &["10.2.0.8", "10.2.0.9"])]);
    assert_eq!(found, ["", "10.9.0.1:7", "", "10.2.0.8:8"]);
}

fn address() -> impl Strategy<Value = IpAddr> {
    // Few bits differ, so that networks lie in each other.
    prop_oneof![
        (0u32..16, 0u32..4).prop_map(|(high, low)| Ipv4Addr::from(high << 28 | low).into()),
        (0u128..16, 0u128..4).prop_map(|(high, low)| Ipv6Addr::from(high << 124 | low).into()),
    ]
}

proptest! {
    /// As a list in which each line is looked at.
    #[test]
    fn the_longest_prefix_counts(
        rows in prop::collection::vec((address(), 0u32..=128), 0..30),
        asked in prop::collection::vec(address(), 20),
    ) {
        let mut networks: Vec<Network> = Vec::new();
        let mut text = String::new();
        for (address, prefix) in rows {
            let most = if address.is_ipv4() { 32 } else { 128 };
            let keep = prefix % (most + 1);
            let masked: IpAddr = match address {
                IpAddr::V4(v4) => Ipv4Addr::from(u32::from(v4) & u32::MAX.checked_shl(32 - keep).unwrap_or(0)).into(),
                IpAddr::V6(v6) => Ipv6Addr::from(u128::from(v6) & u128::MAX.checked_shl(128 - keep).unwrap_or(0)).into(),
            };
            let network: Network = format!("{masked}/{keep}").parse().unwrap();
            prop_assert_eq!(network.to_string().parse::<Network>(), Ok(network));
            if !networks.contains(&network) {
                networks.push(network);
                text += &format!("host {network} 10.0.0.1:1 plain\n");
            }
        }
        let hosts = Hosts::parse(&text).unwrap();
        for address in asked {
            let fitting = networks.iter().filter(|network| network.contains(address));
            let best = fitting.max_by_key(|network| network.prefix());
            prop_assert_eq!(hosts.lookup(address).map(|host| &host.network), best);
        }
    }

    #[test]
    fn any_text(text in "[ -~\n]{0,200}", words in prop::collection::vec(
        prop_oneof![Just("host"), Just("listen"), Just("10.0.0.0/8"), Just("::/0"), Just("[::1]:1"), Just("plain"), Just("shared"),
            Just("key=x"), Just("\n"), Just("#"), Just("tenant=a"), Just("shared-key")], 0..30)) {
        let _ = Hosts::parse(&text);
        if let Ok(hosts) = Hosts::parse(&words.join(" ")) {
            for host in hosts.iter() {
                prop_assert!(hosts.lookup(ip("10.0.0.9")).is_some() || !host.network.contains(ip("10.0.0.9")));
            }
        }
    }
}

#[test]
fn what_carries_and_how_fast() {
    let text = "carrier datagram\ncongestion swift=250\nhost 10.0.0.0/8 10.0.0.1:1 plain tenant=blue\n\
                tenant red weight=3 rate=5000\nhost 11.0.0.0/8 10.0.0.1:1 plain tenant=red\n";
    let hosts = Hosts::parse(text).unwrap();
    assert_eq!(
        (hosts.carriers, hosts.congestion),
        (Some(Carriers::Datagrams), Some(Congestion::Swift(250_000)))
    );
    let red = Tenant { name: "red".into(), weight: 3, rate: Some(5000), namespaces: Vec::new() };
    assert_eq!(
        hosts.tenants(),
        [red, Tenant { name: "blue".into(), weight: 1, rate: None, namespaces: Vec::new() }]
    );
    for (text, said) in [
        ("carrier pigeon", "no carrier"),
        ("carrier trunk\ncarrier trunk", "said twice"),
        ("congestion bbr", "no controller"),
        ("congestion dctcp=5", "no controller"),
        ("congestion swift=0", "no microseconds"),
        ("tenant a rate=0", "no bytes a second"),
        ("tenant a weight=1001", "no weight"),
        ("tenant a\ntenant a", "said twice"),
        ("tenant", "tenant NAME"),
        ("tenant a b", "no such word"),
        ("tenant a netns=blue", "no absolute path"),
        ("tenant a netns=/", "no absolute path"),
        ("tenant a netns=/run/*/x", "no absolute path"),
        ("tenant a netns=/run/**", "no absolute path"),
        // They are found by trying.
        ("tenant costarring\nhost 1.2.3.4 1.2.3.4:5 plain tenant=liquid", "the same number"),
    ] {
        let error = Hosts::parse(text).unwrap_err();
        assert!(error.message.contains(said), "{text}: {error}");
    }
}

/// Two tenants with namespaces of their own have the same addresses behind different engines, and a third has the rest.
#[test]
fn tenants_with_namespaces_of_their_own() {
    let text = "host 10.0.0.0/8 1.1.1.1:1 plain tenant=blue\nhost 10.0.0.0/8 1.1.1.2:1 plain tenant=red\n\
                host 10.0.0.0/8 1.1.1.3:1 plain tenant=green\nhost 10.1.0.0/16 1.1.1.2:1 plain tenant=blue\n\
                tenant blue netns=/run/netns/blue netns=/run/netns/b-*\ntenant red netns=/proc/7/ns/net\n";
    let hosts = Hosts::parse(text).unwrap();
    let engine = |owner, address| hosts.lookup_in(owner, ip(address)).map(|host| host.engine.to_string());
    let [blue, red] = ["blue", "red"].map(tenant_id);
    for (owner, address, found) in [
        (blue, "10.2.0.1", Some("1.1.1.1:1")),
        (blue, "10.1.0.1", Some("1.1.1.2:1")),
        (red, "10.1.0.1", Some("1.1.1.2:1")),
        (red, "11.0.0.1", None),
        (0, "10.1.0.1", Some("1.1.1.3:1")),
        (tenant_id("green"), "10.1.0.1", None),
    ] {
        assert_eq!(engine(owner, address).as_deref(), found, "{address} of {owner}");
    }
    assert_eq!(hosts.lookup(ip("10.1.0.1")).unwrap().tenant.as_deref(), Some("green"));
    assert_eq!(hosts.tenants()[0].namespaces, ["/run/netns/blue", "/run/netns/b-*"]);
    let twice = format!("{text}host 10.0.0.0/8 1.1.1.9:1 plain tenant=red");
    assert!(Hosts::parse(&twice).unwrap_err().message.contains("line 2 as well"));
}
