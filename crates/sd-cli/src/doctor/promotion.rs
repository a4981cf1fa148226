//! Whether connections that the kernel has made are moved to shared memory: whether the monitor was told to, whether it may find their ends,
//! and what the policy says.

use super::Check;
use sd_cli::client::Silence;
use serde_json::Value;

/// Nothing without a monitor that tells it.
pub(super) fn check(answer: &Result<Value, Silence>) -> Option<Check> {
    let name = "promotion";
    let said = answer.as_ref().ok().map(|document| &document["promotion"])?;
    let word = |field: &str| said[field].as_str().unwrap_or_default();
    let offered = match word("offered") {
        "" => return None,
        "nothing" => {
            let text = "off: connections that the kernel has made, as between containers, stay there; sd monitor --promote=earned moves them";
            return Some(Check::ok(name, text));
        }
        "earned" => "connections that the kernel has made and that are busy are moved to shared memory",
        _ => "all connections are moved to shared memory, to test that",
    };
    if word("off_because") == "pumps" {
        let advice = "start the monitor without --loopback-pump";
        return Some(Check::warn(name, "off: this monitor puts a process between all connections", advice));
    }
    if word("policy") == "none" {
        let text = "on, but the policy keeps all connections of this user where they are";
        return Some(Check::warn(name, text, "see its rules and its default: stay, kernel, deny"));
    }
    let some = if word("policy") == "some" { ", but those that the policy keeps where they are" } else { "" };
    if word("evidence") != "numbers" {
        return Some(Check::warn(
            name,
            format!(
                "{offered}{some}; only within one network namespace: the monitor may not compare sequence numbers (TCP_REPAIR)"
            ),
            "give it CAP_NET_ADMIN over the network namespaces of the programs: root's monitor has that over all that root has made",
        ));
    }
    Some(Check::ok(name, format!("{offered}{some}, also between network namespaces")))
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;
    use serde_json::json;

    fn said(promotion: Value) -> (Verdict, String) {
        let check = check(&Ok(json!({ "promotion": promotion }))).unwrap();
        (check.verdict, check.detail + check.advice.as_deref().unwrap_or_default())
    }

    #[test]
    fn what_the_monitor_says() {
        let of = |offered: &str, because: Option<&str>, evidence: &str, policy: &str| {
            said(json!({"offered": offered, "off_because": because, "evidence": evidence, "policy": policy}))
        };
        for (said, verdict, text) in [
            (of("nothing", None, "names", "none"), Verdict::Ok, "off:"),
            (of("earned", None, "numbers", "all"), Verdict::Ok, "shared memory, also between"),
            (of("earned", None, "numbers", "some"), Verdict::Ok, "but those that the policy keeps"),
            (of("all", None, "numbers", "all"), Verdict::Ok, "to test that"),
            (of("earned", None, "names", "all"), Verdict::Warn, "CAP_NET_ADMIN"),
            (of("earned", None, "numbers", "none"), Verdict::Warn, "the policy keeps all"),
            (of("earned", Some("pumps"), "numbers", "all"), Verdict::Warn, "--loopback-pump"),
        ] {
            assert!(said.0 == verdict && said.1.contains(text), "{said:?}");
        }
        assert!(check(&Err(Silence::Absent)).is_none(), "nobody to ask");
        assert!(check(&Ok(json!({}))).is_none(), "an older monitor");
    }
}
