//! Compiles the BPF programs of `src/bpf` with clang.
//!
//! Rejected: the skeleton of libbpf-cargo. Maps give their values as bytes, and to make its
//! structures of them takes `unsafe` code; `layout.rs` reads fields by their offsets, which
//! `layout.h` asserts.

use std::env;
use std::path::PathBuf;
use std::process::Command;

const SOURCES: &str = "src/bpf";

fn main() {
    println!("cargo:rerun-if-changed={SOURCES}");
    println!("cargo:rerun-if-env-changed=CLANG");
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let object = PathBuf::from(variable("OUT_DIR")).join("python.bpf.o");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let target = match variable("CARGO_CFG_TARGET_ARCH").as_str() {
        "x86_64" => "x86".to_owned(),
        "aarch64" => "arm64".to_owned(),
        other => other.to_owned(),
    };
    let status = Command::new(&clang)
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall"])
        .arg(format!("-D__TARGET_ARCH_{target}"))
        // libbpf's own headers, from the crate that brings libbpf.
        .arg(format!("-I{}", variable("DEP_BPF_INCLUDE")))
        .arg("-c")
        .arg(format!("{SOURCES}/python.bpf.c"))
        .arg("-o")
        .arg(&object)
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("failed to compile {SOURCES}: {clang} ended with {status}"),
        Err(error) => panic!(
            "failed to run `{clang}`, which compiles {SOURCES}: {error}; \
             ./setup.sh installs it (Debian package clang), or set CLANG"
        ),
    }
}
