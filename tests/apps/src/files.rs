//! Test data: bytes that no mistake reproduces by chance, and their comparison.

use harness::{Result, fail};

/// `len` bytes of a fixed pseudo-random sequence (splitmix64), different for each length.
pub(crate) fn bytes(len: usize) -> Vec<u8> {
    let mut state = len as u64 ^ 0x5d0c_c5d1_7ec7_0001;
    let mut data = Vec::with_capacity(len + 8);
    while data.len() < len {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        data.extend_from_slice(&(word ^ (word >> 31)).to_le_bytes());
    }
    data.truncate(len);
    data
}

/// Fails unless both are the same, and says where they part.
pub(crate) fn require_same(what: &str, got: &[u8], wanted: &[u8]) -> Result<()> {
    if got == wanted {
        return Ok(());
    }
    let at = got.iter().zip(wanted).position(|(a, b)| a != b).unwrap_or(got.len().min(wanted.len()));
    fail!("{what}: got {} bytes, wanted {}, first difference at byte {at}", got.len(), wanted.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_differences() {
        for len in [0, 1, 7, 8, 9, 1000] {
            assert_eq!(bytes(len).len(), len);
        }
        assert_ne!(bytes(64)[..8], bytes(65)[..8]);
        require_same("x", b"abc", b"abc").unwrap();
        let error = require_same("x", b"abd", b"abcd").unwrap_err().to_string();
        assert!(error.ends_with("at byte 2"), "{error}");
    }
}
