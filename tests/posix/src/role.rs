//! What a process of a pair subject knows of the other one: two pipes that carry lines.

use crate::sys::{self, Addr};

/// Descriptors of the two pipes in a role process: high, so that they do not disturb the lowest-fd rule.
pub(crate) const INPUT: i32 = 100;
pub(crate) const OUTPUT: i32 = 101;

pub(crate) struct Role {
    pending: Vec<u8>,
}

impl Role {
    pub(crate) fn inherited() -> Role {
        Role { pending: Vec::new() }
    }

    /// Sends one line to the other process, if it is still there.
    pub(crate) fn tell(&self, line: &str) {
        let bytes = format!("{line}\n");
        let sent = sys::write(OUTPUT, bytes.as_bytes());
        if sent.value != bytes.len() as i64 && sent.errno != libc::EPIPE {
            say!("ROLE PIPE: write = {sent}");
        }
    }

    /// Receives one line; a process that is gone says `<end>`.
    pub(crate) fn hear(&mut self) -> String {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line = String::from_utf8_lossy(&self.pending[..end]).into_owned();
                self.pending.drain(..=end);
                return line;
            }
            let mut chunk = [0; 512];
            let got = sys::read(INPUT, &mut chunk);
            match got.value {
                n if n > 0 => self.pending.extend_from_slice(&chunk[..n as usize]),
                _ if got.errno == libc::EINTR && got.value < 0 => {}
                _ => return "<end>".to_owned(),
            }
        }
    }

    /// Waits for the given line, and says so if another one comes.
    pub(crate) fn expect(&mut self, wanted: &str) {
        let line = self.hear();
        if line != wanted {
            say!("ROLE PIPE: expected {wanted:?}, heard {line:?}");
        }
    }

    pub(crate) fn tell_port(&self, address: &Addr) {
        self.tell(&format!("port {}", address.port()));
    }

    /// Waits for `tell_port` of the other process; the port is called `label` in addresses from now on.
    pub(crate) fn hear_port(&mut self, label: &'static str) -> u16 {
        let line = self.hear();
        let port = line.strip_prefix("port ").and_then(|digits| digits.parse().ok());
        let port = port.unwrap_or_else(|| sys::give_up(&format!("expected a port, heard {line:?}")));
        sys::label_port(port, label);
        port
    }
}
