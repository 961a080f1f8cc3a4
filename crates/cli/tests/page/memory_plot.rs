//! Allocated memory over time.

use serde_json::{Value, json};

use super::{WIDE, fixture, has_front_end, page_of, sound, with_data};

/// Puts a heap into the data of a page: a site in the first half, and one in the last quarter.
fn with_heap(data: &mut Value) {
    let summary = &mut data["summary"];
    let end = summary["run"]["duration_ns"].as_u64().expect("a time");
    let bins = 100;
    let half = |bin: u64| if bin < bins / 2 { 4 << 20 } else { 0 };
    let quarter = |bin: u64| if bin >= bins * 3 / 4 { 1 << 20 } else { 0 };
    let curve = |of: &dyn Fn(u64) -> u64| (0..bins).map(of).collect::<Vec<u64>>();
    summary["heap"] = json!({
        "allocations": 20, "bytes": 5 << 20, "frees": 10, "at_peak_bytes": 4 << 20, "live_bytes": 1 << 20,
        "temporary": 5, "allocations_per_s": 2000.0, "sites": [], "other_sites": 0, "other_at_peak_bytes": 0,
        "histograms": {
            "sizes": [
                {"min": 64, "max": 127, "allocations": 5},
                {"min": 128, "max": 255, "allocations": 15},
            ],
            "lifetimes": [{"min": 1024, "max": 2047, "allocations": 10}],
            "unfreed": 10,
        },
        "over_time": {
            "bin_ns": end.div_ceil(bins), "duration_ns": end, "peak_ns": 0,
            "in_use": curve(&|bin| half(bin) + quarter(bin)),
            "sites": [
                {"name": "first at a.c:1 (malloc)", "bytes": curve(&half)},
                {"name": "<b>second</b>", "bytes": curve(&quarter)},
            ],
            "other_bytes": vec![0; bins as usize],
        },
    });
}

/// Colours low in the plot at four times; the text at the pointer; the same after a drag over the
/// last fifth.
const PLOT: &str = r##"
  const canvas = find("#data .memory-plot canvas")[0];
  const at = (x) => {
    const y = Math.floor(canvas.height * 0.85);
    return [...canvas.getContext("2d").getImageData(Math.floor(canvas.width * x), y, 1, 1).data].join();
  };
  const event = (type, x) => {
    const box = canvas.getBoundingClientRect();
    canvas.dispatchEvent(new PointerEvent(type, { clientX: box.left + x * box.width, clientY: box.top + 9, bubbles: true, button: 0, pointerId: 1 }));
  };
  canvas.setPointerCapture = () => {};
  const note = () => find("#data .memory-plot .told")[0].textContent;
  const all = [0.2, 0.6, 0.9].map(at);
  event("pointermove", 0.2);
  const told = note();
  event("pointerleave", 0.2);
  const whole = note();
  event("pointerdown", 0.8);
  event("pointermove", 0.95);
  event("pointerup", 0.99);
  await frames();
  const zoomed = [0.1, 0.9].map(at);
  event("pointerleave", 0.5);
  const part = note();
  const counters = find("#counters .chart-note").map((line) => line.textContent);
  canvas.dispatchEvent(new MouseEvent("dblclick", { bubbles: true }));
  await frames();
  const again = [0.2, 0.6, 0.9].map(at);
  const bold = find("#data .memory-plot b").length;
  const tables = document.body.textContent.match(/Allocations by (size|lifetime)/g) ?? [];
  return { all, told, whole, zoomed, part, counters, again, bold, tables };"##;

#[test]
fn the_memory_plot_has_a_layer_for_each_site_and_follows_the_selected_time() {
    if !has_front_end() {
        return;
    }
    let html = with_data(&page_of(&fixture("emulate")), with_heap);
    let Some(found) = sound(&html, WIDE, PLOT) else {
        return;
    };
    let all = &found["all"];
    assert!(
        all[0] != all[1] && all[1] != all[2] && all[0] != all[2],
        "{found}"
    );
    let text = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
    assert!(
        text("told").contains("at most 4.00 MiB; first at a.c:1 (malloc) 4.00 MiB"),
        "{found}"
    );
    assert!(
        text("whole").starts_with("peak of 4.00 MiB at 0 "),
        "{found}"
    );
    assert_eq!(found["zoomed"], json!([all[2], all[2]]), "{found}");
    assert!(
        text("part").starts_with("From ") && text("part").contains("peak of 1.00 MiB"),
        "{found}"
    );
    let counters = found["counters"].as_array().into_iter().flatten();
    let follows = |note: &Value| note.as_str().is_some_and(|note| note.contains("From "));
    assert!(counters.clone().count() > 0, "{found}");
    assert!(counters.clone().all(follows), "{found}");
    assert_eq!(&found["again"], all, "{found}");
    assert_eq!(found["bold"], 0, "{found}");
    let tables = found["tables"].to_string();
    assert!(
        tables.contains("Allocations by size") && tables.contains("Allocations by lifetime"),
        "{found}"
    );
}
