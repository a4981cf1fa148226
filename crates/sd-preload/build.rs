//! Compiles the few lines of C that Rust cannot express: definitions of variadic functions.

fn main() {
    // Our constructor runs before those of all other libraries, so that our fork handlers are the
    // last before a fork and the first after it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,initfirst");
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
