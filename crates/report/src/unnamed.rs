//! Hints on how to get names for hot code without any.

use memgauge_analyze::{Runtime, Summary, UnnamedCode, file_name};

use crate::units;

/// A sentence for each file, or for all JIT-compiled code, whose names are missing.
pub(crate) fn hints(summary: &Summary) -> Vec<Hint> {
    let is_requested = summary.recording.source.settings.jit_names.is_some();
    let hints = summary.unnamed.iter();
    let hints = hints.map(|code| hint(code, is_requested));
    hints.chain(python_hint(summary)).collect()
}

/// Why there are no lines of Python although an interpreter runs.
fn python_hint(summary: &Summary) -> Option<Hint> {
    let python = summary.python_without_lines.as_ref()?;
    let name = file_name(&python.module);
    let share = units::share(python.share);
    let rank = rank_name(&python.rank);
    let next = if python.is_sampled {
        "Record as root for lines of CPython 3.9 to 3.13; the notes say what else is missing. Or run \
         it with `memgauge -- python3 …`."
    } else if summary.sets.is_some() {
        "Leave out --sets for lines of Python."
    } else {
        "memgauge follows release builds of CPython 3.9 to 3.13 with the global lock. Run the \
         program with one of them."
    };
    Some(Hint {
        text: format!(
            "{share} of {rank} are in {name}, and the lines of Python that it ran are not known."
        ),
        next: next.to_owned(),
    })
}

fn rank_name(rank: &str) -> &str {
    match rank {
        "dram_bytes" => "DRAM bytes",
        rank => rank,
    }
}

/// The finding and the next step.
pub(crate) struct Hint {
    pub(crate) text: String,
    pub(crate) next: String,
}

fn hint(code: &UnnamedCode, is_requested: bool) -> Hint {
    let share = units::share(code.share);
    let rank = rank_name(&code.rank);
    if !code.module.starts_with('[') {
        let name = file_name(&code.module);
        return Hint {
            text: format!("{share} of {rank} are in {name}, which has no symbols."),
            next:
                "Install its debug symbols, record with DEBUGINFOD_URLS set, or build it without \
                   stripping."
                    .to_owned(),
        };
    }
    let runtimes: Vec<&str> = code.runtimes.iter().map(|&r| runtime_name(r)).collect();
    let by = match runtimes.is_empty() {
        true => String::new(),
        false => format!(" of {}", runtimes.join(" and ")),
    };
    let next: Vec<&str> = match (code.runtimes.as_slice(), is_requested) {
        ([], _) => {
            vec!["A runtime names its code in /tmp/perf-PID.map or a jitdump file; see its manual."]
        }
        (runtimes, false) => runtimes.iter().map(|&r| how_to_name(r)).collect(),
        (runtimes, true) => runtimes.iter().map(|&r| why_still_unnamed(r)).collect(),
    };
    Hint {
        text: format!("{share} of {rank} are in JIT-compiled code{by} without names ([jit])."),
        next: next.join(" "),
    }
}

fn runtime_name(runtime: Runtime) -> &'static str {
    match runtime {
        Runtime::Java => "Java",
        Runtime::Node => "Node",
        Runtime::DotNet => ".NET",
    }
}

fn how_to_name(runtime: Runtime) -> &'static str {
    match runtime {
        Runtime::Java => {
            "Record with --jit-names, or run java with -XX:+UnlockDiagnosticVMOptions \
             -XX:+DumpPerfMapAtExit. A running JVM writes names with `jcmd PID Compiler.perfmap`, \
             before the recording ends."
        }
        Runtime::Node => "Record with --jit-names, or run node with --perf-basic-prof.",
        Runtime::DotNet => "Set DOTNET_PerfMapEnabled=1 for the program.",
    }
}

/// The reason why code is unnamed although the runtime was asked for names.
fn why_still_unnamed(runtime: Runtime) -> &'static str {
    match runtime {
        Runtime::Java => {
            "A JVM writes names when it exits, from Java 17 on: not when it is killed, and not of \
             code that it dropped before."
        }
        Runtime::Node => "Node names only what it compiles to machine code itself.",
        Runtime::DotNet => "Set DOTNET_PerfMapEnabled=1 for the program.",
    }
}
