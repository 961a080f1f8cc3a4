//! `memgauge doctor`: capabilities of this machine.

use anyhow::bail;
use memgauge_console::outcome::Exit;
use memgauge_console::terminal;
use memgauge_host::checks::{self, Check};

use crate::args::Json;

/// Prints the results, a line each, with remedies.
pub(crate) fn doctor(args: &Json) -> anyhow::Result<Exit> {
    let found = examine();
    let text = if args.json {
        as_json(&found)?
    } else {
        as_text(&found)
    };
    terminal::print(&text)?;
    if !any_source_works(&found) {
        bail!("no source works here: follow one of the fixes above");
    }
    Ok(Exit::Success)
}

/// All checks in display order.
fn examine() -> Vec<Check> {
    let mut all = checks::machine();
    all.push(memgauge_emulate::checks::caches());
    all.extend(memgauge_live::checks());
    all.push(checks::bpf());
    all.push(memgauge_pages::check());
    all.extend(memgauge_emulate::checks::checks());
    all
}

/// True if programs can be recorded at all: emulated, or sampled by a counter or timer.
fn any_source_works(checks: &[Check]) -> bool {
    let sources = ["emulator", "timer samples", "core PMU"];
    let works = |c: &Check| c.ok == Some(true) && sources.contains(&c.name);
    checks.iter().any(works)
}

fn as_json(checks: &[Check]) -> anyhow::Result<String> {
    let list: Vec<_> = checks
        .iter()
        .map(|c| serde_json::json!({ "name": c.name, "ok": c.ok, "found": c.found, "fix": c.fix }))
        .collect();
    Ok(serde_json::to_string_pretty(&list)? + "\n")
}

fn as_text(checks: &[Check]) -> String {
    let mut out = String::new();
    for c in checks {
        let mark = match c.ok {
            None => "  ",
            Some(true) => "ok",
            Some(false) => "no",
        };
        out += &format!("{mark}  {:<18}{}\n", c.name, c.found);
        if let Some(fix) = &c.fix {
            out += &format!("    {:<18}fix: {fix}\n", "");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &'static str, ok: Option<bool>) -> Check {
        Check {
            name,
            ok,
            found: String::new(),
            fix: None,
        }
    }

    #[test]
    fn machine_without_a_working_source_is_recognised() {
        let none = [
            check("kernel", None),
            check("shared memory", Some(true)),
            check("emulator", Some(false)),
            check("timer samples", Some(false)),
        ];
        assert!(!any_source_works(&none));
        for source in ["emulator", "timer samples", "core PMU"] {
            let mut some = none.to_vec();
            some.push(check(source, Some(true)));
            assert!(any_source_works(&some), "{source}");
        }
    }

    #[test]
    fn sources_are_named_as_the_checks_are() {
        let checks = examine();
        for source in ["emulator", "timer samples", "core PMU"] {
            assert!(checks.iter().any(|c| c.name == source), "{source}");
        }
    }

    #[test]
    fn no_line_shows_an_error_number_or_is_empty() {
        for check in examine() {
            let text = format!("{}: {} {:?}", check.name, check.found, check.fix);
            assert!(!text.contains("os error"), "{text}");
            assert!(!check.found.is_empty(), "{text}");
            // A check that failed names its fix.
            assert_eq!(check.ok == Some(false), check.fix.is_some(), "{text}");
        }
    }
}
