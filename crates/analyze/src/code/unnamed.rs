//! Hot code without names, and the runtimes that could provide them.
//!
//! A table with `[jit]` or `[no symbols]` at its top shows nothing about the program. The report
//! therefore explains how to get names, depending on the runtimes that the program has mapped.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::code::address_spaces::{AddressSpaces, JIT, is_file};
use crate::code::hotspots::{HotRow, HotTable, without_symbol};
use crate::resolve::file_name;

/// Minimum share of the sort order. Less code without names changes no conclusion.
const LEAST_SHARE: f64 = 0.05;

/// Runtime that compiles code while the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Runtime {
    /// A Java virtual machine (`HotSpot`).
    Java,
    /// Node.js.
    Node,
    /// .NET.
    DotNet,
}

/// Code of one file, or of all JIT compilers, without names.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UnnamedCode {
    /// Path of the file, or `[jit]`.
    pub module: String,
    /// Share of the table's sort order, in 0..=1.
    pub share: f64,
    /// Name of the sort order.
    pub rank: String,
    /// Runtimes that compiled the code. Empty for a file, and if the runtime is unknown.
    pub runtimes: Vec<Runtime>,
}

/// Runtimes whose files the recorded processes have mapped.
pub(crate) fn runtimes(spaces: &AddressSpaces) -> Vec<Runtime> {
    let mut all: Vec<Runtime> = spaces
        .programs()
        .filter_map(|path| runtime(file_name(path)))
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn runtime(file: &str) -> Option<Runtime> {
    match file {
        "libjvm.so" => Some(Runtime::Java),
        "node" | "nodejs" => Some(Runtime::Node),
        "libcoreclr.so" => Some(Runtime::DotNet),
        // Distributions build Node as a library with its version.
        _ if file.starts_with("libnode.so") => Some(Runtime::Node),
        _ => None,
    }
}

/// The code without names that matters, by falling share.
pub(crate) fn unnamed_code(functions: &HotTable, runtimes: &[Runtime]) -> Vec<UnnamedCode> {
    let rows = functions.rows.iter();
    let rows = rows.filter(|row| row.function == without_symbol(&row.module));
    let rows = rows.filter(|row| is_file(&row.module) || row.module == JIT);
    let matters = rows.filter_map(|row| Some((row, row.share.filter(|&s| s >= LEAST_SHARE)?)));
    let unnamed = matters.map(|(row, share)| UnnamedCode {
        module: row.module.clone(),
        share,
        rank: functions.rank.clone(),
        runtimes: match row.module == JIT {
            true => runtimes.to_vec(),
            false => Vec::new(),
        },
    });
    unnamed.collect()
}

/// An interpreter of Python that ran code of unknown functions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PythonWithoutLines {
    /// Path of the interpreter.
    pub module: String,
    /// Share of the functions' sort order, in 0..=1.
    pub share: f64,
    /// Name of the sort order.
    pub rank: String,
    /// True for samples of this machine, false for counts of a modelled one.
    pub is_sampled: bool,
}

/// The hottest interpreter whose lines are missing, if it matters.
pub(crate) fn python_without_lines(
    functions: &HotTable,
    is_sampled: bool,
) -> Option<PythonWithoutLines> {
    // `python3 -X perf` names the functions that it calls.
    let is_named = |row: &HotRow| row.module == JIT && row.function.starts_with("py::");
    if functions.rows.iter().any(is_named) {
        return None;
    }
    let mut shares: BTreeMap<&str, f64> = BTreeMap::new();
    for row in functions.rows.iter().filter(|row| is_python(&row.module)) {
        *shares.entry(&row.module).or_default() += row.share.unwrap_or(0.0);
    }
    let (module, share) = shares.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    (share >= LEAST_SHARE).then(|| PythonWithoutLines {
        module: module.to_owned(),
        share,
        rank: functions.rank.clone(),
        is_sampled,
    })
}

/// True for the files of CPython and PyPy: `python3.12`, `libpython3.12.so.1.0`, `pypy3`.
fn is_python(path: &str) -> bool {
    let file = file_name(path);
    let name = file.strip_prefix("lib").unwrap_or(file);
    ["python3", "pypy"]
        .iter()
        .any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(function: &str, module: &str, share: f64) -> HotRow {
        HotRow {
            function: function.to_owned(),
            module: module.to_owned(),
            share: Some(share),
            ..HotRow::default()
        }
    }

    #[test]
    fn code_without_names_is_listed_where_it_matters() {
        let functions = HotTable {
            rank: "cycles".to_owned(),
            rows: vec![
                row("[jit]", "[jit]", 0.5),
                row("Main.run", "[jit]", 0.2),
                row("libz.so.1 [no symbols]", "/lib/libz.so.1", 0.1),
                row("main", "/bin/p", 0.1),
                row("liby.so.1 [no symbols]", "/lib/liby.so.1", 0.04),
                row("[kernel]", "[kernel]", 0.1),
            ],
            ..HotTable::default()
        };
        let found = unnamed_code(&functions, &[Runtime::Java]);
        let found: Vec<_> = found
            .iter()
            .map(|code| (code.module.as_str(), code.share, code.runtimes.as_slice()))
            .collect();
        let java: &[Runtime] = &[Runtime::Java];
        assert_eq!(
            found,
            [("[jit]", 0.5, java), ("/lib/libz.so.1", 0.1, [].as_slice())]
        );
    }

    #[test]
    fn an_interpreter_without_lines_is_found_by_the_sum_of_its_functions() {
        let python = "/usr/bin/python3.14";
        let mut functions = HotTable {
            rank: "cycles".to_owned(),
            rows: vec![
                row("main", "/bin/p", 0.9),
                row("_PyEval_EvalFrameDefault", python, 0.03),
                row("list_resize", python, 0.03),
            ],
            ..HotTable::default()
        };
        let found = python_without_lines(&functions, false).map(|python| python.module);
        assert_eq!(found.as_deref(), Some(python));
        functions.rows.push(row("py::f:/x.py", "[jit]", 0.01));
        assert_eq!(python_without_lines(&functions, true), None);
        functions.rows.truncate(2);
        assert_eq!(python_without_lines(&functions, true), None);
        assert!(is_python("/usr/lib/libpython3.13t.so.1.0") && is_python("pypy3.10"));
        assert!(!is_python("/usr/lib/libpng.so") && !is_python("/usr/bin/perl"));
    }

    #[test]
    fn runtimes_are_known_by_the_files_that_they_map() {
        let names = ["libjvm.so", "node", "libnode.so.108", "libc.so.6", "nodes"];
        let found = names.map(runtime);
        let (java, node) = (Some(Runtime::Java), Some(Runtime::Node));
        assert_eq!(found, [java, node, node, None, None]);
    }
}
