//! The page of a dataset, and the pages of its recordings.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::driver::{Driver, Point, Rectangle};
use super::harness::drawn;
use super::served::Served;
use super::synthetic::{Fleet, Known};
use super::{NARROW, WIDE, chromium, folder, has_front_end, memgauge, said, sound, with_data};

/// Recordings of two services in two versions on two days, indexed.
pub(super) struct Indexed {
    folder: TempDir,
    known: Vec<Known>,
}

const SERVICES: usize = 2;

impl Indexed {
    /// With `of_each` recordings of each service, host, day and version.
    pub(super) fn new(name: &str, of_each: usize) -> Indexed {
        let fleet = Fleet {
            recordings: of_each * SERVICES * 2 * 2 * 2,
            damaged: 0,
            services: SERVICES,
            hosts: 2,
            days: 2,
            functions: 4,
            samples: 20,
            has_requests: false,
            seed: drawn(name, 1, 1 << 40),
        };
        let folder = folder();
        let known = fleet.write(&folder.path().join("recordings"));
        let mut index = memgauge();
        index.current_dir(folder.path());
        index.args(["fleet", "index", "recordings", "--to", "fleet"]);
        let output = index.output().expect("memgauge runs");
        assert!(output.status.success(), "{}", said(&output));
        Indexed { folder, known }
    }

    pub(super) fn dataset(&self) -> PathBuf {
        self.folder.path().join("fleet")
    }

    /// Stalled cycles of recordings that hold for something.
    fn stalled(&self, holds: impl Fn(&Known) -> bool) -> Vec<f64> {
        self.known
            .iter()
            .filter(|known| holds(known))
            .map(stalled)
            .collect()
    }
}

fn stalled(known: &Known) -> f64 {
    let functions = known.functions.values();
    let counts = functions.map(|counts| counts["stall.dram"] + counts["stall.llc"]);
    counts.sum::<u64>() as f64
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Squared standard error of a mean.
fn squared_error(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let squares = values.iter().map(|value| (value - mean(values)).powi(2));
    squares.sum::<f64>() / (n - 1.0) / n
}

fn assert_near(found: &Value, expected: f64, size: f64) {
    let found = found.as_f64().expect("a number");
    assert!(
        (found - expected).abs() <= 1e-6 * size,
        "{found} is not {expected}"
    );
}

/// Quantiles of Student's t for 95 % intervals, from a printed table (NIST/SEMATECH e-Handbook,
/// 1.3.6.7.2), and of scipy 1.11, `stats.t.ppf`, to more digits.
const T_3: f64 = 3.182_446_305_284_263;
const T_7: f64 = 2.364_624_251_592_784_4;

fn assert_mean(found: &Value, values: &[f64], t: f64) {
    assert_eq!(found["recordings"], values.len());
    let (mean, half) = (mean(values), t * squared_error(values).sqrt());
    assert_near(&found["mean"], mean, mean);
    assert_near(&found["interval"][0], mean - half, mean);
    assert_near(&found["interval"][1], mean + half, mean);
}

#[test]
fn each_version_has_the_mean_and_interval_of_its_recordings_over_time() {
    if !has_front_end() {
        return;
    }
    let indexed = Indexed::new("means", 2);
    let served = Served::of(&indexed.dataset());
    let fleet = &served.data("")["fleet"];
    assert_eq!(
        (&fleet["metric"], &fleet["service"]),
        (&json!("stalled_cycles"), &Value::Null)
    );
    assert_eq!(fleet["facts"]["recordings"], indexed.known.len());
    let histories = fleet["histories"].as_array().expect("histories");
    assert_eq!(histories.len(), SERVICES);
    for history in histories {
        let service = history["service"].as_str().expect("a name");
        let versions = history["versions"].as_array().expect("versions");
        let commits: Vec<&Value> = versions.iter().map(|version| &version["commit"]).collect();
        assert_eq!(commits, ["old", "new"]);
        let mut of_versions = Vec::new();
        for version in versions {
            let of_version =
                |known: &Known| known.service == service && version["commit"] == known.commit;
            let all = indexed.stalled(of_version);
            assert_eq!(all.len(), 8);
            assert_mean(version, &all, T_7);
            let points = version["points"].as_array().expect("points");
            let days = ["2026-11-20", "2026-11-21"];
            assert_eq!(points.len(), days.len());
            for (point, day) in points.iter().zip(days) {
                let of_day = indexed.stalled(|known| of_version(known) && known.day == day);
                assert_mean(point, &of_day, T_3);
            }
            of_versions.push(all);
        }
        assert_eq!(versions[0]["change"], Value::Null);
        // Two comparisons on the page: quantiles at 0.9875, of 7 to 14 degrees of freedom.
        let change = &versions[1]["change"];
        let difference = mean(&of_versions[1]) - mean(&of_versions[0]);
        let error = of_versions
            .iter()
            .map(|all| squared_error(all))
            .sum::<f64>()
            .sqrt();
        assert_near(&change["difference"], difference, mean(&of_versions[0]));
        assert_near(&change["relative"], difference / mean(&of_versions[0]), 1.0);
        let half = change["interval"][1].as_f64().expect("an end") - difference;
        assert!(
            (2.509 * error..2.842 * error).contains(&half),
            "{half} of {error}"
        );
    }
    let one = &served.data("&service=service-1&metric=llc.miss")["fleet"];
    assert_eq!(
        (&one["metric"], &one["service"]),
        (&json!("llc.miss"), &json!("service-1"))
    );
    assert_eq!(one["histories"].as_array().map(Vec::len), Some(1));
    let recordings = one["recordings"].as_array().expect("recordings");
    assert_eq!(recordings.len(), indexed.known.len() / SERVICES);
    for row in recordings {
        let path = Path::new(row["path"].as_str().expect("a path"));
        let known = indexed.known.iter().find(|known| known.path == path);
        let known = known.expect("an absolute path");
        let misses: u64 = known
            .functions
            .values()
            .map(|counts| counts["llc.miss"])
            .sum();
        assert_eq!(
            (row["value"].as_f64(), &row["host"]),
            (Some(misses as f64), &json!(known.host))
        );
    }
    let starts: Vec<f64> = (recordings.iter())
        .filter_map(|row| row["started_unix_s"].as_f64())
        .collect();
    assert!(starts.is_sorted_by(|a, b| a >= b), "{starts:?}");
    // Functions and hosts are those of the command.
    let asked = |words: &[&str]| -> Value {
        let mut memgauge = memgauge();
        let output = memgauge
            .arg("fleet")
            .args(words)
            .arg(indexed.dataset())
            .arg("--json")
            .output();
        serde_json::from_slice(&output.expect("memgauge runs").stdout).expect("JSON")
    };
    let top = asked(&[
        "top",
        "--service",
        "service-1",
        "--by",
        "llc.miss",
        "--rows",
        "100",
    ]);
    assert_eq!(one["top"]["rows"], top["rows"]);
    assert_eq!(
        one["outliers"]["rows"],
        asked(&["outliers", "--service", "service-1"])["rows"]
    );
}

#[test]
fn questions_that_the_dataset_cannot_answer_and_moved_recordings_have_a_message() {
    if !has_front_end() {
        return;
    }
    let indexed = Indexed::new("messages", 1);
    let served = Served::of(&indexed.dataset());
    assert!(
        served
            .failure("&service=a%20b")
            .contains("is of service `a b`")
    );
    let message = served.failure("&metric=none");
    assert!(
        message.contains("use one of") && message.contains("llc.miss"),
        "{message}"
    );
    assert!(
        served
            .failure("&recording=0-0")
            .contains("does not have it")
    );
    let recordings = served.data("")["fleet"]["recordings"].clone();
    let [first, second] = [0, 1].map(|at| {
        let row = &recordings[at];
        let id = row["recording"].as_str().expect("an ID").to_owned();
        (id, PathBuf::from(row["path"].as_str().expect("a path")))
    });
    std::fs::rename(&second.1, second.1.with_extension("moved")).expect("it is moved");
    let message = served.failure(&format!("&recording={}", second.0));
    assert!(
        message.contains("no such file") && message.contains("move it back"),
        "{message}"
    );
    std::fs::rename(&first.1, &second.1).expect("it is moved");
    let message = served.failure(&format!("&recording={}", second.0));
    assert!(
        message.contains("another recording is there now"),
        "{message}"
    );
    let empty = folder();
    let mut view = memgauge();
    let output = view
        .arg("view")
        .arg(empty.path())
        .output()
        .expect("memgauge runs");
    assert!(!output.status.success(), "{}", said(&output));
}

/// Rows of the table of recordings, as texts of its cells.
const LISTED: &str = "[...document.querySelectorAll('#recordings tbody tr')].map((row) => \
    [...row.children].map((cell) => cell.textContent))";

fn click(driver: &mut Driver, element: &str) {
    let middle = driver.scroll_to(element).at(0.5, 0.5);
    driver.click(middle, 1);
}

fn listed(driver: &mut Driver) -> Vec<Vec<String>> {
    // Tables show twenty rows at first.
    let more = "document.querySelector('#recordings .table-foot button:not([hidden])')";
    let has_more = format!("{more}?.textContent.startsWith('Show') ?? false");
    if driver.evaluate(&has_more) == json!(true) {
        click(driver, more);
    }
    serde_json::from_value(driver.evaluate(LISTED)).expect("rows of texts")
}

fn text(driver: &mut Driver, selector: &str) -> String {
    let found = driver.evaluate(&format!(
        "document.querySelector('{selector}')?.textContent ?? ''"
    ));
    found.as_str().expect("a text").to_owned()
}

const PLOT: &str = "document.querySelector('#versions .fleet-plot .u-over')";

/// Where the pointer is near a point of the first plot, at this share of its width.
fn point_at(driver: &mut Driver, plot: &Rectangle, x: f64) -> Point {
    let is_near = format!("{PLOT}.style.cursor === 'pointer'");
    let steps = (0..40).map(|step| plot.at(x, 0.02 + f64::from(step) * 0.024));
    for at in steps {
        driver.hover(at);
        if driver.evaluate(&is_near) == json!(true) {
            return at;
        }
    }
    panic!("no point is there");
}

fn check_use(indexed: &Indexed, width: u32) {
    let Some(browser) = chromium() else { return };
    let served = Served::of(&indexed.dataset());
    let mut driver = Driver::visit(&browser, served.address(), width, 900);
    let over = "document.documentElement.scrollWidth - document.documentElement.clientWidth";
    assert_eq!(driver.evaluate(over), 0, "at {width}");
    let all = indexed.known.len();
    assert_eq!(listed(&mut driver).len(), all);

    // A click on a point lists its recordings. Both versions have one near the first day.
    let plot = driver.scroll_to(PLOT);
    let point = point_at(&mut driver, &plot, 0.03);
    driver.click(point, 1);
    let filter = text(&mut driver, "#recordings .filter span");
    assert!(filter.starts_with("Only service-"), "{filter}");
    let rows = listed(&mut driver);
    assert_eq!(rows.len(), all / SERVICES / 2 / 2, "{filter}: {rows:?}");
    assert!(
        rows.iter().all(|row| row[0].starts_with("2026-11-20")),
        "{rows:?}"
    );
    let version = rows[0][2].clone();
    assert!(filter.contains(&version) && rows.iter().all(|row| row[2] == version));
    click(
        &mut driver,
        "document.querySelector('#recordings .filter button')",
    );
    assert_eq!(listed(&mut driver).len(), all);

    // Dragging over the second half selects the second day, also in the other plots.
    let plot = driver.scroll_to(PLOT);
    driver.drag(plot.at(0.5, 0.4), plot.at(0.98, 0.6));
    let chip = text(&mut driver, ".chip span");
    assert!(
        chip.starts_with("Selected: 2026-11-20") && chip.ends_with("UTC"),
        "{chip}"
    );
    let rows = listed(&mut driver);
    assert_eq!(rows.len(), all / 2);
    assert!(
        rows.iter().all(|row| row[0].starts_with("2026-11-21")),
        "{rows:?}"
    );
    let plot = driver.scroll_to(PLOT);
    driver.click(plot.at(0.2, 0.1), 2);
    assert_eq!(listed(&mut driver).len(), all);

    // A version and a host that differs list theirs.
    click(
        &mut driver,
        "document.querySelector('#versions tbody .as-link')",
    );
    assert_eq!(listed(&mut driver).len(), all / SERVICES / 2);
    click(
        &mut driver,
        "document.querySelector('#hosts tbody .as-link')",
    );
    assert_eq!(listed(&mut driver).len(), all / SERVICES / 2);
    click(
        &mut driver,
        "document.querySelector('#recordings .filter button')",
    );

    // Sorted by the metric, the recording with the most is first.
    let heading = "[...document.querySelectorAll('#recordings th button')].find((b) => b.textContent === 'stalled cycles')";
    click(&mut driver, heading);
    let href = driver.evaluate("document.querySelector('#recordings tbody a').title");
    let most = indexed
        .known
        .iter()
        .max_by(|a, b| stalled(a).total_cmp(&stalled(b)));
    let most = most.expect("recordings");
    assert_eq!(href, most.path.to_str().expect("text"));

    // Its own page, a selection there, and back to its service.
    driver.follow(|driver| click(driver, "document.querySelector('#recordings tbody a')"));
    assert!(text(&mut driver, "h1").contains(&format!("/srv/{}", most.service)));
    assert!(text(&mut driver, "#hot").contains("parse"));
    driver.follow(|driver| click(driver, "document.querySelector('.back a')"));
    let chosen = driver.evaluate("document.querySelector('.choices select').value");
    assert_eq!(chosen, most.service.as_str());
    assert_eq!(listed(&mut driver).len(), all / SERVICES);
    driver.follow(|driver| {
        driver.evaluate(
            "(() => { const metric = document.querySelectorAll('.choices select')[1]; \
             metric.value = 'llc.mpki'; metric.dispatchEvent(new Event('change')); })()",
        );
    });
    assert!(text(&mut driver, "#versions .unit").starts_with("llc.mpki of a run"));
    assert!(text(&mut driver, "#functions .caption").contains("stalled cycles"));
}

#[test]
fn points_versions_hosts_and_stretches_of_time_choose_recordings_that_open() {
    if has_front_end() {
        check_use(&Indexed::new("wide", 3), 1280);
    }
}

#[test]
fn a_narrow_screen_has_the_same_uses() {
    if has_front_end() {
        check_use(&Indexed::new("narrow", 2), 400);
    }
}

#[test]
fn names_of_a_dataset_are_text() {
    if !has_front_end() {
        return;
    }
    let indexed = Indexed::new("names", 1);
    let served = Served::of(&indexed.dataset());
    let (_, html) = served.get(&format!("/?token={}", served.token()), "127.0.0.1");
    let evil = "</script><img src=x onerror=alert(1)>\u{202e}&token=1\"'";
    let html = with_data(&html, |data| with_names(data, evil));
    let script = r##"
      find("#recordings tbody .as-link, #versions tbody .as-link")[0].click();
      await frames();
      return {
        elements: find("img, main script").length,
        filter: find(".filter span")[0].textContent,
        links: find("#recordings tbody a, .fleet-plot figcaption a").map((a) => new URL(a.href).searchParams.getAll("token").length),
        over: document.documentElement.scrollWidth - document.documentElement.clientWidth,
      };"##;
    for how in [WIDE, NARROW] {
        let Some(found) = sound(&html, how, script) else {
            return;
        };
        assert_eq!((&found["elements"], &found["over"]), (&json!(0), &json!(0)));
        let filter = found["filter"].as_str().expect("a text");
        assert!(
            filter.contains("<img src=x") && !filter.contains('\u{202e}'),
            "{filter}"
        );
        let links = found["links"].as_array().expect("links");
        assert!(
            !links.is_empty() && links.iter().all(|count| *count == 1),
            "{links:?}"
        );
    }
}

/// Replaces names of services, versions, hosts, functions, files and the dataset.
fn with_names(data: &mut Value, evil: &str) {
    match data {
        Value::Array(items) => items.iter_mut().for_each(|item| with_names(item, evil)),
        Value::Object(fields) => {
            for (name, value) in fields {
                let is_name = [
                    "service",
                    "commit",
                    "host",
                    "name",
                    "module",
                    "path",
                    "title",
                    "dataset",
                    "recording",
                ];
                match value {
                    Value::String(text) if is_name.contains(&name.as_str()) => {
                        evil.clone_into(text)
                    }
                    value => with_names(value, evil),
                }
            }
        }
        _ => {}
    }
}
