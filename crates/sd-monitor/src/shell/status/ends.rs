//! What follows from looking at both ends of a connection.

use super::Connection;
use crate::core::ClientId;
use std::collections::HashMap;

/// As ss(8) names them, from which ends have finished sending.
pub(super) fn state_name(own_is_finished: bool, peer_is_finished: bool) -> &'static str {
    match (own_is_finished, peer_is_finished) {
        (false, false) => "ESTABLISHED",
        (false, true) => "CLOSE_WAIT",
        (true, false) => "FIN_WAIT2",
        (true, true) => "CLOSING",
    }
}

/// Completes what one end of a connection cannot know alone.
pub(super) fn match_ends(connections: &mut [Connection]) {
    let ends: HashMap<_, _> = connections
        .iter()
        .filter_map(|c| Some((c.end.place?, (c.rx_bytes, c.tx_bytes, c.end.is_finished))))
        .collect();
    for connection in connections {
        let Some((key, slot, side)) = connection.end.place else { continue };
        let Some((rx_bytes, tx_bytes, is_finished)) = ends.get(&(key, slot, side ^ 1)) else { continue };
        connection.rx_queue = tx_bytes.saturating_sub(connection.rx_bytes);
        connection.tx_queue = connection.tx_bytes.saturating_sub(*rx_bytes);
        let is_finished = *is_finished || matches!(connection.state, "CLOSE_WAIT" | "CLOSING");
        connection.state = state_name(connection.end.is_finished, is_finished);
    }
}

/// What each client's connections fill, and what waits for it in those that its peers fill.
pub(super) type Shares = HashMap<ClientId, [u64; 2]>;

pub(super) fn shares(connections: &[Connection]) -> Shares {
    let mut shares = Shares::new();
    for connection in connections.iter().filter(|connection| connection.end.place.is_some()) {
        let [fills, waiting] = shares.entry(connection.client).or_default();
        *fills = fills.saturating_add(connection.fills_bytes);
        *waiting = waiting.saturating_add(connection.rx_queue);
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states() {
        assert_eq!(state_name(false, true), "CLOSE_WAIT");
        assert_eq!(state_name(true, false), "FIN_WAIT2");
    }
}
