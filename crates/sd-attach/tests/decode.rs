//! Lengths of instructions, beside those that a disassembler says: this test's own program, and the libraries that it has loaded.
#![cfg(target_arch = "x86_64")]

use sd_attach::decode::{Flow, decode};
use std::process::Command;

/// What objdump(1) says: address, bytes, words. Lines that go on from the one before have no words.
fn disassembled(path: &str) -> Vec<(usize, Vec<u8>, String)> {
    let out = Command::new("objdump").args(["-d", "-w", "-j", ".text", path]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let mut found = Vec::new();
    for line in text.lines() {
        let mut parts = line.trim_start().split('\t');
        let (Some(address), Some(bytes), Some(words)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let Some(address) = address.strip_suffix(':').and_then(|hex| usize::from_str_radix(hex, 16).ok())
        else {
            continue;
        };
        let bytes = bytes.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
        found.push((address, bytes, words.trim().to_owned()));
    }
    found
}

fn compare(path: &str) {
    let instructions = disassembled(path);
    assert!(instructions.len() > 100, "{path}: {} instructions", instructions.len());
    let mut implausible = 0;
    for (address, bytes, words) in &instructions {
        // What objdump has no name for is data.
        if words.contains("(bad)") || bytes.len() > 15 {
            continue;
        }
        let shown = || format!("{path} {address:x} {bytes:02x?} {words}");
        let mut padded = bytes.clone();
        padded.extend([0; 16]);
        let found = decode(&padded, 0).unwrap_or_else(|| panic!("unknown: {}", shown()));
        assert_eq!(usize::from(found.len), bytes.len(), "{}", shown());
        implausible += usize::from(!found.is_plausible);
        let name =
            words.split_whitespace().find(|word| !["bnd", "notrack", "repz", "ds", "cs"].contains(word));
        let name = name.unwrap_or("");
        assert_eq!(found.flow == Flow::Syscall, name == "syscall", "{}", shown());
        assert_eq!(found.flow == Flow::Call, name.starts_with("call"), "{}", shown());
        assert_eq!(found.flow == Flow::Jump, name.starts_with("jmp"), "{}", shown());
        if let (Flow::Branch | Flow::Jump | Flow::Call, Some(_)) = (found.flow, found.distance)
            && let Some(target) =
                words.split_whitespace().find_map(|word| usize::from_str_radix(word, 16).ok())
            && !words.contains('*')
        {
            assert_eq!(found.target(0, &padded).unwrap() + *address as isize, target as isize, "{}", shown());
        }
    }
    assert!(implausible * 1000 < instructions.len(), "{path}: {implausible} of {}", instructions.len());
}

#[test]
fn lengths_are_a_disassemblers() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut paths: Vec<&str> = maps
        .lines()
        .filter(|line| line.contains("r-xp"))
        .filter_map(|line| line.split_whitespace().nth(5))
        .filter(|path| path.starts_with('/'))
        .collect();
    paths.dedup();
    assert!(paths.len() >= 2);
    paths.into_iter().for_each(compare);
}

#[test]
fn any_bytes_may_come() {
    let mut state = 1u64;
    let bytes: Vec<u8> = (0..200_000)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect();
    for at in 0..bytes.len() {
        if let Some(found) = decode(&bytes, at) {
            assert!((1..=15).contains(&found.len) && at + usize::from(found.len) <= bytes.len());
            let _ = found.target(at, &bytes);
        }
    }
    assert!(decode(&bytes, bytes.len()).is_none() && decode(&[], 0).is_none());
}
