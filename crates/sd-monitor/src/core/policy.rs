//! The policy file: who may use shared memory to reach what.
//!
//! ```text
//! # One rule per line; what a rule does not mention matches everything.
//! allow|deny|kernel|stay  [uid=NUMBER|NAME] [to=ADDRESS[/PREFIX]] [port=N[-M]]
//! stay                    [netns=NAME|PATH] and the same
//! default allow|deny|kernel
//! ```
//! Order does not matter: of the matching rules `deny` wins over `kernel`, and `kernel` over
//! `allow`. Without a matching rule the default counts, which is `allow` unless stated.
//!
//! A connection that the kernel has made may be moved to shared memory (`offers`) where it might have been there from the beginning,
//! unless a `stay` rule matches, which says nothing else. It may be about a network namespace that either end is in, by its name below
//! /run/netns or a path to it: the one that is there when the policy is read.
//!
//! A rule is about what is reached. A listener at all addresses is reached whatever address a client names, so a rule that
//! keeps a user from one of them keeps shared memory from leading him there by any other: the kernel, which knows where a
//! packet really went, decides then.

use sd_proto::Ip;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

/// What a rule says; a later one wins over an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Action {
    /// Shared memory may be used.
    Allow,
    /// The kernel's TCP is used.
    Kernel,
    /// The connection is refused.
    Deny,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Rule {
    /// None: it is only about connections that the kernel has made.
    action: Option<Action>,
    uid: Option<u32>,
    to: Option<(Ip, u32)>,
    ports: (u16, u16),
    /// By its cookie.
    netns: Option<u64>,
}

impl Rule {
    fn matches(&self, uid: u32, ip: Ip, port: u16) -> bool {
        self.uid.is_none_or(|want| want == uid)
            && self.to.is_none_or(|(net, prefix)| same_network(net, ip, prefix))
            && (self.ports.0..=self.ports.1).contains(&port)
    }

    /// It is about some of the addresses that a listener at all addresses has: a wildcard of IPv4, of IPv6, or both.
    fn is_about_wildcard(&self, uid: u32, wildcard: Ip, v6only: bool, port: u16) -> bool {
        const V4: Ip = Ip::v4([0; 4]);
        const V4_PREFIX: u32 = 96;
        let is_about = |(net, prefix): (Ip, u32)| {
            let within_v4 = prefix >= V4_PREFIX && same_network(V4, net, V4_PREFIX);
            let has_v4 = within_v4 || prefix < V4_PREFIX && same_network(net, V4, prefix);
            match wildcard.to_v4() {
                Some(_) => has_v4,
                None => !within_v4 || !v6only,
            }
        };
        self.to.is_some_and(is_about)
            && self.action.is_some_and(|action| action != Action::Allow)
            && self.uid.is_none_or(|want| want == uid)
            && (self.ports.0..=self.ports.1).contains(&port)
    }
}

/// A parsed policy. The default one allows everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Policy {
    rules: Vec<Rule>,
    default: Action,
}

impl Default for Policy {
    fn default() -> Self {
        Policy { rules: Vec::new(), default: Action::Allow }
    }
}

/// A line that is not a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PolicyError {
    /// From 1.
    pub(crate) line: usize,
    pub(crate) message: String,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.line, self.message)
    }
}

/// What names in a policy mean.
pub(crate) struct Find<'a> {
    /// The number of a user, by name.
    pub(crate) uid: &'a dyn Fn(&str) -> Option<u32>,
    /// The cookie of a network namespace, by its name or a path to it.
    pub(crate) netns: &'a dyn Fn(&str) -> Option<u64>,
}

impl Policy {
    /// Reads a policy.
    pub(crate) fn parse(text: &str, find: &Find<'_>) -> Result<Policy, PolicyError> {
        let mut policy = Policy::default();
        let mut has_default = false;
        for (index, line) in text.lines().enumerate() {
            let at = |message| PolicyError { line: index + 1, message };
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            match words.next() {
                None => {}
                Some("default") if has_default => return Err(at("a second default".into())),
                Some("default") => {
                    policy.default = default(words).map_err(at)?;
                    has_default = true;
                }
                Some(word) => policy.rules.push(rule(word, words, find).map_err(at)?),
            }
        }
        Ok(policy)
    }

    /// A number that follows from the rules: equal rules have equal numbers. Never zero.
    pub(crate) fn number(&self) -> u32 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish() as u32 | 1
    }

    /// It allows everything to everybody from the beginning of a connection.
    pub(crate) fn is_alike_for_all(&self) -> bool {
        self.rules.iter().all(|rule| rule.action.is_none()) && self.default == Action::Allow
    }

    /// How many of the connections that the kernel has made for a user may be moved to shared memory: `all`, `some`, or `none`.
    pub(crate) fn share_that_may_move(&self, uid: u32) -> &'static str {
        let about = |rule: &&Rule| rule.uid.is_none_or(|want| want == uid);
        let is_general = |rule: &Rule| rule.to.is_none() && rule.ports == (0, u16::MAX);
        let keeps = |rule: &&Rule| rule.action != Some(Action::Allow);
        let (mut own, mut allows) = (self.rules.iter().filter(about), self.rules.iter().filter(about));
        let has_default = self.default == Action::Allow;
        let is_none = self.rules.iter().filter(about).filter(keeps).any(is_general)
            || !has_default && !allows.any(|rule| !keeps(&rule));
        let is_all = !own.any(|rule| keeps(&rule)) && has_default;
        match (is_none, is_all) {
            (true, _) => "none",
            (false, true) => "all",
            (false, false) => "some",
        }
    }

    /// It has no rule.
    pub(crate) fn says_nothing(&self) -> bool {
        *self == Policy::default()
    }

    /// What is to be done with a connection.
    pub(crate) fn action(&self, uid: u32, ip: Ip, port: u16) -> Action {
        let matching = self.rules.iter().filter(|rule| rule.matches(uid, ip, port));
        matching.filter_map(|rule| rule.action).max().unwrap_or(self.default)
    }

    /// Whether a connection that the kernel has made may be moved to shared memory. It has two names of what was reached, where
    /// addresses are translated: each must allow it. `netns`: where its ends are.
    pub(crate) fn lets_move(&self, uid: u32, names: [(Ip, u16); 2], netns: [u64; 2]) -> bool {
        let is_there = |rule: &Rule| rule.netns.is_none_or(|one| netns.contains(&one));
        names.into_iter().all(|(ip, port)| {
            let stays = |rule: &Rule| rule.action.is_none() && is_there(rule) && rule.matches(uid, ip, port);
            self.action(uid, ip, port) == Action::Allow && !self.rules.iter().any(stays)
        })
    }
}

impl Policy {
    /// Whether a listener may be reached over shared memory by a user who may by the address that he names.
    pub(crate) fn allows_listener(&self, uid: u32, bound: Ip, v6only: bool, port: u16) -> bool {
        let about = |rule: &Rule| rule.is_about_wildcard(uid, bound, v6only, port);
        !bound.is_unspecified() || !self.rules.iter().any(about)
    }
}

fn action(word: &str) -> Option<Action> {
    match word {
        "allow" => Some(Action::Allow),
        "kernel" => Some(Action::Kernel),
        "deny" => Some(Action::Deny),
        _ => None,
    }
}

fn default<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<Action, String> {
    match (words.next().and_then(action), words.next()) {
        (Some(action), None) => Ok(action),
        _ => Err("expected \"default allow\", \"default kernel\" or \"default deny\"".into()),
    }
}

fn rule<'a>(first: &str, words: impl Iterator<Item = &'a str>, find: &Find<'_>) -> Result<Rule, String> {
    let unknown = || format!("unknown action {first:?}; expected allow, deny, kernel, stay or default");
    let action = if first == "stay" { None } else { Some(action(first).ok_or_else(unknown)?) };
    let mut rule = Rule { action, uid: None, to: None, ports: (0, u16::MAX), netns: None };
    let mut seen: Vec<&str> = Vec::new();
    for word in words {
        let (key, value) = word.split_once('=').ok_or_else(|| format!("{word:?} is not KEY=VALUE"))?;
        if seen.contains(&key) {
            return Err(format!("{key:?} is given twice"));
        }
        seen.push(key);
        match key {
            "uid" => rule.uid = Some(user(value, find.uid)?),
            "to" => rule.to = Some(network(value)?),
            "port" => rule.ports = ports(value)?,
            "netns" if action.is_none() => {
                let found = (find.netns)(value);
                rule.netns = Some(found.ok_or_else(|| format!("no network namespace {value:?}"))?);
            }
            "netns" => return Err("only a stay rule can be about a network namespace".to_owned()),
            _ => return Err(format!("unknown key {key:?}; expected uid, to, port or netns")),
        }
    }
    Ok(rule)
}

fn user(value: &str, uid_of: &dyn Fn(&str) -> Option<u32>) -> Result<u32, String> {
    let uid = value.parse().ok().or_else(|| uid_of(value));
    uid.ok_or_else(|| format!("no user {value:?}"))
}

fn ports(value: &str) -> Result<(u16, u16), String> {
    let (first, last) = value.split_once('-').unwrap_or((value, value));
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if first <= last => Ok((first, last)),
        _ => Err(format!("{value:?} is not a port or a range of ports")),
    }
}

fn network(value: &str) -> Result<(Ip, u32), String> {
    let wrong = || format!("{value:?} is not an address, with or without a prefix length");
    let (address, prefix) = match value.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix.parse::<u32>().map_err(|_| wrong())?)),
        None => (value, None),
    };
    let (ip, bits) = match address.parse().map_err(|_| wrong())? {
        IpAddr::V4(a) => (Ip::v4(a.octets()), 32),
        IpAddr::V6(a) => (Ip(a.octets()), 128),
    };
    let prefix = prefix.unwrap_or(bits);
    if prefix > bits {
        return Err(wrong());
    }
    Ok((ip, prefix + 128 - bits))
}

fn same_network(net: Ip, ip: Ip, prefix: u32) -> bool {
    let differing = u128::from_be_bytes(net.0) ^ u128::from_be_bytes(ip.0);
    differing.leading_zeros() >= prefix
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: Ip = Ip::v4([127, 0, 0, 1]);

    fn parse(text: &str) -> Result<Policy, PolicyError> {
        let find =
            Find { uid: &|name| (name == "www").then_some(33), netns: &|name| (name == "blue").then_some(7) };
        Policy::parse(text, &find)
    }

    fn action_of(text: &str, uid: u32, ip: Ip, port: u16) -> Action {
        parse(text).unwrap().action(uid, ip, port)
    }

    #[test]
    fn the_stronger_action_wins_in_any_order() {
        for text in ["allow\nkernel port=80\ndeny uid=33", "deny uid=www\nkernel port=80\nallow"] {
            assert_eq!(action_of(text, 33, LOCAL, 80), Action::Deny);
            assert_eq!(action_of(text, 34, LOCAL, 80), Action::Kernel);
            assert_eq!(action_of(text, 34, LOCAL, 81), Action::Allow);
        }
    }

    #[test]
    fn numbers() {
        let number = |text| parse(text).unwrap().number();
        assert_eq!(number("deny port=80 # web"), number("\ndeny port=80"));
        assert!(number("deny port=80") != number("deny port=81") && number("") != 0);
    }

    #[test]
    fn defaults() {
        assert_eq!(action_of("", 0, LOCAL, 1), Action::Allow);
        assert_eq!(action_of("# nothing\n\n", 0, LOCAL, 1), Action::Allow);
        let text = "default deny\nallow to=127.0.0.0/8 port=80-90 # web";
        assert_eq!(action_of(text, 0, LOCAL, 90), Action::Allow);
        assert_eq!(action_of(text, 0, LOCAL, 91), Action::Deny);
        assert_eq!(action_of(text, 0, Ip::v4([128, 0, 0, 1]), 80), Action::Deny);
        assert_eq!(action_of("default kernel", 0, LOCAL, 1), Action::Kernel);
    }

    #[test]
    fn networks() {
        let v6 = |last| Ip([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        assert_eq!(action_of("deny to=fd00::/64", 0, v6(9), 1), Action::Deny);
        assert_eq!(action_of("deny to=fd00::8/128", 0, v6(9), 1), Action::Allow);
        assert_eq!(action_of("deny to=0.0.0.0/0", 0, LOCAL, 1), Action::Deny);
        assert_eq!(action_of("deny to=0.0.0.0/0", 0, v6(9), 1), Action::Allow);
        assert_eq!(action_of("deny to=::/0", 0, LOCAL, 1), Action::Deny);
    }

    #[test]
    fn a_rule_for_one_address_holds_for_listeners_at_all() {
        let (any4, any6) = (Ip::v4([0; 4]), Ip([0; 16]));
        let allows = |text: &str, bound, v6only| parse(text).unwrap().allows_listener(33, bound, v6only, 80);
        for text in
            ["deny uid=33 to=127.0.0.0/8 port=80", "kernel to=10.0.0.1", "deny to=0.0.0.0/0", "deny to=::/0"]
        {
            assert!(!allows(text, any4, false), "{text}");
            assert!(!allows(text, any6, false), "{text}");
            assert!(allows(text, LOCAL, false), "{text}: one address is asked for by itself");
        }
        assert!(allows("deny to=127.0.0.0/8", any6, true));
        assert!(allows("deny to=fd00::/64", any4, false));
        assert!(!allows("deny to=fd00::/64", any6, true));
        for text in
            ["allow to=127.0.0.1", "deny uid=34 to=127.0.0.1", "deny to=127.0.0.1 port=81", "default deny"]
        {
            assert!(allows(text, any4, false), "{text}");
        }
    }

    #[test]
    fn what_stays_with_the_kernel() {
        let (seen, real) = ((LOCAL, 80), (Ip::v4([10, 0, 0, 2]), 8080));
        let moves = |text: &str, uid| parse(text).unwrap().lets_move(uid, [seen, real], [7, 8]);
        for text in [
            "",
            "stay uid=34",
            "stay port=81",
            "stay to=10.0.0.2 port=80",
            "allow",
            "deny port=81",
            "stay netns=blue port=9",
        ] {
            assert!(moves(text, 33), "{text}");
        }
        for text in [
            "stay",
            "stay uid=www",
            "stay netns=blue",
            "stay netns=blue port=80",
            "stay port=80",
            "stay port=8080",
            "stay to=127.0.0.0/8",
            "stay to=10.0.0.0/8",
            "allow\nstay",
            "kernel port=80",
            "deny to=10.0.0.2",
            "default kernel",
            "default deny\nallow port=80",
        ] {
            assert!(!moves(text, 33), "{text}");
        }
    }

    #[test]
    fn what_may_be_moved_at_all() {
        for (text, share) in [
            ("", "all"),
            ("allow\nstay uid=34", "all"),
            ("default kernel\nallow", "some"),
            ("stay port=80", "some"),
            ("stay to=10.0.0.0/8", "some"),
            ("deny uid=www port=80-81", "some"),
            ("default deny\nallow port=80", "some"),
            ("stay", "none"),
            ("kernel uid=www\nallow port=80", "none"),
            ("stay port=0-65535", "none"),
            ("default kernel", "none"),
            ("default kernel\nallow uid=34", "none"),
            ("default deny\nstay port=80", "none"),
        ] {
            assert_eq!(parse(text).unwrap().share_that_may_move(33), share, "{text}");
        }
    }

    #[test]
    fn what_stays_says_nothing_of_other_connections() {
        assert_eq!(action_of("stay", 33, LOCAL, 80), Action::Allow);
        assert_eq!(action_of("stay\ndefault deny", 33, LOCAL, 80), Action::Deny);
        assert_eq!(action_of("stay\nkernel uid=33", 33, LOCAL, 80), Action::Kernel);
        let stays = parse("stay to=127.0.0.1").unwrap();
        assert!(stays.allows_listener(33, Ip::v4([0; 4]), false, 80) && stays.is_alike_for_all());
        assert!(!stays.says_nothing() && parse("# none").unwrap().says_nothing());
        let elsewhere = parse("stay netns=blue").unwrap();
        assert!(
            elsewhere.lets_move(33, [(LOCAL, 80); 2], [8, 9])
                && !elsewhere.lets_move(33, [(LOCAL, 80); 2], [8, 7])
        );
        assert!(!parse("stay\nkernel port=1").unwrap().is_alike_for_all());
        assert_ne!(stays.number(), parse("").unwrap().number());
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        let cases = [
            ("allow\nforbid", 2, "unknown action \"forbid\""),
            ("deny uid=nobody-here", 1, "no user"),
            ("deny port=90-80", 1, "not a port"),
            ("deny port=70000", 1, "not a port"),
            ("deny to=1.2.3.4/33", 1, "not an address"),
            ("deny to=1.2.3", 1, "not an address"),
            ("deny to", 1, "not KEY=VALUE"),
            ("deny colour=red", 1, "unknown key"),
            ("stay netns=red", 1, "no network namespace"),
            ("deny netns=blue", 1, "only a stay rule"),
            ("deny port=1 port=2", 1, "given twice"),
            ("\n\ndefault", 3, "expected \"default"),
            ("default deny now", 1, "expected \"default"),
            ("default stay", 1, "expected \"default"),
            ("default deny\ndefault allow", 2, "second default"),
        ];
        for (text, line, message) in cases {
            let error = parse(text).unwrap_err();
            assert_eq!(error.line, line, "{text}");
            assert!(error.message.contains(message), "{text}: {error}");
        }
    }
}
