//! Lanes of regions of interest over time.

use serde_json::{Value, json};

use super::{WIDE, fixture, has_front_end, page_of, sound, with_data};

/// Puts stays in two regions into the data of a page.
pub(crate) fn with_regions(data: &mut Value) {
    let row = |name: &str, entries: u64, threads: u64, time_ns: u64| {
        json!({
            "name": name, "entries": entries, "threads": threads, "time_ns": time_ns,
            "counts": {"instructions": 1000, "llc.miss": 7}
        })
    };
    let summary = &mut data["summary"];
    let end = summary["run"]["duration_ns"].as_u64().expect("a time");
    let [half, tenth] = [end / 2, end / 10];
    summary["code_regions"] = json!([row("first half", 1, 1, half), row("busy", 9, 2, tenth)]);
    summary["timeline"]["code_regions"] = json!([
        {"name": "first half", "spans": [[0, half, half, 1, 7, 8]]},
        {"name": "busy", "spans": [
            [half, tenth, tenth / 2, 4, 7, 8], [half, tenth, tenth / 2, 5, 7, 9]
        ]},
    ]);
}

/// Colours of each lane left and right of the middle; the text at the pointer; the table of
/// the last quarter.
const LANES: &str = r##"
  const lanes = find("#code-regions canvas");
  const at = (canvas, x) => {
    const y = Math.floor(canvas.height / 4);
    return [...canvas.getContext("2d").getImageData(Math.floor(canvas.width * x), y, 1, 1).data].join();
  };
  const colours = lanes.map((lane) => [at(lane, 0.25), at(lane, 0.55), at(lane, 0.9)]);
  const box = lanes[1].getBoundingClientRect();
  const move = { clientX: box.left + 0.55 * box.width, clientY: box.top + 4, bubbles: true };
  lanes[1].dispatchEvent(new PointerEvent("pointermove", move));
  const told = find("#code-regions .told")[0].textContent;
  const rows = () => find("#code-regions tbody tr").map((row) => row.innerText.split(/\s+/)[0]);
  const all = rows();
  const press = (key) => lanes[0].dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  press("+");
  for (let i = 0; i < 9; i++) press("ArrowLeft");
  await frames();
  const early = rows();
  const zoomed = [at(lanes[0], 0.25), at(lanes[0], 0.9)];
  press("Escape");
  await frames();
  return { colours, told, all, early, zoomed, again: rows() };"##;

#[test]
fn lanes_show_when_threads_were_in_regions() {
    if !has_front_end() {
        return;
    }
    let html = with_data(&page_of(&fixture("emulate")), with_regions);
    let Some(found) = sound(&html, WIDE, LANES) else {
        return;
    };
    let colours = &found["colours"];
    let (inside, outside) = (&colours[0][0], &colours[0][2]);
    assert_ne!(inside, outside, "{found}");
    assert_eq!(&colours[0][1], outside, "{found}");
    // Half of that time is spent inside: a colour between the two.
    assert!(
        &colours[1][1] != inside && &colours[1][1] != outside,
        "{found}"
    );
    let told = found["told"].as_str().expect("text");
    assert!(told.starts_with("busy: from "), "{found}");
    assert!(
        told.contains("4 entries") && told.contains("50.0 % of it"),
        "{found}"
    );
    assert_eq!(found["all"], json!(["first", "busy"]), "{found}");
    assert_eq!(found["early"], json!(["first"]), "{found}");
    assert_eq!(found["zoomed"], json!([inside, inside]), "{found}");
    assert_eq!(found["again"], found["all"], "{found}");
}
