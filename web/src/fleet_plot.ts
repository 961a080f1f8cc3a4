// A metric of one service over time: the mean of each version with its interval, and a dot for each
// recording behind it. Dragging selects a stretch of time, a click the recordings of a point.

import uPlot from "../vendor/uplot/uPlot.js";
import { keys } from "./curves";
import type { FleetHistory, FleetPoint, FleetRecording, FleetVersion } from "./data";
import { between, minute, secondOfDay, toRange, toUnixS } from "./dates";
import { csv, h, save } from "./dom";
import { SHORTEST_DRAG } from "./drag";
import { count, middle, name } from "./format";
import { current, follow, select } from "./range";
import { colour, onTheme } from "./theme";

const COLOURS = ["series-1", "series-2", "series-3", "module-1", "module-4", "module-0", "module-3", "module-5"];
const OLDER = "level-work";

/** How close to a point the pointer must be, in CSS pixels. */
const NEAR = 24;

/** Versions of all services by their first recording, and a colour for each of the newest. */
export class Palette {
  private readonly order: (string | null)[];

  constructor(histories: FleetHistory[]) {
    const first = new Map<string | null, number>();
    for (const version of histories.flatMap((each) => each.versions)) {
      first.set(version.commit, Math.min(first.get(version.commit) ?? Infinity, version.first_unix_s));
    }
    this.order = [...first].sort((a, b) => a[1] - b[1]).map(([commit]) => commit);
  }

  private index(commit: string | null): number {
    return this.order.indexOf(commit) - Math.max(0, this.order.length - COLOURS.length);
  }

  /** Whether it shares the colour of older versions. */
  isOld(commit: string | null): boolean {
    return this.index(commit) < 0;
  }

  colour(commit: string | null): string {
    return this.isOld(commit) ? OLDER : COLOURS[this.index(commit)];
  }

  /** The shape tells versions apart without colours. */
  shape(commit: string | null): number {
    return this.isOld(commit) ? 0 : this.index(commit) % 4;
  }

  swatch(commit: string | null): HTMLElement {
    const swatch = h("i", { class: "swatch", "aria-hidden": "true" });
    swatch.style.background = `var(--${this.colour(commit)})`;
    return swatch;
  }
}

export function versionName(commit: string | null): string {
  return commit === null ? "no version" : name(commit);
}

export interface FleetPlot {
  history: FleetHistory;
  /** Of this service. */
  recordings: FleetRecording[];
  palette: Palette;
  show: (value: number, digits?: number) => string;
  unit: string;
  metric: string;
  provenance: string;
  title: HTMLElement;
  choose: (version: FleetVersion, point: FleetPoint) => void;
}

/** A point, moved aside by this many CSS pixels if points of other versions are at the same time. */
type Placed = { version: FleetVersion; point: FleetPoint; aside: number };

/** Distance of points that are moved aside. */
const ASIDE = 9;

export function fleetPlot(plot: FleetPlot): HTMLElement {
  const { history, palette, show } = plot;
  const placed: Placed[] = history.versions.flatMap((version) => version.points.map((point) => ({ version, point, aside: 0 })));
  const place = h("div", { class: "chart", tabindex: "0", role: "application", "aria-roledescription": "plot over time" });
  const note = h("p", { class: "chart-note", role: "status", "aria-live": "polite" });
  const said = sentence(history, show);
  note.textContent = said;
  place.setAttribute("aria-label", `${name(plot.metric)} of ${name(history.service)} over time. ${said}`);
  let chart: uPlot | null = null;
  let near: Placed | null = null;

  function draw(): void {
    chart?.destroy();
    if (place.clientWidth === 0) return;
    const x = [...new Set(placed.map(({ point }) => point.unix_s))].sort((a, b) => a - b);
    const series = history.versions.map((version) => {
      const at = new Map(version.points.map((point) => [point.unix_s, point.mean]));
      return x.map((time) => at.get(time) ?? null);
    });
    const grid = { stroke: colour("grid"), width: 1 };
    const axis = { stroke: colour("muted"), font: "12px system-ui, sans-serif", grid, ticks: { ...grid, size: 4 } };
    chart = new uPlot(
      {
        width: Math.max(240, Math.floor(place.clientWidth)),
        height: 230,
        // The last date is centred below its tick.
        padding: [10, 36, 0, 0],
        tzDate: (unixS) => uPlot.tzDate(new Date(unixS * 1000), "Etc/UTC"),
        scales: { x: { time: true, range: (_, from, to) => [from, to] }, y: { range: () => limits() } },
        cursor: { y: false, points: { show: false }, bind: { dblclick: () => () => (select(null), null) }, drag: { x: true, y: false, setScale: false } },
        legend: { show: false },
        axes: [
          { ...axis, size: 40, space: 88, values: (_, ticks) => dates(ticks) },
          { ...axis, size: 66, space: 30, values: (_, ticks) => labels(ticks, show) },
        ],
        series: [
          {},
          ...history.versions.map((version) => ({ stroke: colour(palette.colour(version.commit)), width: 1.5, spanGaps: true, points: { show: false } })),
        ],
        hooks: {
          draw: [drawMarks],
          setCursor: [tell],
          setSelect: [
            (u) => {
              const { left, width } = u.select;
              const selected = [u.posToVal(left, "x"), u.posToVal(left + width, "x")].map(toRange);
              u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
              if (width >= SHORTEST_DRAG) select([selected[0], selected[1]]);
            },
          ],
        },
      },
      [x, ...series] as uPlot.AlignedData,
      place,
    );
    // A drag ends without a click.
    chart.over.addEventListener("click", () => near !== null && plot.choose(near.version, near.point));
    zoom();
  }

  function zoom(): void {
    const [min, max] = current().map(toUnixS);
    chart?.setScale("x", { min, max });
  }

  /** Where a point is, in CSS pixels of the plot. */
  function leftOf(u: uPlot, each: Placed): number {
    return u.valToPos(each.point.unix_s, "x") + each.aside;
  }

  function moveAside(u: uPlot): void {
    const order = placed.map((each) => ({ each, left: u.valToPos(each.point.unix_s, "x") })).sort((a, b) => a.left - b.left);
    for (let first = 0; first < order.length; ) {
      let end = first + 1;
      // Points of one version are at different times, and stay there.
      const isOther = (next: Placed): boolean => !order.slice(first, end).some(({ each }) => each.version === next.version);
      while (end < order.length && order[end].left - order[end - 1].left < ASIDE && isOther(order[end].each)) end++;
      const group = order.slice(first, end);
      const middle = (group[0].left + group[group.length - 1].left) / 2;
      group.forEach(({ each, left }, i) => (each.aside = group.length === 1 ? 0 : middle + (i - (group.length - 1) / 2) * ASIDE - left));
      first = end;
    }
  }

  /** Means with their intervals; dots may lie outside. */
  function limits(): [number, number] {
    const ends = placed.flatMap(({ point }) => [point.mean, ...(point.interval ?? [])]).concat(plot.recordings.map((r) => r.value).filter((v): v is number => v !== null));
    let [low, high] = [Math.min(...ends), Math.max(...ends)];
    if (low > 0 && low < high * 0.4) low = 0;
    const room = (high - low || Math.abs(high) || 1) * 0.08;
    return [low === 0 ? 0 : low - room, high + room];
  }

  function drawMarks(u: uPlot): void {
    const { ctx, bbox } = u;
    const ratio = uPlot.pxRatio;
    const at = (time: number, value: number): [number, number] => [u.valToPos(time, "x", true), u.valToPos(value, "y", true)];
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.globalAlpha = 0.3;
    for (const recording of plot.recordings) {
      if (recording.value === null) continue;
      const [x, y] = at(recording.started_unix_s, recording.value);
      ctx.fillStyle = colour(palette.colour(recording.commit));
      ctx.beginPath();
      ctx.arc(x, y, 2 * ratio, 0, 7);
      ctx.fill();
    }
    ctx.globalAlpha = 1;
    moveAside(u);
    for (const { version, point, aside } of placed) {
      const [exact, y] = at(point.unix_s, point.mean);
      const x = exact + aside * ratio;
      ctx.strokeStyle = ctx.fillStyle = colour(palette.colour(version.commit));
      ctx.lineWidth = 1.5 * ratio;
      if (point.interval !== null) {
        const [low, high] = point.interval.map((value) => at(point.unix_s, value)[1]);
        const cap = 4 * ratio;
        ctx.beginPath();
        ctx.moveTo(x, low);
        ctx.lineTo(x, high);
        for (const end of [low, high]) {
          ctx.moveTo(x - cap, end);
          ctx.lineTo(x + cap, end);
        }
        ctx.stroke();
      }
      shape(ctx, palette.shape(version.commit), x, y, (near?.point === point ? 7 : 4.5) * ratio);
      ctx.fill();
      // An edge, so that marks above each other stay apart.
      ctx.strokeStyle = colour("card");
      ctx.lineWidth = ratio;
      ctx.stroke();
    }
    ctx.restore();
  }

  function tell(u: uPlot): void {
    const { left, top } = u.cursor;
    const before = near;
    near = null;
    if (left !== undefined && top !== undefined && left >= 0) {
      let best = NEAR;
      for (const each of placed) {
        const distance = Math.hypot(leftOf(u, each) - left, (u.valToPos(each.point.mean, "y") - top) / 2);
        if (distance < best) [best, near] = [distance, each];
      }
    }
    if (near === before) return;
    u.over.style.cursor = near === null ? "" : "pointer";
    note.textContent = near === null ? said : `${describe(near, show)} A click lists them.`;
    u.redraw(false);
  }

  requestAnimationFrame(draw);
  follow(zoom);
  onTheme(draw);
  window.addEventListener("resize", draw);
  place.addEventListener("keydown", keys);
  const get = h("button", { class: "small", click: () => savePoints(plot) }, "Get the data");
  get.setAttribute("aria-label", `Get the data of ${name(history.service)} over time as CSV`);
  const newest = history.versions.filter((version) => !palette.isOld(version.commit));
  const legend = newest.map((version) => h("span", { class: "key", title: versionName(version.commit) }, key(palette, version.commit), h("bdi", {}, middle(versionName(version.commit), 24))));
  const old = history.versions.length - newest.length + history.older_versions;
  if (old > 0) legend.unshift(h("span", { class: "key muted" }, `${count(old)} older`));
  return h(
    "figure",
    { class: "plot fleet-plot" },
    h("figcaption", {}, h("span", { class: "plot-title" }, plot.title), h("span", { class: "unit" }, `${plot.unit}, ${plot.provenance}`), get),
    h("p", { class: "keys" }, ...legend),
    place,
    note,
  );
}

/** A mark as it is in the plot. */
function key(palette: Palette, commit: string | null): HTMLElement {
  const canvas = h("canvas", { class: "mark", "aria-hidden": "true" });
  const size = 12;
  const paint = (): void => {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = canvas.height = size * ratio;
    const context = canvas.getContext("2d");
    if (context === null) return;
    context.fillStyle = colour(palette.colour(commit));
    shape(context, palette.shape(commit), (size / 2) * ratio, (size / 2) * ratio, 4.5 * ratio);
    context.fill();
  };
  paint();
  onTheme(paint);
  return canvas;
}

/** A circle, a square, a rhombus or a triangle. */
function shape(context: CanvasRenderingContext2D, which: number, x: number, y: number, size: number): void {
  context.beginPath();
  if (which === 0) {
    context.arc(x, y, size, 0, 7);
    return;
  }
  const corners = which === 1 ? [[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]] : which === 2 ? [[0, -1.25], [1.25, 0], [0, 1.25], [-1.25, 0]] : [[0, -1.2], [1.15, 0.9], [-1.15, 0.9]];
  for (const [right, down] of corners) context.lineTo(x + right * size, y + down * size);
  context.closePath();
}

function describe({ version, point }: Placed, show: (value: number) => string): string {
  const ends = point.interval === null ? "" : ` (${show(point.interval[0])} to ${show(point.interval[1])})`;
  const recordings = `${count(point.recordings)} recording${point.recordings === 1 ? "" : "s"}`;
  return `${versionName(version.commit)}, ${between(point.first_unix_s, point.last_unix_s)}: mean ${show(point.mean)}${ends} of ${recordings}.`;
}

/** The newest version against the one before. */
function sentence(history: FleetHistory, show: (value: number) => string): string {
  const lacking = history.without_metric > 0 ? ` ${count(history.without_metric)} recordings without it are left out.` : "";
  const newest = history.versions[history.versions.length - 1];
  const before = history.versions[history.versions.length - 2];
  if (before === undefined) return `Mean ${show(newest.mean)} of ${count(history.recordings)} recordings, the bars are 95 % intervals.${lacking}`;
  return `${versionName(newest.commit)}: ${changeText(newest, before)}. The bars are 95 % intervals.${lacking}`;
}

/** Whether an interval of a difference leaves out 0. */
export function isChanged(version: FleetVersion): boolean {
  const interval = version.change?.interval;
  return interval !== null && interval !== undefined && (interval[0] > 0 || interval[1] < 0);
}

export function signed(share: number): string {
  return `${share >= 0 ? "+" : "−"}${(Math.abs(share) * 100).toFixed(1)} %`;
}

function changeText(version: FleetVersion, before: FleetVersion): string {
  const relative = version.change?.relative;
  const from = `from ${versionName(before.commit)}`;
  if (relative === null || relative === undefined) return `no change ${from}`;
  return `${signed(relative)} ${from}${isChanged(version) ? "" : ", which may be chance"}`;
}

/** Ticks with the date where it changes, and with seconds if minutes would repeat. */
function dates(ticks: number[]): string[] {
  let last = "";
  const repeats = ticks.length > 1 && ticks[1] - ticks[0] < 60;
  return ticks.map((tick) => {
    const [date, ofMinute] = minute(tick).split(" ");
    const clock = repeats ? secondOfDay(tick) : ofMinute;
    const isNew = date !== last;
    last = date;
    if (ticks.every((each) => minute(each).endsWith("00:00"))) return date;
    return isNew ? `${clock}\n${date}` : clock;
  });
}

/** Ticks with digits for a tenth of their distance. */
function labels(ticks: number[], show: (value: number, digits?: number) => string): string[] {
  const most = Math.max(...ticks.map(Math.abs));
  const step = ticks.length > 1 ? ticks[1] - ticks[0] : most;
  const digits = step > 0 ? Math.max(3, Math.min(6, Math.ceil(Math.log10(most / step)) + 2)) : 3;
  return ticks.map((tick) => show(tick, digits));
}

function savePoints(plot: FleetPlot): void {
  const rows = plot.history.versions.flatMap((version) =>
    version.points.map((p) => [version.commit, minute(p.first_unix_s), minute(p.last_unix_s), p.recordings, p.mean, p.interval?.[0] ?? null, p.interval?.[1] ?? null]),
  );
  save("versions.csv", csv([["version", "first", "last", "recordings", "mean", "low", "high"], ...rows]));
}
