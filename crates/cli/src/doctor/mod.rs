//! `memgauge doctor`: capabilities of this machine.

mod examine;

use anyhow::bail;
use examine::examine;
use memgauge_console::outcome::Exit;
use memgauge_console::terminal;
use memgauge_host::checks::Check;

use crate::args::Json;

/// Prints the results, a line each, with remedies.
pub(crate) fn doctor(args: &Json) -> anyhow::Result<Exit> {
    let checks = examine();
    let text = if args.json {
        as_json(&checks)?
    } else {
        as_text(&checks)
    };
    terminal::print(&text)?;
    if !any_source_works(&checks) {
        bail!("no source works here: follow one of the fixes above");
    }
    Ok(Exit::Success)
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
    fn a_machine_on_which_nothing_can_be_recorded_is_told_from_others() {
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
}
