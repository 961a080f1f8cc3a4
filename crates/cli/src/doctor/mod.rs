//! `memgauge doctor`: what this machine offers.

mod examine;

use examine::examine;
use memgauge_host::check::Check;

use crate::args::Json;
use crate::outcome::Exit;
use crate::terminal;

/// Prints what was found, a line each, with the fix for what is missing.
pub(crate) fn doctor(args: &Json) -> anyhow::Result<Exit> {
    let checks = examine();
    let text = if args.json {
        as_json(&checks)?
    } else {
        as_text(&checks)
    };
    terminal::print(&text)?;
    Ok(Exit::Success)
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
