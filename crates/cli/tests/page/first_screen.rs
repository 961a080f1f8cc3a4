//! The page of a real recording as a user meets it: the first screen, a narrow screen, search,
//! sorting, links to what is shown, the flame graph.

use std::path::PathBuf;
use std::sync::OnceLock;

use serde_json::{Value, json};

use super::driver::Driver;
use super::harness::{Recorded, needs};
use super::{chromium, has_front_end, page_of};

/// Looks up a hash table at random, sums a matrix by its columns, and computes.
const PARTICLES: &str = r#"
#include <cstdio>
#include <unordered_map>
#include <vector>
static std::unordered_map<unsigned long, unsigned> owner;
static std::vector<double> grid;
enum { N = 60000, G = 800 };
__attribute__((noinline)) unsigned long lookups(unsigned n) {
  unsigned long r = 0, k = 12345;
  for (unsigned i = 0; i < n; i++) {
    k = k * 6364136223846793005UL + 1442695040888963407UL;
    auto it = owner.find((k >> 33) % N);
    if (it != owner.end()) r += it->second;
  }
  return r;
}
__attribute__((noinline)) double column_sum() {
  double s = 0;
  for (int c = 0; c < G; c++)
    for (int r = 0; r < G; r++)
      s += grid[r * G + c];
  return s;
}
__attribute__((noinline)) double compute() {
  double s = 1;
  for (int i = 1; i < 4000000; i++) s = s * 1.0000001 + 1.0 / i;
  return s;
}
int main() {
  for (unsigned long i = 0; i < N; i++) owner[i * 7 % N] = i;
  grid.resize(G * G, 1.5);
  double c = 0;
  for (int i = 0; i < 6; i++) c += column_sum();
  printf("%lu %g %g\n", lookups(150000), c, compute());
}
"#;

/// The page of a recording of [`PARTICLES`], made once; `None` if a tool is missing.
fn page() -> Option<(&'static str, PathBuf)> {
    static PAGE: OnceLock<String> = OnceLock::new();
    let browser = chromium().filter(|_| has_front_end() && needs(&["g++"]))?;
    let html = PAGE.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let source = folder.path().join("particles.cpp");
        std::fs::write(&source, PARTICLES).expect("the source can be written");
        let program = folder.path().join("particles");
        let mut gxx = std::process::Command::new("g++");
        let gxx = gxx.args(["-O2", "-g", "-o"]).arg(&program).arg(&source);
        assert!(gxx.status().expect("g++ runs").success());
        let program = program.to_str().expect("temporary paths are text");
        let recorded = Recorded::new(&["--machine", "i5-6600k", "-g"], &[program]);
        assert_eq!(recorded.code(), Some(0), "{}", recorded.said());
        page_of(&recorded.path())
    });
    Some((html, browser))
}

fn texts(driver: &mut Driver, selector: &str) -> Vec<String> {
    let found = driver.evaluate(&format!(
        "[...document.querySelectorAll({selector:?})].map((e) => e.textContent)"
    ));
    let found = found.as_array().expect("elements").iter();
    let text = |e: &Value| e.as_str().expect("a text").to_owned();
    found.map(text).collect()
}

fn click(driver: &mut Driver, element: &str) {
    let middle = driver.scroll_to(element).at(0.5, 0.5);
    driver.click(middle, 1);
}

#[test]
fn the_first_screen_names_the_places_their_lines_and_the_data() {
    let Some((html, browser)) = page() else {
        return;
    };
    let mut driver = Driver::open(&browser, html, 1280, 800);
    let names = texts(&mut driver, ".places .place-name bdi");
    for function in ["lookups", "column_sum", "compute"] {
        let is_named = names.iter().any(|name| name.starts_with(function));
        assert!(is_named, "{function} in {names:?}");
    }
    // The library's code that was inlined into it counts for the line of the program.
    let lines = texts(&mut driver, ".place-source");
    let line = lines.iter().find(|line| line.contains("owner.find("));
    assert!(line.is_some(), "{lines:?}");
    // The rate of a phase is shown completely, or only in the tooltip if the phase is too narrow.
    let cut = driver.evaluate(
        "[...document.querySelectorAll('.phase b')].filter((rate) =>
           getComputedStyle(rate).visibility === 'visible' &&
           rate.getBoundingClientRect().right > rate.closest('.phase').getBoundingClientRect().right)
         .map((rate) => rate.textContent)",
    );
    assert_eq!(cut, json!([]));
    // All of it is on the screen before anything is scrolled.
    let ends = driver.evaluate(
        "['.main-finding', '.time-use', '.places', '.u-over', '.phases', '.top-data'].map((part) => {
           const { top, bottom } = document.querySelector(part).getBoundingClientRect();
           return [part, top, bottom];
         })",
    );
    for part in ends.as_array().expect("parts") {
        let (top, bottom) = (part[1].as_f64(), part[2].as_f64());
        assert!(top > Some(0.0) && bottom <= Some(800.0), "{part}");
    }
}

#[test]
fn the_page_begins_with_the_main_finding() {
    let Some((html, browser)) = page() else {
        return;
    };
    for width in [1280, 400] {
        let mut driver = Driver::open(&browser, html, width, 800);
        let [first, ..] = &texts(&mut driver, "#advice .cause .said")[..] else {
            panic!("no finding");
        };
        let found = texts(&mut driver, "#overview .main-finding");
        assert_eq!(found, [format!("{first} What to do")]);
        let bottom = driver
            .evaluate("document.querySelector('.main-finding').getBoundingClientRect().bottom");
        assert!(bottom.as_f64() < Some(600.0), "{width} pixels: {bottom}");
        click(&mut driver, "document.querySelector('.main-finding a')");
        let top = driver.evaluate("document.querySelector('#advice').getBoundingClientRect().top");
        assert!(top.as_f64() < Some(400.0), "{width} pixels: {top}");
    }
}

/// A Python script that spends its time in one line, and a C function with a long name.
#[test]
fn the_first_screen_of_a_script_begins_with_its_lines() {
    let Some(browser) = chromium().filter(|_| has_front_end() && needs(&["python3"])) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let script = folder.path().join("dedupe.py");
    let text = "def dedupe(items):\n    seen = []\n    for item in items:\n        \
                if item not in seen:\n            seen.append(item)\n    return seen\n\
                print(len(dedupe(range(1500))))\n";
    std::fs::write(&script, text).expect("the script can be written");
    let script = script.to_str().expect("temporary paths are text");
    let recorded = Recorded::new(&["--machine", "i5-6600k"], &["python3", script]);
    assert_eq!(recorded.code(), Some(0), "{}", recorded.said());
    let mut driver = Driver::open(&browser, &page_of(&recorded.path()), 1280, 800);
    let titles = texts(&mut driver, ".first h3");
    assert_eq!(titles[0], "Where cycles go, by line of Python");
    assert_eq!(titles[1], "Where cycles go, by function in C");
    let names = texts(&mut driver, ".places .place-name bdi");
    assert_eq!(names[0], "dedupe.py:4");
    let bottom =
        driver.evaluate("document.querySelector('.places').getBoundingClientRect().bottom");
    assert!(bottom.as_f64() < Some(800.0), "{bottom}");
}

#[test]
fn a_long_name_stays_in_its_column() {
    let Some(browser) = chromium().filter(|_| has_front_end() && needs(&["gcc"])) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let source = folder.path().join("long.c");
    let text = "__attribute__((noinline)) long NAME(long n)\n\
                { volatile long sum = 0; while (n--) sum += n; return sum; }\n\
                int main(void) { return NAME(9000000) == 1; }\n";
    let text = text.replace("NAME", &"wmw_mwm_".repeat(7));
    std::fs::write(&source, text).expect("the source can be written");
    let program = folder.path().join("long");
    let mut gcc = std::process::Command::new("gcc");
    let gcc = gcc.args(["-O2", "-g", "-o"]).arg(&program).arg(&source);
    assert!(gcc.status().expect("gcc runs").success());
    let program = program.to_str().expect("temporary paths are text");
    let recorded = Recorded::new(&["--machine", "i5-6600k"], &[program]);
    let mut driver = Driver::open(&browser, &page_of(&recorded.path()), 1280, 800);
    let widths = driver.evaluate(
        "[...document.querySelectorAll('.place-name')].map((e) => [e.scrollWidth, e.clientWidth])",
    );
    for width in widths.as_array().expect("widths") {
        assert!(width[0].as_u64() <= width[1].as_u64(), "{widths}");
    }
}

/// The tables of data and of the heap add up, and a row opens the calls that allocated it.
#[test]
fn rows_of_data_open_the_calls_that_allocated_it() {
    let Some((html, browser)) = page() else {
        return;
    };
    let mut driver = Driver::open(&browser, html, 1280, 800);
    let first = texts(&mut driver, ".top-data tbody tr:first-child bdi");
    let rows = texts(
        &mut driver,
        "#data table:first-of-type tbody tr th, #data table:first-of-type tbody tr td:first-child",
    );
    assert!(
        first.len() == 1 && rows[0].contains(&first[0]),
        "{first:?} {rows:?}"
    );
    let captions = texts(&mut driver, "#data .caption");
    for table in ["Data by stalled cycles", "Heap: "] {
        assert!(
            captions.iter().any(|c| c.starts_with(table)),
            "{captions:?}"
        );
    }
    click(
        &mut driver,
        "document.querySelector('#data button[aria-expanded]')",
    );
    let calls = texts(&mut driver, ".call-list li");
    let named = texts(&mut driver, ".call-list li.named");
    assert!(calls.iter().any(|call| call.contains("main")), "{calls:?}");
    assert_eq!(named.len(), 1, "{calls:?}");
}

/// A level has one colour in the bar, in tables and in curves.
#[test]
fn a_memory_level_has_the_same_colour_everywhere() {
    let Some((html, browser)) = page() else {
        return;
    };
    let mut driver = Driver::open(&browser, html, 1280, 800);
    let colours = driver.evaluate(
        "(() => {
           const colour = (e) => getComputedStyle(e).backgroundColor;
           const levels = {};
           for (const e of document.querySelectorAll('[class*=level-]')) {
             const level = e.className.match(/level-(\\w+)/)[1];
             (levels[level] ??= new Set()).add(colour(e));
           }
           return Object.entries(levels).map(([level, seen]) => [level, [...seen]]);
         })()",
    );
    let colours = colours.as_array().expect("levels");
    assert!(colours.len() >= 5, "{colours:?}");
    let mut all = Vec::new();
    for level in colours {
        let seen = level[1].as_array().expect("colours");
        assert_eq!(seen.len(), 1, "{level}");
        assert!(!all.contains(&seen[0]), "{level} shares its colour");
        all.push(seen[0].clone());
    }
}

#[test]
fn other_functions_show_their_share_of_every_column() {
    let Some((html, browser)) = page() else {
        return;
    };
    let mut driver = Driver::open(&browser, html, 1280, 800);
    let found = driver.evaluate(
        "(() => {
           const { functions } = JSON.parse(document.getElementById('data').textContent).summary.hot;
           const sum = (rows, event) => rows.reduce((all, row) => all + (row.counts[event] ?? 0), functions.others.counts[event] ?? 0);
           const share = (event) => sum(functions.rows.slice(10), event) / sum(functions.rows, event);
           const cells = [...document.querySelectorAll('#hot .table')[0].querySelectorAll('.others td')];
           const cell = (title) => cells.find((c) => c.dataset.title === title)?.textContent;
           return [['L1D misses', 'l1d.miss'], ['LLC misses', 'llc.miss']].map(([title, event]) => [title, cell(title), share(event)]);
         })()",
    );
    for column in found.as_array().expect("columns") {
        let shown = column[1].as_str().expect("a share");
        let expected = 100.0 * column[2].as_f64().expect("a share");
        match shown.strip_suffix(" %").expect("per cent") {
            "<0.01" => assert!(expected < 0.01, "{column}"),
            number => {
                let number: f64 = number.parse().expect("a number");
                assert!((number - expected).abs() < 0.06, "{column}");
            }
        }
    }
}

/// Elements whose content is cut or reaches out of the window, and words that are broken.
const CUT: &str = r#"(() => {
  document.querySelectorAll("details").forEach((part) => (part.open = true));
  const cut = [];
  for (const e of document.querySelectorAll("main *, header *, nav *")) {
    const { left, right, width } = e.getBoundingClientRect();
    if (width === 0 || e.closest(".source, .place-source, .phases, .u-hz, .flames, .skip")) continue;
    if (left < -1 || right > innerWidth + 1) cut.push(`${e.tagName}.${e.className} ${left} ${right}`);
    if (e.matches(".scroll, section, td, th, p") && e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== "inline")
      cut.push(`${e.tagName}.${e.className} is ${e.scrollWidth} in ${e.clientWidth}`);
  }
  const broken = [];
  for (const e of document.querySelectorAll("main th, main td, main p, main li, main dd")) {
    const texts = document.createTreeWalker(e, NodeFilter.SHOW_TEXT);
    for (let text = texts.nextNode(); text !== null; text = texts.nextNode()) {
      for (const word of text.data.matchAll(/[A-Za-z]{7,24}/g)) {
        const range = document.createRange();
        range.setStart(text, word.index);
        range.setEnd(text, word.index + word[0].length);
        const lines = new Set([...range.getClientRects()].filter((r) => r.width > 0).map((r) => Math.round(r.top)));
        if (lines.size > 1) broken.push(word[0]);
      }
    }
  }
  return [cut.slice(0, 5), broken.slice(0, 5)];
})()"#;

#[test]
fn a_narrow_screen_cuts_nothing_and_breaks_no_word() {
    let Some((html, browser)) = page() else {
        return;
    };
    let mut driver = Driver::open(&browser, html, 400, 800);
    assert_eq!(driver.evaluate(CUT), json!([[], []]));
    // Every section can be reached from anywhere on the page.
    let sections =
        driver.evaluate("[...document.querySelectorAll('main > section')].map((s) => s.id)");
    let offered =
        driver.evaluate("[...document.querySelector('.jump').options].map((o) => o.value)");
    assert_eq!(sections, offered);
    let top = driver.evaluate(
        "(() => {
           const jump = document.querySelector('.jump');
           jump.value = 'threads';
           jump.dispatchEvent(new Event('change'));
           const nav = document.querySelector('nav').getBoundingClientRect();
           const section = document.getElementById('threads').getBoundingClientRect();
           const end = document.documentElement.scrollHeight - innerHeight - scrollY < 2;
           return [nav.top, end || Math.abs(section.top - nav.bottom) < 40];
         })()",
    );
    assert_eq!(top, json!([0, true]));
}

#[test]
fn a_window_made_narrow_is_drawn_again() {
    let Some((html, browser)) = page() else {
        return;
    };
    let mut driver = Driver::open(&browser, html, 1280, 800);
    let width = "document.querySelector('.flames canvas').getBoundingClientRect().width";
    let wide = driver.evaluate(width).as_f64().expect("a width");
    driver.resize(400, 800);
    assert_eq!(driver.evaluate(CUT), json!([[], []]));
    let narrow = driver.evaluate(width).as_f64().expect("a width");
    let drawn = "document.querySelector('.flames canvas').width";
    assert!(narrow < 400.0 && wide > 1000.0, "{narrow} {wide}");
    let drawn = driver.evaluate(drawn).as_f64().expect("a width");
    assert!((drawn - narrow).abs() <= 1.0, "{drawn} in {narrow}");
}

/// Types into the search field and returns the suggestions.
fn search(driver: &mut Driver, text: &str) -> Vec<String> {
    driver.evaluate("document.querySelector('nav .search').value = ''; document.querySelector('nav .search').focus()");
    driver.send("Input.insertText", json!({ "text": text }));
    driver.frames();
    texts(driver, ".found .found-item")
}

#[test]
fn search_finds_functions_lines_data_and_frames_and_shows_them() {
    let Some((html, browser)) = page() else {
        return;
    };
    let mut driver = Driver::open(&browser, html, 1280, 800);
    let found = search(&mut driver, "COLUMN_sum");
    let kinds = texts(&mut driver, ".found .found-kind");
    for kind in ["Functions", "Source lines", "Flame graph"] {
        assert!(
            kinds.iter().any(|k| k.starts_with(kind)),
            "{kind}: {kinds:?} {found:?}"
        );
    }
    click(&mut driver, "document.querySelector('.found .found-item')");
    let marked = texts(&mut driver, "tr.marked th");
    assert!(marked[0].starts_with("column_sum"), "{marked:?}");
    let shown = driver.evaluate(
        "(() => { const { top, bottom } = document.querySelector('tr.marked').getBoundingClientRect();
           return top >= 0 && bottom <= innerHeight; })()",
    );
    assert_eq!(shown, json!(true));
    assert!(
        search(&mut driver, "heap")
            .iter()
            .any(|f| f.contains("[heap]"))
    );
    assert!(search(&mut driver, "no such name").is_empty());
    assert_eq!(
        texts(&mut driver, ".found .found-kind"),
        ["Nothing has this name."]
    );
}

/// Choices of a reader: order, stretch, box of the flame graph and its colours.
const CHOSEN: &str = r##"(() => {
  const sorted = document.querySelector("#hot th[aria-sort=descending]");
  return [
    sorted?.textContent,
    [...document.querySelectorAll("#hot .table tbody tr:not(.others):not(.detail)")].slice(0, 10).map((r) => r.children[0].textContent),
    document.querySelector("#calls .told").textContent,
    [...document.querySelectorAll("#calls .time-legend bdi")].map((e) => e.textContent),
  ];
})()"##;

#[test]
fn a_link_leads_to_what_was_shown() {
    let Some((html, browser)) = page() else {
        return;
    };
    let mut driver = Driver::open(&browser, html, 1280, 800);
    click(
        &mut driver,
        "[...document.querySelectorAll('#hot th button')].find((b) => b.textContent === 'L1D misses')",
    );
    driver.evaluate(
        "(() => { const s = document.querySelector('select[aria-label=\"What colours mean\"]');
           s.value = 'module'; s.dispatchEvent(new Event('change')); })()",
    );
    let graph = driver.scroll_to("document.querySelector('.flames canvas')");
    driver.click(graph.at(0.3, 0.1), 1);
    click(
        &mut driver,
        "document.querySelector('nav a[href=\"#calls\"]')",
    );
    let chosen = driver.evaluate(CHOSEN);
    assert_eq!(chosen[0], json!("L1D misses"), "{chosen}");
    assert!(
        chosen[2]
            .as_str()
            .is_some_and(|told| told.contains("with what it calls")),
        "{chosen}"
    );
    assert!(chosen[3].to_string().contains("particles"), "{chosen}");
    driver.reload();
    assert_eq!(driver.evaluate(CHOSEN), chosen);
    let visible = driver.evaluate(
        "Math.abs(document.getElementById('calls').getBoundingClientRect().top) < innerHeight / 2",
    );
    assert_eq!(visible, json!(true));
    // The selected stretch is kept, too.
    let plot = driver.scroll_to("document.querySelector('.u-over')");
    driver.drag(plot.at(0.2, 0.5), plot.at(0.6, 0.5));
    let chip = "document.querySelector('.chip span').textContent";
    let told = driver.evaluate(chip);
    assert!(
        told.as_str().is_some_and(|t| t.starts_with("Selected: ")),
        "{told}"
    );
    driver.reload();
    assert_eq!(driver.evaluate(chip), told);
}

/// Colours show causes or modules. Both are drawn, and the boxes keep their names.
#[test]
fn a_flame_graph_is_coloured_by_cause_or_by_module() {
    let Some((html, browser)) = page() else {
        return;
    };
    let mut driver = Driver::open(&browser, html, 1280, 800);
    let pixels = "(() => { const c = document.querySelector('.flames canvas');
      return [...new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer))].length +
        ' ' + [...c.getContext('2d').getImageData(5, 2, 1, 1).data].join() })()";
    let causes = texts(&mut driver, "#calls .time-legend bdi");
    assert!(
        causes.iter().any(|words| words.starts_with("waiting for")),
        "{causes:?}"
    );
    let before = driver.evaluate(pixels);
    driver.evaluate(
        "(() => { const s = document.querySelector('select[aria-label=\"What colours mean\"]');
           s.value = 'module'; s.dispatchEvent(new Event('change')); })()",
    );
    driver.frames();
    let modules = texts(&mut driver, "#calls .time-legend bdi");
    assert!(
        modules.iter().any(|module| module.contains("particles")),
        "{modules:?}"
    );
    assert_ne!(driver.evaluate(pixels), before);
}

#[test]
fn machine_code_opens_below_a_function_with_its_cycles_in_the_margin() {
    let Some((html, browser)) = page() else {
        return;
    };
    let mut driver = Driver::open(&browser, html, 1280, 800);
    let row = "[...document.querySelectorAll('#hot .table')[0].querySelectorAll('tbody tr')]
        .find((r) => r.children[0].textContent.startsWith('compute'))";
    click(&mut driver, &format!("{row}.querySelector('button')"));
    let code = driver.evaluate(&format!("{row}.nextElementSibling.textContent"));
    let code = code.as_str().expect("a listing");
    // The loop divides, multiplies and adds, and its source line stands above.
    for words in [
        "Machine code of compute",
        "divsd",
        "mulsd",
        "addsd",
        "s = s * 1.0000001",
    ] {
        assert!(code.contains(words), "{words} in {code}");
    }
    // Its instructions have all cycles of the function, which has no code elsewhere.
    let sums = driver.evaluate(
        "(() => {
           const { hot, listings } = JSON.parse(document.getElementById('data').textContent).summary;
           const row = hot.functions.rows.find((r) => r.function.startsWith('compute'));
           const listing = listings.find((l) => l.function === row.function);
           return [row.value, listing.instructions.reduce((sum, i) => sum + i.value, 0), listing.omitted];
         })()",
    );
    assert_eq!(sums[0], sums[1]);
    assert_eq!(sums[2], json!(0));
    // The address keeps which parts are open.
    driver.reload();
    let again = driver.evaluate(&format!("{row}.nextElementSibling.textContent"));
    assert_eq!(again.as_str(), Some(code));
}

#[test]
fn the_page_says_why_there_is_no_machine_code() {
    let Some((html, browser)) = page() else {
        return;
    };
    let html = super::with_data(html, |data| {
        for listing in data["summary"]["listings"]
            .as_array_mut()
            .expect("listings")
        {
            listing["instructions"] = json!([]);
            listing["missing"] = json!("the recorded file is gone or has changed");
        }
    });
    let mut driver = Driver::open(&browser, &html, 1280, 800);
    click(
        &mut driver,
        "document.querySelector('#hot .table tbody button')",
    );
    let told = texts(&mut driver, "#hot tr.detail:not([hidden])");
    assert_eq!(
        told,
        ["No machine code: the recorded file is gone or has changed."]
    );
}
