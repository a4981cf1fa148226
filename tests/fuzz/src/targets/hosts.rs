//! Text of a hosts file.

use sd_keys::Hosts;
use std::net::IpAddr;

pub(super) fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(hosts) = Hosts::parse(text) else { return };
    let engines = hosts.iter().map(|host| host.engine.ip());
    for address in
        engines.chain(["10.1.2.3", "::1", "::ffff:10.1.2.3"].map(|text| text.parse::<IpAddr>().unwrap()))
    {
        for owner in hosts.iter().map(|host| host.owner).chain([0]) {
            let fitting = hosts.iter().filter(|host| host.owner == owner && host.network.contains(address));
            let best = fitting.max_by_key(|host| host.network.prefix());
            assert_eq!(hosts.lookup_in(owner, address), best, "{address} of {owner}");
        }
    }
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let lines = [
        "listen [::]:7400\nkey a\nshared-key b\ntrial off",
        "host 10.0.0.0/8 10.0.0.1:1 plain\nhost 10.1.2.0/24 10.0.0.2:1 plain tenant=a",
        "tenant a netns=/run/netns/a-* netns=/b\nhost 10.0.0.0/8 10.0.0.1:1 plain tenant=a\nhost 10.0.0.0/8 10.0.0.1:1 plain",
        "key k\nhost ::/0 [::1]:1 key=hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo= # why",
        "shared-key s\nhost ::ffff:10.0.0.0/104 10.0.0.1:1 shared",
        "host 10.0.0.1/8 0.0.0.0:0 key=a shared tenant=",
    ];
    lines.map(|line| line.as_bytes().to_vec()).into()
}
