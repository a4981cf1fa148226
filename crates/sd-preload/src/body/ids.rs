//! What the user ids, or the group ids, of a process become by setuid(2) and its relatives. Tested by `tests/ids.rs`, as the library has no tests of its own.

/// Real, effective, saved.
pub(crate) type Ids = [u32; 3];
/// "Leave it as it is."
pub(crate) const KEEP: u32 = u32::MAX;

/// One of them is lost.
pub(crate) fn loses(now: Ids, then: Ids) -> bool {
    now.iter().any(|id| !then.contains(id))
}

/// What the ids become if the call succeeds.
pub(crate) fn ids_then(is_one: bool, now: Ids, wanted: Ids, is_able: bool, count: usize) -> Ids {
    let [real, effective, saved] = now;
    let [first, second, third] = wanted;
    let or = |wanted: u32, now: u32| if wanted == KEEP { now } else { wanted };
    match (is_one, count) {
        (true, _) if is_able => [first; 3],
        (true, _) => [real, first, saved],
        (_, 2) => {
            let effective = or(second, effective);
            let is_saved = first != KEEP || second != KEEP && second != real;
            [or(first, real), effective, if is_saved { effective } else { saved }]
        }
        _ => [or(first, real), or(second, effective), or(third, saved)],
    }
}
