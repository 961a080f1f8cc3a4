// Miss-rate curves: misses over the size of a memory, with the machine's caches marked
// and the band of a sampled curve.

import uPlot from "../vendor/uplot/uPlot.js";
import type { MissCurve } from "./data";
import { csv, h, save } from "./dom";
import { bytes, capacity, count, name, percent, rate } from "./format";
import { colour, onTheme } from "./theme";

export type Mark = { name: string; bytes: number };

export function missRate(curve: MissCurve, marks: Mark[]): HTMLElement {
  const place = h("div", { class: "chart", role: "img" });
  const isMpki = curve.points.some((p) => p.mpki !== null);
  const points = curve.points.filter((p) => (isMpki ? p.mpki : p.miss_ratio) !== null);
  const y = points.map((p) => (isMpki ? p.mpki : p.miss_ratio) ?? 0);
  const show = (v: number): string => (isMpki ? rate(v) : percent(v));
  const sampled = curve.provenance === "sampled" && !isMpki;
  const others = (curve.policies ?? []).slice(1);
  const size = (n: number): string => (curve.capacity_unit === "objects" ? `${count(n)} objects` : capacity(n));
  const sentence = curve.policies === undefined ? knees(curve) : (curve.advice ?? []).map((s) => `${s}.`).join(" ");
  place.setAttribute("aria-label", `Miss-rate curve of ${name(curve.title)}. ${sentence}`);
  const said = `${origin(curve)} ${sentence}`;
  const note = h("p", { class: "chart-note" }, said);
  let chart: uPlot | null = null;

  function draw(): void {
    chart?.destroy();
    if (place.clientWidth === 0 || points.length === 0) return;
    const x = points.map((p) => p.bytes);
    const band = points.map((p) => p.half_band_95);
    const low = y.map((v, i) => (band[i] === null ? null : Math.max(0, v - (band[i] ?? 0))));
    const high = y.map((v, i) => (band[i] === null ? null : Math.min(1, v + (band[i] ?? 0))));
    const stroke = colour("series-1");
    const ratioAt = (other: Policy): (number | null)[] => points.map((p) => other.points.find((o) => o.bytes === p.bytes)?.miss_ratio ?? null);
    const grid = { stroke: colour("grid"), width: 1 };
    const axis = { stroke: colour("muted"), font: "12px system-ui, sans-serif", grid, ticks: { ...grid, size: 4 } };
    const plain = { points: { show: false } };
    chart = new uPlot(
      {
        width: Math.max(240, place.clientWidth),
        height: 260,
        padding: [22, 16, 0, 0],
        scales: { x: { time: false, distr: 3, log: 2 }, y: { range: (_, __, most) => [0, most > 0 ? most * 1.06 : 1] } },
        cursor: { y: false, drag: { x: false, y: false } },
        legend: { show: false },
        axes: [
          { ...axis, size: 34, space: 60, values: (_, ticks) => ticks.map((t) => (t === null ? "" : curve.capacity_unit === "objects" ? count(t) : capacity(t))) },
          { ...axis, size: 62, values: (_, ticks) => ticks.map(show) },
        ],
        series: [
          {},
          { stroke, width: 2, ...plain },
          ...(sampled
            ? [
                { stroke: `${stroke}59`, width: 1, ...plain },
                { stroke: `${stroke}59`, width: 1, ...plain },
              ]
            : []),
          ...others.map((_, i) => ({ ...lineOf(i + 1), ...plain })),
        ],
        bands: sampled ? [{ series: [3, 2], fill: `${stroke}26` }] : [],
        hooks: { draw: [(u) => drawMarks(u, marks)], setCursor: [tell] },
      },
      [...(sampled ? [x, y, low, high] : [x, y]), ...others.map(ratioAt)] as uPlot.AlignedData,
      place,
    );
  }

  function tell(u: uPlot): void {
    const i = u.cursor.idx;
    if (i === null || i === undefined || (u.cursor.left ?? -1) < 0) {
      note.textContent = said;
      return;
    }
    const half = points[i].half_band_95;
    const band = sampled && half !== null ? ` ± ${percent(half)}` : "";
    if (curve.policies !== undefined) {
      const bytes = points[i].bytes;
      const each = others.map((o) => `, ${o.name} ${ratioText(o.points.find((p) => p.bytes === bytes)?.miss_ratio ?? null)}`);
      note.textContent = `A cache of ${size(bytes)}: ${curve.policies[0].name} ${show(y[i])}${band}${each.join("")} of the references miss`;
      return;
    }
    note.textContent = `A memory of ${capacity(points[i].bytes)}: ${show(y[i])}${band}${isMpki ? " misses per 1000 instructions" : " of the references miss"}`;
  }

  requestAnimationFrame(draw);
  onTheme(draw);
  window.addEventListener("resize", draw);
  const get = h("button", { class: "small", click: () => saveCurve(curve) }, "Get the data");
  get.setAttribute("aria-label", `Get the data of the miss-rate curve of ${name(curve.title)} as CSV`);
  return h(
    "figure",
    { class: "plot" },
    h(
      "figcaption",
      {},
      h("span", { class: "plot-title" }, name(curve.title)),
      h("span", { class: "unit" }, isMpki ? "misses per 1000 instructions" : "misses per reference"),
      ...(curve.policies ?? []).map((policy, i) => key(policy.name, i)),
      get,
    ),
    place,
    note,
    curve.note === null ? null : h("p", { class: "chart-note" }, name(curve.note)),
  );
}

type Policy = NonNullable<MissCurve["policies"]>[number];

const SOLID = 3;

/** Colour and dashes of a policy's line; dashes tell those of equal colour apart. */
function lineOf(policy: number): { stroke: string; width: number; dash?: number[] } {
  const stroke = colour(`series-${(policy % SOLID) + 1}`);
  const round = Math.floor(policy / SOLID);
  return round === 0 ? { stroke, width: 2 } : { stroke, width: 2, dash: [[6, 4], [2, 3], [10, 3, 2, 3]][(round - 1) % 3] };
}

/** A policy's name in a legend, with a sample of its line. */
function key(text: string, policy: number): HTMLElement {
  const styles = ["solid", "dashed", "dotted", "double"];
  const sample = h("span", {});
  sample.style.cssText = `display:inline-block;width:1.6em;margin:0 0.4em 0.2em 1em;border-top:3px ${styles[Math.floor(policy / SOLID)]} var(--series-${(policy % SOLID) + 1})`;
  return h("span", {}, sample, name(text));
}

function ratioText(ratio: number | null): string {
  return ratio === null ? "not known" : percent(ratio);
}

function origin(curve: MissCurve): string {
  if (curve.policies !== undefined) {
    const how = curve.sample_rate === null ? "From every request" : `Miniature simulation, from ${percent(curve.sample_rate)} of the objects`;
    return `${how}; ${count(curve.references)} references.`;
  }
  const how =
    curve.provenance === "exact"
      ? "From every reference"
      : `Sampled${curve.sample_rate === null ? "" : `, from ${percent(curve.sample_rate)} of the blocks`}`;
  return `${how}; ${count(curve.references)} references to blocks of ${capacity(curve.block_bytes)}, least recently used.`;
}

function knees(curve: MissCurve): string {
  const found = curve.knees.slice(0, 3).map((k) => bytes(k.bytes));
  const enough = curve.bytes_for_90_percent;
  const ninety =
    enough === null ? "The sample does not tell which size has 90 % of the benefit." : `${bytes(enough)} have 90 % of the benefit.`;
  return found.length === 0 ? ninety : `It falls most up to ${found.join(", ")}. ${ninety}`;
}

export function drawMarks(chart: uPlot, marks: Mark[]): void {
  const { ctx, bbox } = chart;
  const ratio = window.devicePixelRatio || 1;
  ctx.save();
  ctx.strokeStyle = colour("limit");
  ctx.fillStyle = colour("text");
  ctx.font = `${12 * ratio}px system-ui, sans-serif`;
  ctx.textAlign = "center";
  ctx.setLineDash([4 * ratio, 4 * ratio]);
  // Names that would overlap go one above the other, as far as there is room.
  const rows = Math.max(1, Math.floor(bbox.top / (13 * ratio)));
  const ends: number[] = [];
  for (const mark of [...marks].sort((a, b) => a.bytes - b.bytes)) {
    const x = chart.valToPos(mark.bytes, "x", true);
    if (!(x >= bbox.left && x <= bbox.left + bbox.width)) continue;
    const half = ctx.measureText(mark.name).width / 2;
    const middle = Math.max(half, Math.min(ctx.canvas.width - half, x));
    let row = 0;
    while (row < rows - 1 && (ends[row] ?? -Infinity) > middle - half) row++;
    ends[row] = middle + half + 6 * ratio;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.fillText(mark.name, middle, bbox.top - (6 + 13 * row) * ratio);
  }
  ctx.restore();
}

function saveCurve(curve: MissCurve): void {
  if (curve.policies !== undefined) {
    const all = curve.policies.flatMap((policy) => policy.points.map((p) => [policy.policy, p.bytes, p.miss_ratio]));
    save("miss-rate.csv", csv([["policy", curve.capacity_unit ?? "bytes", "miss_ratio"], ...all]));
    return;
  }
  const rows = curve.points.map((p) => [p.bytes, p.misses, p.miss_ratio, p.mpki, p.half_band_95]);
  save("miss-rate.csv", csv([["bytes", "misses", "miss_ratio", "mpki", "half_band_95"], ...rows]));
}
