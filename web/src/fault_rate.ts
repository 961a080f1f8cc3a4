// Page-fault curve of running processes: faults per second over the size of memory, both on
// logarithmic scales, with the interval of each size.

import uPlot from "../vendor/uplot/uPlot.js";
import type { RunningMemory } from "./data";
import { csv, h, save } from "./dom";
import { bytes, capacity, name, rate } from "./format";
import { drawMarks, Mark } from "./missrate";
import { colour, onTheme } from "./theme";

/** Lowest rate that is drawn. Lower ones, also none, are drawn here. */
const LOWEST = 0.1;

/** Rates whose sizes are marked. */
const MARKED = [1, 10, 100];

export function faultRate(memory: RunningMemory): HTMLElement {
  const { points } = memory;
  const place = h("div", { class: "chart", role: "img" });
  const said = "The band is the 95 % interval. Rates below 0.1 are drawn at 0.1. Beyond the right end, no window shows a rate.";
  place.setAttribute("aria-label", `Page faults per second by size of memory. ${said}`);
  const note = h("p", { class: "chart-note" }, said);
  let chart: uPlot | null = null;

  function draw(): void {
    chart?.destroy();
    if (place.clientWidth === 0) return;
    const drawn = (value: number): number => Math.max(LOWEST, value);
    const x = points.map((p) => p.bytes);
    const end = (of: "value" | "low" | "high"): number[] => points.map((p) => drawn(p.faults_per_s[of]));
    const stroke = colour("series-1");
    const grid = { stroke: colour("grid"), width: 1 };
    const axis = { stroke: colour("muted"), font: "12px system-ui, sans-serif", grid, ticks: { ...grid, size: 4 } };
    const plain = { points: { show: false } };
    const right = Math.max(x[x.length - 1], memory.resident_bytes) * 1.02;
    const [highest] = points.map((p) => p.faults_per_s.high).sort((a, b) => b - a);
    chart = new uPlot(
      {
        width: Math.max(240, place.clientWidth),
        height: 300,
        padding: [58, 16, 0, 0],
        scales: {
          x: { time: false, distr: 3, log: 2, range: () => [x[0], right] },
          y: { distr: 3, log: 10, range: () => [LOWEST, Math.max(10, highest * 1.3)] },
        },
        cursor: { y: false, drag: { x: false, y: false } },
        legend: { show: false },
        axes: [
          { ...axis, size: 34, space: 60, values: (_, ticks) => ticks.map((t) => (t === null ? "" : capacity(t))) },
          { ...axis, size: 62, values: (_, ticks) => ticks.map((t) => (t === null ? "" : rate(t))) },
        ],
        series: [{}, { stroke, width: 2, ...plain }, { stroke: `${stroke}59`, width: 1, ...plain }, { stroke: `${stroke}59`, width: 1, ...plain }],
        bands: [{ series: [3, 2], fill: `${stroke}26` }],
        hooks: { draw: [(u) => drawMarks(u, marks(memory))], setCursor: [tell] },
      },
      [x, end("value"), end("low"), end("high")] as uPlot.AlignedData,
      place,
    );
  }

  function tell(u: uPlot): void {
    const i = u.cursor.idx;
    if (i === null || i === undefined || (u.cursor.left ?? -1) < 0) {
      note.textContent = said;
      return;
    }
    const { value, low, high } = points[i].faults_per_s;
    note.textContent = `A memory of ${bytes(points[i].bytes)}: ${rate(value)} faults/s (${rate(low)} to ${rate(high)})`;
  }

  requestAnimationFrame(draw);
  onTheme(draw);
  window.addEventListener("resize", draw);
  const get = h("button", { class: "small", click: () => saveCurve(memory) }, "Get the data");
  get.setAttribute("aria-label", `Get the data of the fault rates of ${name(memory.title)} as CSV`);
  return h(
    "figure",
    { class: "plot fault-rate" },
    h("figcaption", {}, h("span", { class: "plot-title" }, "Page faults by size of memory"), h("span", { class: "unit" }, "faults per second"), get),
    place,
    note,
  );
}

/** The sizes with 100, 10 and 1 faults per second, the resident size, and the limit. */
function marks(memory: RunningMemory): Mark[] {
  const found: Mark[] = [];
  for (const { state, faults_per_s, bytes } of memory.sizes) {
    if (MARKED.includes(faults_per_s) && state === "known" && bytes !== null) found.push({ name: `${faults_per_s}/s`, bytes: bytes.value });
  }
  found.push({ name: "in memory", bytes: memory.resident_bytes });
  if (memory.limit_bytes !== null) found.push({ name: "limit", bytes: memory.limit_bytes });
  return found;
}

function saveCurve(memory: RunningMemory): void {
  const rows = memory.points.map((p) => [p.bytes, p.faults_per_s.value, p.faults_per_s.low, p.faults_per_s.high, p.censored]);
  save("fault-rate.csv", csv([["bytes", "faults_per_s", "low", "high", "censored"], ...rows]));
}
