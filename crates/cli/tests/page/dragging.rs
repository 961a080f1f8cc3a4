//! A stretch of time is selected by dragging over any plot, with a real pointer.

use serde_json::{Value, json};

use super::driver::Driver;
use super::{chromium, fixture, has_front_end, lanes, page_of, with_data};

/// Everything over which a stretch of time is dragged, with a name.
const SURFACES: &str = r#"
  window.surfaces = [...document.querySelectorAll("figure.plot .u-over, figure.plot .stretch canvas")]
    .filter((s) => s.checkVisibility() && s.closest("figure").querySelector(".chart[role=application], .stretch"));
  surfaces.map((s) => s.closest("figure").querySelector(".plot-title").textContent);"#;

/// Ends of the selected stretch on the page; null if everything is selected.
const SELECTED: &str = r#"(() => {
  const chip = document.querySelector(".chip");
  return chip.hidden ? null : chip.querySelector("span").textContent;
})()"#;

/// Nanoseconds of a time as the page writes it.
fn nanoseconds(text: &str) -> f64 {
    let (number, unit) = text.trim().split_once(' ').unwrap_or((text, "ns"));
    let scale = match unit {
        "ns" => 1.0,
        "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => panic!("a unit of time in {text:?}"),
    };
    number.parse::<f64>().expect("a number") * scale
}

/// The selected stretch as shares of the run.
fn selected(driver: &mut Driver, duration_ns: f64) -> [f64; 2] {
    let told = driver.evaluate(SELECTED);
    let told = told.as_str().expect("a stretch is selected");
    let range = told.strip_prefix("Selected: ").expect("what is selected");
    let (from, to) = range.split_once(" to ").expect("two ends");
    [from, to].map(|end| nanoseconds(end) / duration_ns)
}

fn assert_close(actual: [f64; 2], expected: [f64; 2], what: &str) {
    // A step of the pointer is a pixel of some hundred, and times have three digits or more.
    let is_close = |i: usize| (actual[i] - expected[i]).abs() < 0.012;
    assert!(
        is_close(0) && is_close(1),
        "{what}: {actual:?} for {expected:?}"
    );
}

fn duration_of(driver: &mut Driver) -> f64 {
    let ends = driver.evaluate(
        r#"(() => {
          const { summary, io } = JSON.parse(document.getElementById("data").textContent);
          return [summary?.timeline?.duration_ns, summary?.run?.duration_ns, io?.over_time?.duration_ns];
        })()"#,
    );
    let ends = ends.as_array().expect("ends").iter();
    ends.filter_map(Value::as_f64).fold(1.0, f64::max)
}

/// Times that all curves show while the pointer is over the middle of the first one, as shares of
/// the run. The other curves follow the pointer.
fn told_times(driver: &mut Driver, duration_ns: f64) -> Vec<f64> {
    let middle = driver
        .scroll_to("document.querySelector('.u-over')")
        .at(0.5, 0.5);
    driver.hover(middle);
    let notes = driver.evaluate(
        "[...document.querySelectorAll('.chart:has(.u-over) ~ .chart-note')].map((n) => n.textContent)",
    );
    let notes = notes.as_array().expect("notes").iter();
    notes
        .map(|note| {
            let note = note.as_str().expect("a note");
            let time = note
                .strip_prefix("At ")
                .and_then(|rest| rest.split_once(": "));
            let time = time.unwrap_or_else(|| panic!("a time in {note:?}")).0;
            nanoseconds(time) / duration_ns
        })
        .collect()
}

/// Curves and samples in a thousand bins.
fn with_fine_bins(data: &mut Value) {
    const BINS: u64 = 1000;
    const BIN_NS: u64 = 45_570;
    let summary = &mut data["summary"];
    summary["run"]["duration_ns"] = json!(BINS * BIN_NS);
    let timeline = &mut summary["timeline"];
    timeline["duration_ns"] = json!(BINS * BIN_NS);
    timeline["bin_ns"] = json!(BIN_NS);
    for curve in timeline["curves"].as_array_mut().expect("curves") {
        curve["values"] = (0..BINS).map(|i| i % 7).collect();
    }
    for samples in timeline["samples"].as_array_mut().expect("samples") {
        samples["bin_ns"] = json!(BIN_NS);
        samples["bins"] = json!(BINS);
        samples["all"]["bins"] = (0..BINS).map(|i| json!([i, 1, 1])).collect();
    }
}

/// Drags over every plot of a page, over the whole run and over a stretch.
fn check_dragging(name: &str, html: &str, width: u32) {
    let Some(browser) = chromium() else { return };
    let mut driver = Driver::open(&browser, html, width, 900);
    if width > 1000 {
        driver
            .evaluate("document.querySelectorAll('details').forEach((part) => (part.open = true))");
        driver.frames();
    }
    let titles = driver.evaluate(SURFACES);
    let titles = titles.as_array().expect("plots").clone();
    assert!(!titles.is_empty(), "{name} has plots");
    let duration_ns = duration_of(&mut driver);
    for (number, title) in titles.iter().enumerate() {
        let surface = format!("surfaces[{number}]");
        let what = format!("{name} at {width}, {title}");
        let area = driver.scroll_to(&surface);
        driver.drag(area.at(0.2, 0.5), area.at(0.6, 0.5));
        assert_close(selected(&mut driver, duration_ns), [0.2, 0.6], &what);

        // Drags within the stretch from right to left. The new stretch is a share of the current
        // one.
        let area = driver.scroll_to(&surface);
        driver.drag(area.at(0.75, 0.4), area.at(0.25, 0.6));
        assert_close(selected(&mut driver, duration_ns), [0.3, 0.5], &what);
        for (curve, time) in told_times(&mut driver, duration_ns).iter().enumerate() {
            assert!(
                (0.39..=0.41).contains(time),
                "{what}, curve {curve}: {time}"
            );
        }

        let area = driver.scroll_to(&surface);
        driver.click(area.at(0.5, 0.5), 2);
        assert_eq!(driver.evaluate(SELECTED), Value::Null, "{what}");

        // Drags beyond the plot. The stretch ends at the end of the plot.
        let area = driver.scroll_to(&surface);
        let outside = area.at(1.0, 0.5);
        let outside = super::driver::Point {
            x: outside.x + 6.0,
            ..outside
        };
        driver.drag(area.at(0.5, 0.5), outside);
        assert_close(selected(&mut driver, duration_ns), [0.5, 1.0], &what);
        let area = driver.scroll_to(&surface);
        driver.click(area.at(0.5, 0.5), 2);
        assert_eq!(driver.evaluate(SELECTED), Value::Null, "{what}");
    }
}

#[test]
fn dragging_over_any_plot_selects_what_was_dragged_over() {
    if !has_front_end() {
        return;
    }
    let html = with_data(&page_of(&fixture("emulate")), with_fine_bins);
    check_dragging("fine bins", &html, 1280);
}

#[test]
fn dragging_selects_the_same_on_a_narrow_screen_and_over_lanes() {
    if !has_front_end() {
        return;
    }
    let html = with_data(&page_of(&fixture("emulate")), |data| {
        with_fine_bins(data);
        lanes::with_regions(data);
    });
    check_dragging("regions", &html, 400);
}
