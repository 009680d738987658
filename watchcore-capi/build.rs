//! Gives the shared library its soname: cargo itself sets none.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let os = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if os == "linux" {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libwatchcore.so.0");
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
