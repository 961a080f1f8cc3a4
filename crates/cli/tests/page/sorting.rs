//! Tables are sorted by clicks on their headings.

use std::fmt::Write;

use serde_json::json;

use super::driver::Driver;
use super::{chromium, folder, has_front_end, memgauge, page_of, said};

const FUNCTIONS: u64 = 260;

/// A profile of callgrind in which a function has the more first-level misses the fewer
/// last-level misses it has.
fn profile() -> String {
    let mut text = "# callgrind format\nversion: 1\ncreator: callgrind-3.19.0\ncmd: prog\n\
         positions: line\nevents: Ir Dr Dw D1mr D1mw DLmr DLmw\nob=/bin/prog\nfl=prog.c\n"
        .to_owned();
    let mut totals = [0; 7];
    for i in 0..FUNCTIONS {
        let costs = [90_000, 40_000, 9000, 10_000 + i, 0, 5000 - i, 0];
        totals
            .iter_mut()
            .zip(costs)
            .for_each(|(sum, cost)| *sum += cost);
        let line = i + 1;
        writeln!(text, "fn=f{i:03}\n{line} {}", spaced(costs)).expect("a string can be written");
    }
    writeln!(text, "totals: {}", spaced(totals)).expect("a string can be written");
    text
}

fn spaced(costs: [u64; 7]) -> String {
    costs.map(|cost| cost.to_string()).join(" ")
}

/// Clicks what an expression finds.
fn click(driver: &mut Driver, element: &str) {
    let middle = driver.scroll_to(element).at(0.5, 0.5);
    driver.click(middle, 1);
}

#[test]
fn a_table_sorted_by_another_event_begins_with_that_events_top_functions() {
    let Some(browser) = chromium().filter(|_| has_front_end()) else {
        return;
    };
    let here = folder();
    let (file, recording) = (
        here.path().join("callgrind.out.1"),
        here.path().join("c.mg"),
    );
    std::fs::write(&file, profile()).expect("a profile can be written");
    let mut import = memgauge();
    import.arg("import").arg(&file).arg("-o").arg(&recording);
    let output = import.output().expect("memgauge runs");
    assert!(output.status.success(), "{}", said(&output));
    let mut driver = Driver::open(&browser, &page_of(&recording), 1280, 900);
    for (table, name, row_name) in [
        (0, "functions", "r.children[0].textContent"),
        (1, "lines", "r.lastElementChild.textContent"),
    ] {
        let table = format!("document.querySelectorAll('#hot .table')[{table}]");
        let names = format!(
            "[...{table}.querySelectorAll('tbody tr:not(.others)')].map((r) => {row_name})"
        );
        let heading = format!(
            "[...{table}.querySelectorAll('th button')].find((b) => b.textContent === 'L1D misses')"
        );
        click(&mut driver, &heading);
        click(
            &mut driver,
            &format!("{table}.querySelector('.table-foot button')"),
        );
        let found = driver.evaluate(&names);
        let found = found.as_array().expect("rows");
        let top = (0..100).map(|i| json!(format!("f{:03}", FUNCTIONS - 1 - i)));
        assert!(found.iter().take(100).cloned().eq(top), "{name}: {found:?}");
        // The first hundred by either event, and no more.
        assert_eq!(found.len(), 200, "{name}");
        let foot = driver.evaluate(&format!("{table}.querySelector('.table-foot').textContent"));
        let foot = foot.as_str().expect("a text");
        let told = format!("60 more {name} have ");
        assert!(foot.starts_with(&told), "{foot}");
        assert!(foot.contains("the first 100 rows are complete"), "{foot}");
    }
}
