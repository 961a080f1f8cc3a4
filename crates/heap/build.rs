//! Compiles the preloaded library.
//!
//! It is C because a `cdylib` of the same workspace can be embedded only with unstable features of
//! Cargo, and because it must not use Rust's runtime, which allocates.

use std::env;
use std::path::PathBuf;
use std::process::Command;

const SOURCE: &str = "preload/heap.c";

fn main() {
    println!("cargo:rerun-if-changed={SOURCE}");
    println!("cargo:rerun-if-env-changed=CC");
    let library = PathBuf::from(env::var("OUT_DIR").unwrap_or_default()).join("heap.so");
    if env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("x86_64") {
        std::fs::write(&library, []).expect("OUT_DIR is writable");
        return;
    }
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let status = Command::new(&compiler)
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"])
        // Nothing of a C library is linked: the program has its own.
        .args(["-nostdlib", "-fno-builtin", "-fno-stack-protector"])
        // A wrapper finds its caller by its frame pointer.
        .args(["-fno-omit-frame-pointer", "-fvisibility=hidden"])
        .args(["-Wl,-soname,libmemgauge_heap.so", "-Wl,-z,now", "-s"])
        .arg("-o")
        .arg(&library)
        .arg(SOURCE)
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("failed to compile {SOURCE}: {compiler} ended with {status}"),
        Err(error) => panic!("failed to run `{compiler}`, which compiles {SOURCE}: {error}"),
    }
}
