//! Addresses of the library's own functions are settled when it is linked: a copy of it that lacks a name still loads.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
}
