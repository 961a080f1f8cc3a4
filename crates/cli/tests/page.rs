//! The HTML report of every source in a browser, with names in a recording that could inject code; and
//! the server of the page.

#[path = "page/browser.rs"]
mod browser;
#[path = "page/data_types.rs"]
mod data_types;
#[path = "page/dragging.rs"]
mod dragging;
#[path = "page/driver.rs"]
mod driver;
#[path = "page/first_screen.rs"]
mod first_screen;
#[path = "page/fleet.rs"]
mod fleet;
#[allow(dead_code, reason = "each test file uses a part of it")]
mod harness;
#[path = "page/lanes.rs"]
mod lanes;
#[path = "page/memory_plot.rs"]
mod memory_plot;
#[path = "page/running_memory.rs"]
mod running_memory;
#[path = "page/served.rs"]
mod served;
#[path = "page/shared_lines.rs"]
mod shared_lines;
#[path = "page/sorting.rs"]
mod sorting;
#[path = "../../fleet/tests/synthetic/mod.rs"]
mod synthetic;

use std::io::Read;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use browser::{Look, NARROW, WIDE, chromium, look, look_at_all, open, with_scripts};
use harness::{folder, memgauge, said};
use memgauge_testing::{Need, skipped};
use serde_json::{Value, json};
use served::Served;
use tempfile::TempDir;

/// A recording of every source.
const FIXTURES: [&str; 9] = [
    "../calls",
    "emulate",
    "sampled",
    "stat",
    "clock",
    "faults",
    "import",
    "io",
    "bandwidth",
];

fn fixture(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/recordings");
    folder.join(format!("{name}.mg"))
}

/// Returns whether this program can write pages, and prints it if not.
fn has_front_end() -> bool {
    static MISSING: OnceLock<bool> = OnceLock::new();
    let missing = *MISSING.get_or_init(|| {
        let output = report(&fixture("stat"));
        said(&output).contains("without the front end")
    });
    if missing {
        skipped(Need::Tool, "the front end is not built: make web");
    }
    !missing
}

fn report(recording: &Path) -> Output {
    let mut command = memgauge();
    command
        .args(["report", "--html", "--output", "-"])
        .arg(recording);
    command.output().expect("memgauge runs")
}

fn page_of(recording: &Path) -> String {
    let output = report(recording);
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8(output.stdout).expect("a page is UTF-8")
}

/// Opens the page and asserts that nothing went wrong and nothing was fetched.
fn sound(html: &str, how: Look, script: &str) -> Option<Value> {
    Some(sound_of(&look(&chromium()?, html, how, script)))
}

/// As `sound`, of several pages.
fn sound_all(pages: &[String], how: Look, script: &str) -> Option<Vec<Value>> {
    let results = look_at_all(&chromium()?, pages, how, script);
    Some(results.iter().map(sound_of).collect())
}

fn sound_of(result: &Value) -> Value {
    assert_eq!(result["said"], json!([]));
    assert_eq!(result["asked"], json!([]));
    result["found"].clone()
}

/// Every plot, with the pixels that are drawn, and whether the page is wider than it may be.
const PLOTS: &str = r#"
  find("details").forEach((part) => (part.open = true));
  await until(() => find(".chart, .stretch").every((plot) => plot.querySelector("canvas") || plot.matches("canvas")));
  // The browser may tell its colours only after the first page has been drawn.
  await until(() => innerWidth > 500 || matchMedia("(prefers-color-scheme: dark)").matches);
  await frames();
  return {
    plots: find("figure.plot").length,
    titles: find("figure.plot .plot-title").map((t) => t.textContent),
    canvases: find("canvas").map((canvas) => painted(canvas)),
    sections: find("section").map((s) => s.id),
    unlabelled: find("canvas[role=img], .chart").filter((c) => !c.getAttribute("aria-label")).length,
    units: find("figure.plot").filter((f) => !f.querySelector(".unit")?.textContent).length,
    undefined_: find("section:not(#overview)").filter((s) => !s.querySelector("details.about p")).length,
    data: find("figure.plot").filter((f) => ![...f.querySelectorAll("button")].some((b) => b.textContent === "Get the data")).length,
    over: document.documentElement.scrollWidth - innerWidth,
    dark: getComputedStyle(document.body).backgroundColor,
  };"#;

/// Titles of plots that some sources must have.
const TITLES: [(&str, &[&str]); 4] = [
    (
        "emulate",
        &[
            "Memory bandwidth",
            "llc.miss",
            "Samples by address and time",
        ],
    ),
    ("stat", &["page-faults"]),
    (
        "clock",
        &["Samples of cpu-clock", "Samples by address and time"],
    ),
    ("faults", &["Samples of page-faults"]),
];

#[test]
fn every_source_has_its_plots_and_each_draws_on_a_wide_screen() {
    check_plots(WIDE);
}

#[test]
fn every_source_has_its_plots_and_each_draws_on_a_narrow_screen() {
    check_plots(NARROW);
}

fn check_plots(how: Look) {
    if !has_front_end() {
        return;
    }
    let pages = FIXTURES.map(|name| page_of(&fixture(name)));
    let Some(all) = sound_all(&pages, how, PLOTS) else {
        return;
    };
    for (name, found) in FIXTURES.into_iter().zip(all) {
        let canvases = found["canvases"].as_array().expect("canvases");
        let plots = found["plots"].as_u64().expect("a number");
        assert!(canvases.len() as u64 >= plots, "{name}: {found}");
        for pixels in canvases {
            assert!(pixels.as_u64() > Some(20), "{name}: an empty plot: {found}");
        }
        for nothing in ["unlabelled", "units", "undefined_", "data"] {
            assert_eq!(found[nothing], 0, "{name}, {nothing}: {found}");
        }
        assert!(
            found["over"].as_i64() <= Some(0),
            "{name} is too wide: {found}"
        );
        let sections = found["sections"].as_array().expect("sections");
        let titles = found["titles"].as_array().expect("titles");
        let expected = TITLES.iter().filter(|of| of.0 == name);
        for title in expected.flat_map(|of| of.1) {
            assert!(titles.contains(&json!(title)), "{name} lacks {title}");
        }
        for always in ["overview", "trust"] {
            assert!(sections.contains(&json!(always)), "{name}: {found}");
        }
        assert_eq!(
            found["dark"] == json!("rgb(20, 24, 27)"),
            how.is_dark,
            "{name}: {found}"
        );
    }
}

/// Asks the flame graph by its keys: the first box, what it calls, and a search.
const CALLS: &str = r##"
  const canvas = find(".flames canvas")[0];
  const told = () => find("#calls .told")[0].textContent;
  const press = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  const said = [];
  for (const key of ["ArrowDown", "ArrowDown", "Enter"]) {
    press(key);
    said.push(told());
  }
  const zoomed = canvas.height;
  press("Escape");
  const search = find("#calls input")[0];
  search.value = "WORK";
  search.dispatchEvent(new Event("input", { bubbles: true }));
  const tree = data().summary.calls[0];
  return { said, zoomed, whole: canvas.height, found: told(), tree };"##;

#[test]
fn a_flame_graph_tells_what_was_called_and_finds_functions() {
    if !has_front_end() {
        return;
    }
    let Some(found) = sound(&page_of(&fixture("../calls")), WIDE, CALLS) else {
        return;
    };
    let said = found["said"].as_array().expect("sentences");
    let share = |node: usize| {
        let tree = &found["tree"];
        let events = tree["nodes"][node]["events"].as_f64().expect("a number");
        let share = 100.0 * events / tree["events"].as_f64().expect("a number");
        format!("{share:.1} %")
    };
    for (node, sentence) in [(0, &said[0]), (1, &said[1])] {
        let sentence = sentence.as_str().expect("text");
        let name = found["tree"]["nodes"][node]["function"]
            .as_str()
            .expect("a name");
        assert!(sentence.starts_with(name), "{found}");
        assert!(
            sentence.contains(&share(node)),
            "{} in {found}",
            share(node)
        );
    }
    let sentence = found["found"].as_str().expect("text");
    assert!(sentence.contains("places match"), "{found}");
}

/// Zooms by keys and checks the tables. The sums are computed from the data independently of the
/// page.
const ZOOM: &str = r##"
  const timed = data().summary.timeline.samples;
  const all = find("#data tbody tr").length;
  const chart = find(".chart")[0];
  const press = (key) => chart.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  press("+");
  press("+");
  await frames();
  const caption = find("#hot .caption")[0].textContent;
  const event = timed.find((s) => caption.includes(" of " + s.event));
  const end = Math.max(data().summary.timeline.duration_ns, data().summary.run.duration_ns);
  const [from, to] = [0.375 * end, 0.625 * end];
  let expected = 0;
  for (const [bin, samples] of event.all.bins) {
    if ((bin + 1) * event.bin_ns > from && bin * event.bin_ns < to) expected += samples;
  }
  const rows = find("#hot .table")[0].querySelectorAll("tbody tr");
  const shown = [...rows].map((row) => Number(row.children[4].textContent));
  const selected = !find(".chip")[0].hidden;
  const pixels = find("canvas").map((c) => c.width);
  const note = find(".chart-note")[0].textContent;
  press("Escape");
  await frames();
  return {
    caption, expected, shown, selected, note, all,
    again: find("#hot .caption")[0].textContent,
    reset: find(".chip")[0].hidden,
  };"##;

#[test]
fn a_selected_range_filters_tables_and_plots() {
    if !has_front_end() {
        return;
    }
    let names = ["emulate", "clock", "sampled"];
    let pages = names.map(|name| page_of(&fixture(name)));
    let Some(all) = sound_all(&pages, WIDE, ZOOM) else {
        return;
    };
    for (name, found) in names.into_iter().zip(all) {
        let told = format!(": {} samples of", found["expected"]);
        let caption = found["caption"].as_str().expect("a caption");
        assert!(caption.contains(&told), "{name}: {found}");
        assert!(
            found["note"]
                .as_str()
                .is_some_and(|n| n.starts_with("From ")),
            "{found}"
        );
        assert_eq!(
            (&found["selected"], &found["reset"]),
            (&json!(true), &json!(true)),
            "{found}"
        );
        let again = found["again"].as_str().expect("a caption");
        assert!(!again.contains(" from "), "{name}: {found}");
        let shown = found["shown"].as_array().expect("samples");
        let shown: f64 = shown.iter().filter_map(Value::as_f64).sum();
        assert!(Some(shown) <= found["expected"].as_f64(), "{name}: {found}");
    }
}

/// Selects a quarter of the run, and computes the sums that the flame graph must have independently
/// of the page.
const ZOOMED_CALLS: &str = r##"
  const canvas = () => find(".flames canvas")[0];
  const unit = () => find("#calls .unit")[0].textContent;
  const press = (at, key) => at.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  const before = unit();
  const chart = find(".chart")[0];
  press(chart, "+");
  press(chart, "+");
  await frames();
  const { nodes, timed } = data().summary.calls[0];
  const end = Math.max(data().summary.timeline.duration_ns, data().summary.run.duration_ns);
  const [from, to] = [0.375 * end, 0.625 * end];
  const inside = (cells) => cells.filter(([bin]) => (bin + 1) * timed.bin_ns > from && bin * timed.bin_ns < to);
  const sum = (list, at) => list.reduce((all, cell) => all + cell[at], 0);
  const samples = sum(timed.own.flatMap(inside), 1);
  const all = sum(timed.own.flatMap(inside), 2);
  const isUnder = (node, top) => node === top || (nodes[node].caller !== null && isUnder(nodes[node].caller, top));
  const events = (top) => sum(timed.own.flatMap((cells, node) => (isUnder(node, top) ? inside(cells) : [])), 2);
  const tops = nodes.map((_, i) => i).filter((i) => nodes[i].caller === null);
  const share = `${((100 * events(tops[0])) / all).toFixed(1)} %`;
  press(canvas(), "ArrowDown");
  const told = find("#calls .told")[0].textContent;
  const zoomed = unit();
  press(chart, "Escape");
  await frames();
  return { before, zoomed, after: unit(), samples, share, told, top: nodes[tops[0]].function };"##;

#[test]
fn a_selected_range_filters_the_flame_graph() {
    if !has_front_end() {
        return;
    }
    let Some(found) = sound(&page_of(&fixture("../calls")), WIDE, ZOOMED_CALLS) else {
        return;
    };
    let text = |key: &str| found[key].as_str().expect("text");
    assert_eq!(text("before"), text("after"));
    assert!(text("before").ends_with("the whole run"), "{found}");
    let samples = format!("{} samples, from ", found["samples"]);
    assert!(
        found["samples"].as_u64() > Some(0) && text("zoomed").starts_with(&samples),
        "{found}"
    );
    assert!(text("told").starts_with(text("top")), "{found}");
    assert!(text("told").contains(text("share")), "{found}");
}

/// Every name of a page's data by an evil one.
fn with_evil_names(value: &mut Value) {
    const EVIL: &str =
        "</script><img src=x onerror=\"hacked=1\">'\"`\u{202e}\u{2066}&lt;b&gt;\u{0}${hacked=1}";
    const NAMES: [&str; 14] = [
        "function",
        "module",
        "name",
        "of",
        "program",
        "device",
        "command",
        "user",
        "kind",
        "title",
        "detail",
        "description",
        "text",
        "file",
    ];
    match value {
        Value::Array(items) => items.iter_mut().for_each(with_evil_names),
        Value::Object(object) => {
            for (key, value) in object {
                match value {
                    Value::String(name) if NAMES.contains(&key.as_str()) => *name = EVIL.to_owned(),
                    Value::Array(words) if words.iter().all(Value::is_string) => {
                        words.iter_mut().for_each(|word| *word = json!(EVIL));
                    }
                    other => with_evil_names(other),
                }
            }
        }
        _ => {}
    }
}

fn with_data(html: &str, change: impl FnOnce(&mut Value)) -> String {
    let (head, rest) = html.split_once("id=\"data\">").expect("data");
    let (data, end) = rest.split_once("</script>").expect("its end");
    let mut data: Value = serde_json::from_str(data).expect("JSON");
    change(&mut data);
    let data = data.to_string().replace('<', "\\u003c");
    format!("{head}id=\"data\">{data}</script>{end}")
}

#[test]
fn names_full_of_html_are_text() {
    if !has_front_end() {
        return;
    }
    let names = ["emulate", "io", "stat"];
    let pages = names.map(|name| with_data(&page_of(&fixture(name)), with_evil_names));
    let script = r#"
      find("canvas[tabindex]").forEach((c) => c.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" })));
      find("button").forEach((b) => b.textContent.startsWith("Show ") && b.click());
      await frames();
      return {
        hacked: window.hacked,
        images: find("img, iframe, object, embed, link[rel=stylesheet]").length,
        scripts: find("main script, header script").length,
        turned: /[\u202a-\u202e\u2066-\u2069]/.test(document.body.innerText + document.title),
        attributes: find("*").filter((e) => [...e.attributes].some((a) => a.name.startsWith("on") || /[\u202a-\u202e]/.test(a.value))).length,
        shown: find("main")[0].innerText.includes("onerror="),
      };"#;
    let Some(all) = sound_all(&pages, WIDE, script) else {
        return;
    };
    for (name, found) in names.into_iter().zip(all) {
        let expected = json!({
            "images": 0, "scripts": 0, "turned": false, "attributes": 0, "shown": true
        });
        assert_eq!(found, expected, "{name}");
    }
}

/// A copy of a recording, to be damaged.
fn copied(name: &str) -> TempDir {
    let copy = folder();
    let status = Command::new("cp")
        .arg("-r")
        .arg(fixture(name))
        .arg(copy.path().join("r.mg"))
        .status();
    assert!(status.expect("cp runs").success());
    copy
}

#[test]
fn damaged_and_bare_recordings_make_a_page() {
    if !has_front_end() {
        return;
    }
    type Damage<'a> = &'a dyn Fn(&Path);
    let cases: [(&str, Damage<'_>); 4] = [
        ("without samples", &|r| {
            std::fs::remove_dir_all(r.join("samples")).expect("samples")
        }),
        ("with a cut part", &|r| {
            let part = r.join("samples/part-000000.parquet");
            let bytes = std::fs::read(&part).expect("a part");
            std::fs::write(&part, &bytes[..bytes.len() / 2]).expect("it can be cut");
        }),
        ("without series and sites", &|r| {
            std::fs::remove_dir_all(r.join("series")).expect("series");
            std::fs::remove_dir_all(r.join("sites")).expect("sites");
        }),
        ("with the manifest alone", &|r| {
            for table in ["samples", "series", "sites", "threads", "modules"] {
                std::fs::remove_dir_all(r.join(table)).expect(table);
            }
        }),
    ];
    let pages = cases.map(|(_, damage)| {
        let copy = copied("emulate");
        let recording = copy.path().join("r.mg");
        damage(&recording);
        // It ends with a status of its own, because only the intact parts are shown.
        String::from_utf8(report(&recording).stdout).expect("a page is UTF-8")
    });
    let script =
        "return { trust: find('#trust')[0].innerText, warned: find('.state')[0].innerText };";
    let Some(all) = sound_all(&pages, WIDE, script) else {
        return;
    };
    for ((what, _), found) in cases.into_iter().zip(all) {
        let trust = found["trust"].as_str().expect("text");
        assert!(trust.contains("Cost of recording"), "{what}: {trust}");
        if what == "with a cut part" {
            assert!(trust.contains("part-000000.parquet"), "{what}: {trust}");
            assert!(
                found["warned"]
                    .as_str()
                    .is_some_and(|w| w.contains("could not be read")),
                "{found}"
            );
        }
    }
}

#[test]
fn the_table_of_caches_fits_a_phone() {
    if !has_front_end() {
        return;
    }
    // No window of the browser is narrower than 485 pixels.
    let script = "document.documentElement.style.width = '400px'; await frames();
        const table = find('#levels .scroll')[0]; return table.scrollWidth - table.clientWidth;";
    let over = sound(&page_of(&fixture("emulate")), NARROW, script);
    assert!(over.as_ref().is_none_or(|over| over == 0), "{over:?}");
}

#[test]
fn one_sample_makes_a_page() {
    if !has_front_end() {
        return;
    }
    let html = with_data(&page_of(&fixture("faults")), |data| {
        let timeline = &mut data["summary"]["timeline"];
        timeline["samples"][0]["all"]["bins"] = json!([[0, 1, 1]]);
        timeline["samples"][0]["bins"] = json!(1);
        timeline["duration_ns"] = json!(0);
    });
    assert!(sound(&html, NARROW, PLOTS).is_none_or(|found| found["over"].as_i64() <= Some(0)));
}

#[test]
fn curves_are_drawn_with_the_caches_marked() {
    if !has_front_end() {
        return;
    }
    let here = folder();
    let list = here.path().join("addresses.raw");
    let words = (0..60_000u64).map(|i| ((i * i) % 9973) * 64);
    std::fs::write(&list, words.flat_map(u64::to_le_bytes).collect::<Vec<u8>>()).expect("a list");
    let page = here.path().join("curve.html");
    let mrc = |options: &[&str]| {
        let output = memgauge()
            .arg("mrc")
            .args(options)
            .arg(&list)
            .output()
            .expect("memgauge runs");
        assert!(output.status.success(), "{}", said(&output));
    };
    mrc(&["--sample", "0.5", "--html", page.to_str().expect("text")]);
    let html = std::fs::read_to_string(&page).expect("a page");
    let script = PLOTS.replace(
        "plots: find",
        "note: find('#misses .chart-note')[0].textContent, plots: find",
    );
    let Some(found) = sound(&html, WIDE, &script) else {
        return;
    };
    assert_eq!(found["plots"], 1, "{found}");
    assert!(found["canvases"][0].as_u64() > Some(500), "{found}");
    assert!(
        found["note"]
            .as_str()
            .is_some_and(|n| n.starts_with("Sampled")),
        "{found}"
    );
    let json = here.path().join("curve.json");
    mrc(&[&format!("--json={}", json.display())]);
    let mut command = memgauge();
    command
        .args(["report", "--html", "-o", "-", "--curves"])
        .arg(&json)
        .arg(fixture("emulate"));
    let output = command.output().expect("memgauge runs");
    assert!(output.status.success(), "{}", said(&output));
    let html = String::from_utf8(output.stdout).expect("text");
    let found = sound(&html, WIDE, "return find('#misses figure').length;");
    assert_eq!(found, Some(json!(1)));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let here = folder();
    let refused = |arguments: &[&str], code: i32, words: &str| {
        let mut command = memgauge();
        command.current_dir(here.path()).args(arguments);
        let output = command.output().expect("memgauge runs");
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {}",
            said(&output)
        );
        assert!(
            said(&output).contains(words),
            "{arguments:?}: {}",
            said(&output)
        );
    };
    let stat = fixture("stat");
    let stat = stat.to_str().expect("text");
    refused(
        &["report", stat, "--html", "--json"],
        2,
        "cannot be used with",
    );
    if !has_front_end() {
        return;
    }
    refused(
        &["report", stat, "--html", "--curves", stat],
        125,
        "failed to read",
    );
    std::fs::write(here.path().join("no.json"), "[1]").expect("a file");
    refused(
        &["report", stat, "--html", "--curves", "no.json"],
        125,
        "mrc --json",
    );
    refused(
        &["report", stat, "--html", "-o", "/no/such/folder/x.html"],
        125,
        "/no/such/folder",
    );
}

#[test]
fn a_page_lies_beside_its_recording_unless_told_otherwise() {
    if !has_front_end() {
        return;
    }
    let copy = copied("stat");
    let mut command = memgauge();
    command
        .current_dir(copy.path())
        .args(["report", "r.mg", "--html"]);
    let output = command.output().expect("memgauge runs");
    assert!(output.status.success(), "{}", said(&output));
    assert!(copy.path().join("r.html").is_file(), "{}", said(&output));
    assert!(said(&output).contains("r.html"));
}

#[test]
fn equal_recordings_make_equal_pages() {
    if !has_front_end() {
        return;
    }
    for name in ["emulate", "clock", "io"] {
        assert!(page_of(&fixture(name)) == page_of(&fixture(name)), "{name}");
    }
}
/// Browsers open connections ahead of their requests.
#[test]
fn a_connection_without_a_request_holds_up_no_other() {
    if !has_front_end() {
        return;
    }
    let served = Served::of(&fixture("emulate"));
    let address = format!("127.0.0.1:{}", served.port());
    let mut silent = TcpStream::connect(address).expect("it listens");
    let (status, _) = served.get(&format!("/?token={}", served.token()), "127.0.0.1");
    assert_eq!(status, "HTTP/1.1 200 OK");
    // Not closed before the other had its answer.
    silent.set_nonblocking(true).expect("it can be asked");
    let read = silent.read(&mut [0]).expect_err("nothing came");
    assert_eq!(read.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn view_serves_the_page_and_parts_to_who_knows_the_token() {
    if !has_front_end() {
        return;
    }
    let served = Served::of(&fixture("emulate"));
    let token = served.token();
    assert_eq!(token.len(), 32);
    let other = "0".repeat(32);
    for (path, host) in [
        ("/".to_owned(), "127.0.0.1"),
        (format!("/?token={other}"), "127.0.0.1"),
        (format!("/?token={token}"), "evil.example"),
        (format!("/part?from=0&to=9&token={other}"), "127.0.0.1"),
    ] {
        let (status, body) = served.get(&path, host);
        assert_eq!(status, "HTTP/1.1 403 Forbidden", "{path} {host}");
        assert!(!body.contains(token) && body.len() < 200, "{body}");
    }
    let (status, page) = served.get(&format!("/?token={token}"), "127.0.0.1");
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert!(page.contains("id=\"data\""));
    // Two halves of a run have all its samples and all that counters gained.
    let whole = part(&served, 0, u64::MAX);
    let end = whole["duration_ns"].as_u64().expect("a length") + 1;
    let halves = [part(&served, 0, end / 2), part(&served, end / 2, end)];
    let samples = |part: &Value| {
        let events = part["samples"].as_array().expect("samples");
        events
            .iter()
            .map(|e| e["all"]["samples"].as_u64().expect("a count"))
            .sum::<u64>()
    };
    assert_eq!(samples(&whole), samples(&halves[0]) + samples(&halves[1]));
    let gained = |part: &Value| {
        let curves = part["curves"].as_array().expect("curves").iter();
        let of = |c: &Value| {
            c["values"]
                .as_array()
                .expect("values")
                .iter()
                .filter_map(Value::as_f64)
                .sum::<f64>()
        };
        curves.map(of).sum::<f64>()
    };
    let (all, both) = (gained(&whole), gained(&halves[0]) + gained(&halves[1]));
    assert!(
        all > 0.0 && (all - both).abs() <= all * 1e-3,
        "{all} and {both}"
    );
}

fn part(served: &Served, from: u64, to: u64) -> Value {
    let path = format!("/part?from={from}&to={to}&token={}", served.token());
    let (status, body) = served.get(&path, "127.0.0.1");
    assert_eq!(status, "HTTP/1.1 200 OK", "{body}");
    serde_json::from_str(&body).expect("JSON")
}

#[test]
fn a_served_page_fetches_what_is_selected() {
    let Some(browser) = chromium().filter(|_| has_front_end()) else {
        return;
    };
    let served = Served::of(&fixture("emulate"));
    // The page runs in a file of the same origin's address space: it asks the server by
    // its full address, which stands in for the path.
    let (_, page) = served.get(&format!("/?token={}", served.token()), "127.0.0.1");
    let origin = format!("http://127.0.0.1:{}", served.port());
    let script = r#"
      const asked = [];
      window.fetch = (path) => { asked.push(path); return new Promise(() => {}); };
      find(".chart")[0].dispatchEvent(new KeyboardEvent("keydown", { key: "+", bubbles: true }));
      await until(() => asked.length > 0);
      return asked;"#;
    let folder = folder();
    let file = folder.path().join("page.html");
    std::fs::write(&file, with_scripts(&page, script)).expect("a page");
    let result = open(&browser, &format!("file://{}", file.display()), WIDE);
    assert_eq!(result["said"], json!([]));
    let path = result["found"][0].as_str().expect("a path");
    assert!(path.starts_with("/part?from="), "{path} of {origin}");
    let (status, body) = served.get(path, "127.0.0.1");
    assert_eq!(status, "HTTP/1.1 200 OK", "{body}");
    let part: Value = serde_json::from_str(&body).expect("JSON");
    assert!(part["start_ns"].as_u64() > Some(0), "{part}");
}
