//! How tests report that they cannot run here, draw their inputs, and compile programs.
//!
//! A skipped test passes, so the reader of the result must see the reason. The test
//! harness hides what a passing test prints; [`skipped`] writes past it. Where the
//! environment variable `MEMGAUGE_REQUIRE` names what is missing, the test fails
//! instead:
//!
//! ```text
//! MEMGAUGE_REQUIRE=root,perfdata cargo test
//! ```
//!
//! docs/testing.md lists what tests need.

#![forbid(unsafe_code)]

mod compiler;
mod packages;
mod random;

use std::env;
use std::fmt::Display;
use std::io::Write;

pub use compiler::compiled;
pub use packages::{node_file, python_with};
pub use random::Random;

/// Facilities of the machine that a test may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// To be run by root.
    Root,
    /// A feature of the kernel.
    Kernel,
    /// A program that is not installed.
    Tool,
    /// The packages of pip and npm that `./setup.sh test` installs.
    Packages,
    /// The recordings of perf that `MEMGAUGE_PERFDATA` names.
    Perfdata,
    /// A right, or a setting of the system, that containers often lack.
    Rights,
    /// The browser that shows pages.
    Chromium,
    /// Several memory nodes.
    Nodes,
}

impl Need {
    /// Its name in `MEMGAUGE_REQUIRE`.
    pub fn name(self) -> &'static str {
        match self {
            Need::Root => "root",
            Need::Kernel => "kernel",
            Need::Tool => "tool",
            Need::Packages => "packages",
            Need::Perfdata => "perfdata",
            Need::Rights => "rights",
            Need::Chromium => "chromium",
            Need::Nodes => "nodes",
        }
    }
}

/// Whether a list as in `MEMGAUGE_REQUIRE` names the need.
fn is_required(list: &str, need: Need) -> bool {
    list.split(',').map(str::trim).any(|n| n == need.name())
}

/// Says that the running test is skipped, and why.
///
/// # Panics
/// `MEMGAUGE_REQUIRE` names the need.
pub fn skipped(need: Need, why: impl Display) {
    let required = env::var("MEMGAUGE_REQUIRE").unwrap_or_default();
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    assert!(
        !is_required(&required, need),
        "`{test}` needs {} (MEMGAUGE_REQUIRE={required}): {why}",
        need.name()
    );
    // Not by a macro: the harness would capture it. A closed standard error is no failure.
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_need_is_required_where_the_list_names_it() {
        assert!(is_required("root, perfdata", Need::Perfdata));
        assert!(is_required("root", Need::Root));
        assert!(!is_required("", Need::Root));
        assert!(!is_required("rooted,tools", Need::Root));
    }
}
