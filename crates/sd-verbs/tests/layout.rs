//! Asks a compiler of C what the header says of each structure. Where either is missing, the numbers stand as they were proved when the
//! crate was compiled (`src/abi.rs`).

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

#[test]
fn as_the_header_has_it() {
    let compiler = ["cc", "gcc", "clang"]
        .into_iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|it| it.status.success()));
    let Some(compiler) = compiler.filter(|_| Path::new("/usr/include/infiniband/verbs.h").exists()) else {
        println!("skipped: no compiler of C, or no infiniband/verbs.h (libibverbs-dev)");
        return;
    };
    let mut program = "#include <infiniband/verbs.h>\n#include <stddef.h>\n".to_owned();
    for (name, size, members) in sd_verbs::LAYOUTS {
        if *size > 0 {
            let _ = writeln!(program, "_Static_assert(sizeof(struct {name}) == {size}, \"{name}\");");
        }
        for (member, offset) in *members {
            let _ = writeln!(
                program,
                "_Static_assert(offsetof(struct {name}, {member}) == {offset}, \"{name}.{member}\");"
            );
        }
    }
    let file = std::env::temp_dir().join(format!("sd-verbs-{}.c", std::process::id()));
    std::fs::write(&file, program).unwrap();
    let output = Command::new(compiler).arg("-fsyntax-only").arg(&file).output();
    std::fs::remove_file(&file).unwrap();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
