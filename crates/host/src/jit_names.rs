//! Asks the runtimes of a started program for the names of the code that they compile.
//!
//! Java and Node write `/tmp/perf-PID.map` only on request. Both read options from an environment
//! variable, which reaches them also through a script or another program that starts them.

use std::process::Command;
use std::sync::OnceLock;

/// Variables and the options that are appended to them. Java below 17 does not know the second
/// option and would refuse to start without the third.
const OPTIONS: [(&str, &str); 2] = [
    (
        "JAVA_TOOL_OPTIONS",
        "-XX:+UnlockDiagnosticVMOptions -XX:+DumpPerfMapAtExit \
         -XX:+IgnoreUnrecognizedVMOptions",
    ),
    // Without `only-functions`, Node leaves a file `isolate-*.log` in the working directory.
    ("NODE_OPTIONS", "--perf-basic-prof-only-functions"),
];

static IS_REQUESTED: OnceLock<()> = OnceLock::new();

/// Sets the variables of the program that this process starts from now on.
pub fn request_jit_names() {
    IS_REQUESTED.get_or_init(|| ());
}

/// Adds the variables to a command if names are requested. Keeps options that the user has set.
pub fn add_jit_names(command: &mut Command) {
    if IS_REQUESTED.get().is_none() {
        return;
    }
    for (variable, options) in OPTIONS {
        let user = std::env::var_os(variable).filter(|user| !user.is_empty());
        let mut all = user.map_or_else(Default::default, |mut user| {
            user.push(" ");
            user
        });
        all.push(options);
        command.env(variable, all);
    }
}

/// The variables as a setting of the recording, if names are requested.
pub(crate) fn setting() -> Option<String> {
    IS_REQUESTED.get()?;
    let variables: Vec<String> = OPTIONS
        .iter()
        .map(|(variable, options)| format!("{variable}={options}"))
        .collect();
    Some(variables.join("; "))
}
