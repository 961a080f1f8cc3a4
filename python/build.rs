//! Compiles the marks of regions of interest, which are a C header.

fn main() {
    let header = "../crates/capi/include";
    cc::Build::new()
        .file("src/marks.c")
        .include(header)
        .define("_GNU_SOURCE", None)
        .warnings_into_errors(false)
        .compile("memgauge_marks");
    println!("cargo::rerun-if-changed=src/marks.c");
    println!("cargo::rerun-if-changed={header}/memgauge_region.h");
}
