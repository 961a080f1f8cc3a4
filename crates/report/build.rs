//! Embeds the front end of the page, which `make web` builds, into the crate.
//!
//! The crate also builds without it. `page` then reports what is missing.

use std::path::Path;
use std::{env, fs};

fn main() {
    let root = env::var("CARGO_MANIFEST_DIR").expect("cargo names the crate's folder");
    let made = Path::new(&root).join("../../web/dist");
    // The folder always exists, so that cargo notices when the files appear or disappear.
    println!("cargo::rerun-if-changed={}", made.display());
    let read = |name: &str| fs::read_to_string(made.join(name));
    let front_end = match (read("report.js"), read("report.css")) {
        (Ok(script), Ok(style)) => format!("Some(({script:?}, {style:?}))"),
        _ => "None".to_owned(),
    };
    let out = env::var("OUT_DIR").expect("cargo names the folder for what is generated");
    let code = format!("const FRONT_END: Option<(&str, &str)> = {front_end};\n");
    fs::write(Path::new(&out).join("front_end.rs"), code).expect("OUT_DIR can be written");
}
