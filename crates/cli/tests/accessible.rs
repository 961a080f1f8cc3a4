//! HTML pages have no serious fault of accessibility by axe-core's rules.

#[allow(dead_code, reason = "each test file uses a part of it")]
#[path = "page/browser.rs"]
mod browser;
#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;

use std::path::{Path, PathBuf};

use browser::{Look, NARROW, WIDE, chromium, look};
use harness::memgauge;
use memgauge_testing::{Need, node_file, skipped};
use serde_json::{Value, json};

/// Returns the script of npm's axe-core, or prints that there is none.
fn axe() -> Option<String> {
    let file = node_file("axe-core/axe.min.js")?;
    Some(std::fs::read_to_string(file).expect("a script"))
}

fn fixture(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    folder.join(format!("{name}.mg"))
}

/// Returns the page that a command of memgauge writes, or `None` if it was built without pages.
fn page(args: &[&str], recordings: &[&str]) -> Option<String> {
    let mut command = memgauge();
    command
        .args(args)
        .args(recordings.iter().map(|name| fixture(name)));
    let output = command.output().expect("memgauge runs");
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("without the front end") {
        skipped(Need::Tool, "the front end is not built: make web");
        return None;
    }
    assert!(output.status.success(), "{said}");
    Some(String::from_utf8(output.stdout).expect("a page is UTF-8"))
}

/// Faults that axe-core calls serious or critical, with the elements.
fn faults(browser: &Path, page: &str, how: Look, axe: &str) -> Vec<Value> {
    const RUN: &str = r#"
      find("details").forEach((part) => (part.open = true));
      await frames();
      const result = await axe.run(document, { resultTypes: ["violations"] });
      const serious = result.violations.filter((v) => v.impact === "serious" || v.impact === "critical");
      return {
        passed: result.passes.length,
        faults: serious.map((v) => ({ rule: v.id, at: v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160) + " " + (n.any[0]?.message ?? "")) })),
      };"#;
    let result = look(browser, page, how, &format!("{axe};{RUN}"));
    let found = &result["found"];
    assert!(
        found["passed"].as_u64().is_some_and(|rules| rules > 15),
        "{result}"
    );
    found["faults"].as_array().expect("faults").clone()
}

#[test]
fn reports_have_no_serious_fault() {
    let (Some(axe), Some(browser)) = (axe(), chromium()) else {
        return;
    };
    for name in [
        "recordings/emulate",
        "recordings/clock",
        "recordings/stat",
        "recordings/io",
        "calls",
    ] {
        let Some(page) = page(&["report", "--html", "--output", "-"], &[name]) else {
            return;
        };
        for how in [WIDE, NARROW] {
            let faults = faults(&browser, &page, how, &axe);
            assert_eq!(json!(faults), json!([]), "{name}, {} wide", how.width);
        }
    }
}

#[test]
fn a_comparison_has_no_serious_fault() {
    let (Some(axe), Some(browser)) = (axe(), chromium()) else {
        return;
    };
    let runs = [
        "recordings/emulate",
        "recordings/bandwidth",
        "recordings/clock",
    ];
    for runs in [&runs[..2], &runs] {
        let page = page(&["diff", "--html", "-o", "-"], runs).expect("a page without a front end");
        // The page's own rule refuses scripts, a test's too; a test waits for its mark.
        let page = page.replace("default-src 'none'; style-src 'unsafe-inline'", "");
        let page = page.replace("<html lang", "<html data-ready lang");
        for how in [WIDE, NARROW] {
            let faults = faults(&browser, &page, how, &axe);
            assert_eq!(json!(faults), json!([]), "{} wide", how.width);
            let wide = "return document.documentElement.scrollWidth <= innerWidth;";
            let result = look(&browser, &page, how, wide);
            assert_eq!(result["found"], true, "wider than {}: {result}", how.width);
        }
    }
}
