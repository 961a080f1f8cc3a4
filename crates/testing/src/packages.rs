//! Packages of pip and npm that tests check results with: `./setup.sh test` installs them into
//! the target folder, in the versions that `tests/packages` pins.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{Need, skipped};

const FOLDER: &str = "test-packages";

/// A file of the installed packages, as in `node/node_modules/axe-core/axe.min.js`.
fn installed(file: &str) -> Option<PathBuf> {
    // A test program lies in the target folder, some folders down.
    let program = env::current_exe().ok()?;
    let folders = program.ancestors().map(|folder| folder.join(FOLDER));
    folders
        .map(|folder| folder.join(file))
        .find(|file| file.exists())
}

/// Python with a module. Says that the running test is skipped where there is none.
///
/// # Panics
/// `MEMGAUGE_REQUIRE` names `packages`, and there is none.
pub fn python_with(module: &str) -> Option<Command> {
    let python = installed("python/bin/python3").unwrap_or_else(|| PathBuf::from("python3"));
    let imported = Command::new(&python)
        .args(["-c", &format!("import {module}")])
        .stderr(Stdio::null())
        .status();
    if imported.is_ok_and(|status| status.success()) {
        return Some(Command::new(python));
    }
    missing(&format!("Python's module {module}"));
    None
}

/// A file of an npm package: its path below `node_modules`. Says that the running test is skipped
/// where it is not installed.
///
/// # Panics
/// `MEMGAUGE_REQUIRE` names `packages`, and it is not installed.
pub fn node_file(file: &str) -> Option<PathBuf> {
    let found = installed(&Path::new("node/node_modules").join(file).to_string_lossy());
    if found.is_none() {
        missing(&format!("npm's {file}"));
    }
    found
}

fn missing(what: &str) {
    skipped(Need::Packages, format!("needs {what}: ./setup.sh test"));
}
