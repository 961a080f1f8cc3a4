//! Lines that threads share and other machines, on the page of a recording of both.

use serde_json::json;

use super::driver::Driver;
use super::harness::{Recorded, needs};
use super::{chromium, has_front_end, page_of, with_data};

/// Two threads count in neighbouring fields.
const COUNTERS: &str = r#"
#include <pthread.h>
static struct { volatile long hits, misses; } counters __attribute__((aligned(64)));
static void *hit(void *unused) { for (int i = 0; i < 400000; i++) counters.hits++; return 0; }
static void *miss(void *unused) { for (int i = 0; i < 400000; i++) counters.misses++; return 0; }
int main(void) {
    pthread_t a, b;
    pthread_create(&a, 0, hit, 0);
    pthread_create(&b, 0, miss, 0);
    pthread_join(a, 0);
    pthread_join(b, 0);
}
"#;

#[test]
fn a_shared_line_opens_its_bytes_and_other_machines_are_listed() {
    let browser = chromium().filter(|_| has_front_end() && needs(&["gcc"]));
    let Some(browser) = browser else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let source = folder.path().join("counters.c");
    std::fs::write(&source, COUNTERS).expect("the source can be written");
    let program = folder.path().join("counters");
    let mut gcc = std::process::Command::new("gcc");
    let gcc = gcc.args(["-O1", "-g", "-pthread", "-o"]);
    assert!(
        gcc.arg(&program)
            .arg(&source)
            .status()
            .expect("gcc runs")
            .success()
    );
    let program = program.to_str().expect("temporary paths are text");
    let options = ["--machine", "zen4", "--what-if", "llc=2x,huge-pages"];
    let recorded = Recorded::new(&options, &[program]);
    let html = with_data(&page_of(&recorded.path()), |data| {
        data["what_if_cautions"] = json!(["pad <b>counters</b>: nothing moved."]);
    });

    let mut driver = Driver::open(&browser, &html, 400, 800);
    let table = "document.querySelector('table[aria-label*=\"shared between threads\"]')";
    let name = driver.evaluate(&format!("{table}.querySelector('tbody bdi').textContent"));
    assert_eq!(name, json!("counters (counters)"));
    driver.evaluate(&format!(
        "{table}.querySelector('button[aria-expanded]').click()"
    ));
    let bytes = driver.evaluate(&format!(
        "[...{table}.querySelectorAll('.line-accesses li')].slice(0, 2).map((access) =>
           [access.querySelector('bdi').textContent,
            [...access.querySelectorAll('.line-bytes .byte')].map((byte) =>
              byte.classList.contains('stored') ? 's' : '-').join('')])"
    ));
    let mut accesses: Vec<(String, String)> =
        serde_json::from_value(bytes).expect("functions and bytes");
    accesses.sort();
    let stored = |first: usize| {
        let mut line = vec!['-'; 64];
        line[first..first + 8].fill('s');
        line.into_iter().collect::<String>()
    };
    let expected = [("hit", stored(0)), ("miss", stored(8))];
    assert_eq!(
        accesses,
        expected.map(|(name, bytes)| (name.to_owned(), bytes))
    );
    let width = driver.evaluate("document.documentElement.scrollWidth");
    assert!(width.as_u64() <= Some(400), "{width}");
    let machines = driver.evaluate(
        "[...document.querySelectorAll('#advice tbody tr')].map((row) => row.cells[0].textContent).sort()",
    );
    assert_eq!(
        machines,
        json!(["LLC twice as large", "all memory in pages of 2 MiB"])
    );
    let caution = driver.evaluate("document.querySelector('#advice p.warn').textContent");
    assert_eq!(caution, json!("pad <b>counters</b>: nothing moved."));
}
