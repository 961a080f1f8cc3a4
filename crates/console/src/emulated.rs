//! Messages about programs under emulation.

use memgauge_emulate::{self as emulate, MissingNames};
use memgauge_live::events::near_it;

/// Messages about requested names that did not occur, with similar ones.
pub fn missing_names(missing: &MissingNames, command: &[String]) -> Vec<String> {
    let regions = missing.regions.iter().map(|name| {
        let near = near_it(name, missing.seen.iter().cloned());
        format!(
            "there is no region `{name}`{near}: the program marks none of this name, and no \
             --function is one"
        )
    });
    let is_complete = missing.functions.is_empty() && missing.allocators.is_empty();
    let symbols = match (is_complete, emulate::resolve(command)) {
        (false, Ok((program, _))) => memgauge_symbols::function_names(&program),
        _ => Vec::new(),
    };
    let functions = missing.functions.iter().map(|name| {
        let near = near_it(name.trim_matches('*'), symbols.iter().cloned());
        format!(
            "there is no function `{name}`{near}: no file that the program mapped has the symbol \
             (names of C++ and Rust are mangled: `--function '*{}*'` finds them)",
            name.trim_matches('*')
        )
    });
    let not_called = missing.not_called.iter().map(|name| {
        format!(
            "function `{name}` was not called: its code may be inlined, or the loader may have \
             chosen another function for the name, as it does for `memcpy`; the report's hottest \
             functions have the names of what ran"
        )
    });
    let allocators = missing.allocators.iter().map(|name| {
        let near = near_it(name.trim_matches('*'), symbols.iter().cloned());
        format!(
            "there is no function `{name}`{near} for --alloc or --free: no file that the program \
             mapped has the symbol"
        )
    });
    let functions = functions.chain(not_called);
    functions.chain(regions).chain(allocators).collect()
}

/// Warns that a program will not get privileges that it would have natively.
pub fn warn_about_rights(command: &[String]) {
    if let Ok((program, _)) = emulate::resolve(command)
        && emulate::would_gain_rights(&program)
    {
        eprintln!(
            "memgauge: `{}` is set-user-ID or has capabilities: under the emulator it runs \
             with your own rights",
            program.display()
        );
    }
}
