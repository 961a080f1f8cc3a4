// When threads were inside regions of interest: a lane a region, a row in it a thread.

import { keys } from "./curves";
import type { TimedRegion, TimedSpan } from "./data";
import { csv, h, save, sized } from "./dom";
import { Drag, timeAt } from "./drag";
import { count, name, percent, time } from "./format";
import { current, follow } from "./range";
import { colour, onTheme } from "./theme";

const ROW = 12;
const GAP = 2;
/** Threads with a row of their own; the others share the last one. */
const MOST_ROWS = 12;

class Lane {
  readonly element: HTMLElement;
  private readonly canvas = h("canvas", { tabindex: "0", role: "application", "aria-roledescription": "lane over time" });
  private readonly drag: Drag;
  private readonly rows: TimedSpan[][];

  constructor(
    private readonly region: TimedRegion,
    private readonly told: HTMLElement,
  ) {
    const threads: Record<string, TimedSpan[]> = {};
    for (const span of region.spans) (threads[`${span[4]},${span[5]}`] ??= []).push(span);
    const all = Object.values(threads);
    this.rows = all.slice(0, MOST_ROWS);
    for (const others of all.slice(MOST_ROWS)) this.rows[MOST_ROWS - 1].push(...others);
    const entries = region.spans.reduce((sum, span) => sum + span[3], 0);
    const threadCount = all.length > 1 ? `, ${all.length} threads` : "";
    const label = `${count(entries)} ${entries === 1 ? "entry" : "entries"}${threadCount}`;
    this.canvas.setAttribute("aria-label", `${name(region.name)} over time: ${label}. Plus and minus zoom, arrows move.`);
    this.element = h(
      "div",
      { class: "stretch" },
      h("p", { class: "stretch-name" }, `${name(region.name)} `, h("span", { class: "muted" }, label)),
      this.canvas,
    );
    this.drag = new Drag(this.canvas, (event) => this.tell(event));
    this.canvas.addEventListener("keydown", keys);
  }

  private tell(event: PointerEvent): void {
    this.draw();
    const box = this.canvas.getBoundingClientRect();
    const row = this.rows[Math.floor((event.clientY - box.top) / (ROW + GAP))] ?? [];
    const [from, to] = current();
    const at = timeAt(this.canvas, event);
    // A pixel to each side: short stays are drawn as wide as one.
    const pixel = (to - from) / Math.max(1, box.width);
    const found = row.find((s) => at >= s[0] - pixel && at <= s[0] + s[1] + pixel);
    const region = name(this.region.name);
    if (found === undefined) {
      this.told.textContent = `${region}, ${time(at, to)}: outside`;
      return;
    }
    const [start, duration, inside, entries, pid, tid] = found;
    const what =
      entries > 1
        ? `${count(entries)} entries within ${time(duration)}, inside ${percent(inside / Math.max(1, duration))} of it`
        : `inside for ${time(duration)}`;
    this.told.textContent = `${region}: from ${time(start, to)} ${what}, thread ${tid} of process ${pid}`;
  }

  draw(): void {
    const width = Math.max(200, Math.floor(this.element.clientWidth));
    const height = this.rows.length * (ROW + GAP);
    const context = sized(this.canvas, width, height);
    if (context === null) return;
    const [from, to] = current();
    const scale = width / (to - from);
    this.rows.forEach((spans, row) => {
      const y = row * (ROW + GAP);
      context.globalAlpha = 1;
      context.fillStyle = colour("heat-none");
      context.fillRect(0, y, width, ROW);
      context.fillStyle = colour("series-1");
      for (const [start, duration, inside, entries] of spans) {
        const x = (start - from) * scale;
        const wide = Math.max(1, duration * scale);
        if (x + wide < 0 || x > width) continue;
        // Joined stays are as dense as the time that they were inside.
        context.globalAlpha = entries > 1 ? 0.25 + (0.75 * inside) / Math.max(1, duration) : 1;
        context.fillRect(x, y, wide, ROW);
      }
    });
    context.globalAlpha = 1;
    this.drag.draw(context, width, height, colour("accent"));
  }
}

/** Lanes of the regions, the longest first. */
export function lanes(regions: TimedRegion[], shown: number): HTMLElement {
  const told = h("p", { class: "told", role: "status", "aria-live": "polite" }, "Touch a lane to see when, how long and which thread.");
  const all = regions.slice(0, shown).map((region) => new Lane(region, told));
  const draw = (): void => all.forEach((lane) => lane.draw());
  requestAnimationFrame(draw);
  follow(draw);
  onTheme(draw);
  window.addEventListener("resize", draw);
  const get = h("button", { class: "small", click: () => saveSpans(regions) }, "Get the data");
  get.setAttribute("aria-label", "Get the data of the regions over time as CSV");
  const left = regions.length - all.length;
  return h(
    "figure",
    { class: "plot lanes" },
    h("figcaption", {}, h("span", { class: "plot-title" }, "Regions of interest over time"), h("span", { class: "unit" }, "a row is a thread"), get),
    ...all.map((lane) => lane.element),
    left > 0 && h("p", { class: "muted" }, `${left} shorter regions are in the table alone.`),
    told,
  );
}

function saveSpans(regions: TimedRegion[]): void {
  const head = ["region", "start_ns", "duration_ns", "inside_ns", "entries", "pid", "tid"];
  const rows = regions.flatMap((region) => region.spans.map((span) => [region.name, ...span]));
  save("regions_over_time.csv", csv([head, ...rows]));
}
