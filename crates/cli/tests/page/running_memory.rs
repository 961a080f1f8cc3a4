//! Memory of running processes: the curve, the heat map and unused memory.

use serde_json::{Value, json};

use super::harness::drawn;
use super::{NARROW, WIDE, fixture, has_front_end, page_of, sound, with_data};

const MIB: u64 = 1 << 20;

/// Puts the memory of two processes into the data of a page. The first uses the upper half of its
/// addresses in the first half of the run and nothing else.
fn with_memory(data: &mut Value, unused_mib: u64) {
    let interval = |value: f64| json!({ "value": value, "low": 0.8 * value, "high": 1.2 * value });
    let points = (0..64).map(|n| {
        let bytes = MIB as f64 * 2f64.powf(f64::from(n) / 8.0);
        json!({ "bytes": bytes, "faults_per_s": interval(1e4 * (1.0 - f64::from(n) / 63.0)), "censored": 0.0 })
    });
    let row = |n: u64, used: [f64; 2]| {
        json!({
            "name": "[heap]", "start": n * 64 * MIB, "end": (n + 1) * 64 * MIB, "resident_bytes": 64 * MIB, "used": used,
        })
    };
    let heat_map = json!({
        "columns": [{ "start_s": 0.0, "end_s": 30.0 }, { "start_s": 30.0, "end_s": 60.0 }],
        "rows": [row(1, [0.0, 0.0]), row(2, [1.0, 0.0])],
    });
    let region = |name: &str, unused: u64| {
        json!({
            "name": name, "resident_bytes": 512 * MIB,
            "unused": [{ "for_s": 60.0, "bytes": unused * MIB }, { "for_s": 30.0, "bytes": 400 * MIB }],
        })
    };
    let process = |pid: u64, unused: u64| {
        json!({
            "pid": pid, "command": "<b>db</b>", "resident_bytes": 512 * MIB, "working_set_bytes": 3 * MIB,
            "regions": [region("[heap]", unused)], "heat_map": heat_map,
        })
    };
    data["curves"] = json!([]);
    data["memory"] = json!({
        "title": "two", "source": "page_tables", "epochs": 4, "resident_bytes": 1024 * MIB,
        "swapped_bytes": 0, "limit_bytes": 200 * MIB, "unused_bytes": 5 * MIB, "unused_for_s": 60.0,
        "working_sets": [{ "window_s": 15.0, "bytes": interval(2e6) }],
        "points": points.collect::<Vec<_>>(),
        "sizes": [
            { "faults_per_s": 1, "state": "above", "bytes": { "value": 251.0 * MIB as f64 } },
            { "faults_per_s": 100, "state": "known", "bytes": interval(200.0 * MIB as f64) },
        ],
        "regions": null, "heat_map": null,
        "processes": [process(11, 17), process(12, unused_mib)],
        "cost": { "elapsed_s": 60.0, "own_cpu_s": 0.3 },
        "notes": ["a <i>note</i>"],
    });
}

/// Pixels of the curve, colours of four cells of the first map, and its text.
const MEMORY: &str = r##"
  const canvas = find("#memory .page-map canvas")[0];
  const at = (x, y) => [...canvas.getContext("2d").getImageData(Math.floor(canvas.width * x), Math.floor(canvas.height * y), 1, 1).data].join();
  const cells = [at(0.25, 0.2), at(0.75, 0.2), at(0.25, 0.7), at(0.75, 0.7)];
  const box = canvas.getBoundingClientRect();
  canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + 0.25 * box.width, clientY: box.top + 0.7 * box.height, bubbles: true }));
  const plot = find("#memory .fault-rate canvas")[0];
  const pixels = plot.getContext("2d").getImageData(0, 0, plot.width, plot.height).data;
  let drawn = 0;
  for (let i = 3; i < pixels.length; i += 4) if (pixels[i] > 0) drawn++;
  return {
    cells, drawn,
    maps: find("#memory .page-map canvas").length,
    told: find("#memory .told")[0].textContent,
    tables: find("#memory table").map((t) => t.textContent),
    injected: find("#memory b, #memory i:not(.swatch)").length,
    isNarrow: document.documentElement.scrollWidth <= innerWidth,
  };"##;

#[test]
fn memory_of_running_processes_has_a_curve_a_heat_map_and_unused_regions() {
    if !has_front_end() {
        return;
    }
    let unused = drawn("unused MiB", 20, 300);
    let html = with_data(&page_of(&fixture("emulate")), |data| {
        with_memory(data, unused)
    });
    for how in [WIDE, NARROW] {
        let Some(found) = sound(&html, how, MEMORY) else {
            return;
        };
        assert_eq!(found["isNarrow"], true, "{found}");
        assert!(found["drawn"].as_u64() > Some(500), "{found}");
        assert_eq!(found["maps"], 2, "{found}");
        // Only the first half of the second row was used.
        let cells = &found["cells"];
        assert!(cells[0] == cells[1] && cells[1] == cells[3], "{found}");
        assert!(cells[2] != cells[0], "{found}");
        let told = found["told"].as_str().unwrap_or_default();
        assert!(
            told.contains("60 s to 30 s before the end: 100.0 % used"),
            "{found}"
        );
        let tables = found["tables"].to_string();
        // The most unused memory is first.
        let position = |mib: u64| tables.find(&format!("{mib}.0 MiB").replace("00.0", "00"));
        let first = tables.find("Unused 60 s").expect("a table of regions");
        assert!(tables[first..].contains("(12)"), "{found}");
        assert!(position(17) > Some(first), "{found}");
        for words in ["above 251 MiB", "160 MiB – 240 MiB"] {
            assert!(tables.contains(words), "`{words}` is not in: {found}");
        }
        assert_eq!(found["injected"], 0, "{found}");
    }
}
