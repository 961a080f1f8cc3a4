//! Compiles BPF programs with clang, for build scripts.
//!
//! Rejected: the skeleton of libbpf-cargo. Maps give their values as bytes, and to make its
//! structures of them takes `unsafe` code. The crates here read fields by their offsets
//! (`layout.rs`), which C asserts (`layout.h`).

#![forbid(unsafe_code)]

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folder of a crate's BPF programs.
const SOURCES: &str = "src/bpf";

/// Headers that all programs share.
const INCLUDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/include");

/// Compiles `src/bpf/NAME.bpf.c` of the crate that is built into `NAME.bpf.o` in its `OUT_DIR`.
///
/// The crate must depend on `libbpf-sys`, which brings libbpf's headers. The environment variable
/// `CLANG` names another compiler.
///
/// # Panics
/// If the compiler is missing or refuses the program: the build cannot go on.
pub fn compile(name: &str) {
    println!("cargo:rerun-if-changed={SOURCES}");
    println!("cargo:rerun-if-changed={INCLUDE}");
    println!("cargo:rerun-if-env-changed=CLANG");
    let variable = |name: &str| env::var(name).unwrap_or_default();
    let source = Path::new(SOURCES).join(format!("{name}.bpf.c"));
    let object = PathBuf::from(variable("OUT_DIR")).join(format!("{name}.bpf.o"));
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let target = match variable("CARGO_CFG_TARGET_ARCH").as_str() {
        "x86_64" => "x86".to_owned(),
        "aarch64" => "arm64".to_owned(),
        other => other.to_owned(),
    };
    let status = Command::new(&clang)
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall"])
        .arg(format!("-D__TARGET_ARCH_{target}"))
        .arg(format!("-I{}", variable("DEP_BPF_INCLUDE")))
        .arg(format!("-I{INCLUDE}"))
        .arg("-c")
        .arg(&source)
        .arg("-o")
        .arg(&object)
        .status();
    let source = source.display();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("failed to compile {source}: {clang} ended with {status}"),
        Err(error) => panic!(
            "failed to run `{clang}`, which compiles {source}: {error}; \
             ./setup.sh installs it (Debian package clang), or set CLANG"
        ),
    }
}
