//! Compiles the few lines of C that Rust cannot express: definitions of variadic functions.

fn main() {
    println!("cargo::rerun-if-changed=src/variadic.c");
    cc::Build::new()
        .file("src/variadic.c")
        .std("c11")
        .opt_level(2)
        .warnings_into_errors(true)
        .flag("-U_FORTIFY_SOURCE")
        .flag("-fvisibility=hidden")
        .compile("sd_variadic");
}
