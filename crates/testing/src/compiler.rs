//! Programs in C and C++ that tests compile.

use std::path::Path;
use std::process::Command;

use crate::{Need, skipped};

/// Compiles a program in a folder, with these flags besides `-o`. `name` is that of the source file,
/// as in `walk.c` or `walk.cc`, and the program is named after it. Returns the program's path, or
/// `None` with the reason printed if there is no compiler.
///
/// # Panics
/// The source does not compile.
pub fn compiled(folder: &Path, name: &str, source: &str, flags: &[&str]) -> Option<String> {
    let file = folder.join(name);
    let program = file.with_extension("");
    std::fs::write(&file, source).expect("the folder is writable");
    let compiler = match name.ends_with(".c") {
        true => "gcc",
        false => "g++",
    };
    // Libraries among the flags must follow the source.
    let status = Command::new(compiler)
        .arg("-o")
        .args([&program, &file])
        .args(flags)
        .status();
    match status {
        Err(_) => {
            skipped(Need::Tool, format!("{compiler} is not installed"));
            None
        }
        Ok(status) => {
            assert!(status.success(), "{name} does not compile");
            Some(program.to_str().expect("the path is text").to_owned())
        }
    }
}
