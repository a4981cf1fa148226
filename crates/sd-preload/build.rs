//! Compiles the few lines of C that Rust cannot express: definitions of variadic functions.

fn main() {
    // Our constructor runs before those of all other libraries, so that our fork handlers are the
    // last before a fork and the first after it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,initfirst");
    println!("cargo::rerun-if-changed=src/variadic.c");
    let compiled = cc::Build::new()
        .file("src/variadic.c")
        .std("c11")
        .opt_level(2)
        .warnings_into_errors(true)
        .flag("-U_FORTIFY_SOURCE")
        .flag("-fvisibility=hidden")
        .try_compile("sd_variadic");
    let is_cross = std::env::var("TARGET").ok() != std::env::var("HOST").ok();
    match compiled {
        Ok(()) => {}
        // `cargo check` needs none of it.
        Err(error) if is_cross => {
            println!("cargo::warning=no C for this target, so nothing can be linked: {error}")
        }
        Err(error) => panic!("{error}"),
    }
}
