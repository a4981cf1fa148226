//! Compiles the few lines of C that Rust cannot express: definitions of variadic functions.

fn main() {
    // The library for programs without libc: nobody calls functions of it, and it is entered at one place.
    if std::env::var_os("CARGO_CFG_SD_FREESTANDING").is_some() {
        println!("cargo::rustc-cdylib-link-arg=-nostdlib");
        println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic,-z,now,-e,sd_start");
        return;
    }
    // Our constructor runs before those of all other libraries, so that our fork handlers are the
    // last before a fork and the first after it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // Without the standard library nobody else asks for it.
    println!("cargo::rustc-cdylib-link-arg=-lc");
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
