//! What differs between processors, and what belongs to a thread, has one place each in the library: assembly stands in
//! `sd_sys::arch`, and every word of a thread in the block of `sd_sys::thread`.

use super::{Findings, source};
use std::path::PathBuf;

/// Crates that are linked into libsd.so.
const LIBRARY: [&str; 7] =
    ["sd-sys", "sd-ring", "sd-shm", "sd-proto", "sd-attach", "sd-socket", "sd-preload"];
const PLACE: &str = "crates/sd-sys/src/arch/";
const ONLY_THERE: [&str; 4] = ["asm!", "thread_local", "core::arch::", "@GOTTPOFF"];

pub(crate) fn check(files: &[(PathBuf, String)]) -> Findings {
    let mut findings = Findings::new();
    for (path, text) in files {
        let name = path.display().to_string();
        let is_library = LIBRARY.iter().any(|one| name.starts_with(&format!("crates/{one}/src/")));
        if is_library && name.ends_with(".rs") && !name.starts_with(PLACE) {
            findings.extend(faults(&name, text));
        }
    }
    findings
}

fn faults(name: &str, text: &str) -> Findings {
    let code = source::without_tests(&source::mask(text));
    let lines = code.lines().enumerate();
    let found = lines.filter_map(|(at, line)| {
        let word = ONLY_THERE.iter().find(|word| line.contains(**word))?;
        Some(format!("{name}:{}: {word} stands in {PLACE} only (words of a thread: sd_sys::thread)", at + 1))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assembly_elsewhere_is_found() {
        let text =
            "fn a() {\n    // asm!\n    core::arch::asm!(\"nop\")\n}\nthread_local! { static A: u8 = 0; }\n";
        assert_eq!(faults("a.rs", text).len(), 2);
        let inside = [(PathBuf::from("crates/sd-sys/src/arch/x86_64.rs"), text.to_owned())];
        assert!(check(&inside).is_empty());
        let outside = [(PathBuf::from("crates/sd-ring/src/ring.rs"), text.to_owned())];
        assert_eq!(check(&outside).len(), 2);
    }
}
