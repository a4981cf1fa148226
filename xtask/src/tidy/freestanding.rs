//! `libsd-freestanding.so` must be complete by itself: nobody loads other libraries for it, looks symbols up or makes thread-local storage, and
//! its entry knows one kind of relocation.

use super::Findings;
use harness::process::output_of;
use harness::{Result, product};

pub(crate) fn check() -> Result<Findings> {
    let library = product::freestanding();
    if !cfg!(target_arch = "x86_64") {
        return Ok(Findings::new());
    }
    if !library.exists() {
        return Ok(vec![format!("{} is not there; run cargo xtask build first", library.display())]);
    }
    let args = ["--wide", "--segments", "--dynamic", "--dyn-syms", "--relocs"];
    let path = library.display().to_string();
    Ok(faults(&output_of("readelf", &[&args[..], &[&path]].concat())?))
}

/// What readelf(1) says that must not be.
fn faults(text: &str) -> Findings {
    let fault = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        match fields.as_slice() {
            ["TLS", ..] => Some("has thread-local storage"),
            [_, "(NEEDED)", ..] => Some("needs another library"),
            [_, _, _, _, _, _, "UND", _, ..] => Some("leaves a symbol undefined"),
            [_, _, kind, ..] if kind.starts_with("R_X86_64_") && *kind != "R_X86_64_RELATIVE" => {
                Some("has a relocation of another kind")
            }
            _ => None,
        }
    };
    let found = text.lines().filter_map(|line| Some(format!("{}: {}", fault(line)?, line.trim())));
    found.map(|fault| format!("libsd-freestanding.so {fault}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_must_not_have_is_found() {
        let fine = "  LOAD 0x0 0x0 0x0 0x1 0x1 R 0x1000\n 0x1 (FLAGS) SYMBOLIC\n\
                    000113c50  00000008 R_X86_64_RELATIVE 1000\n  0: 0000 0 NOTYPE LOCAL DEFAULT UND \n";
        assert_eq!(faults(fine), Findings::new());
        for line in [
            "  TLS 0x1 0x1 0x1 0x0 0x80 R 0x40",
            " 0x0000000000000001 (NEEDED) Shared library: [libc.so.6]",
            "  1: 0000000000000000 0 FUNC GLOBAL DEFAULT UND getpid@GLIBC_2.2.5 (2)",
            "0000000000113fd8  0000000100000006 R_X86_64_GLOB_DAT 0000 getpid + 0",
        ] {
            assert_eq!(faults(line).len(), 1, "{line}");
        }
    }
}
