//! Names the interface of the shared library, so that a program keeps to the one that it was
//! linked with.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmemgauge.so.0");
}
