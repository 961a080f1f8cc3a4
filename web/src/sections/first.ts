// The first screen: the main finding, where the time goes, bandwidth with its phases, the places that
// take most time with their source lines, and the data that misses most.

import type { Data, DataTable, HotRow, PythonRow, RegionTable, Summary, Timeline } from "../data";
import { hasEvery } from "../data";
import { add, Child, h } from "../dom";
import { amount, bytes, count, middle, name, percent, rate, readable, time } from "../format";
import { cause, knowsStalls, missEvent, stalled, STALLS } from "../level_colours";
import { Phase, phases } from "../phases";
import { current, follow, select } from "../range";
import { shareBar } from "../table";
import { dataName } from "./allocations";
import { functionName, placeOf, stallBar, whereRankComesFrom } from "./hot";
import { bandwidthPlot } from "./over_time";
import { Section } from "./section";

const PLACES = 3;
/** Places with less are not worth the first screen. */
const LEAST_SHARE = 0.01;
const REGIONS = 4;
/** `STARTUP` of `analyze`. */
const STARTUP = "[dynamic loader and startup]";

export function first(run: Summary, finding: string | null): Section | null {
  const bar = timeUse(run);
  const places = topCode(run);
  const side = [bandwidth(run), topData(run)].filter((part): part is HTMLElement => part !== null);
  if (bar === null && places === null && side.length === 0) return null;
  const title = bar === null ? "Overview" : `Where ${count(run.totals["cycles"] ?? 0)} cycles went`;
  const element = h("section", { id: "overview", "aria-labelledby": "overview-title" }, h("h2", { id: "overview-title" }, title));
  if (finding !== null) add(element, h("p", { class: "main-finding" }, name(finding), " ", h("a", { href: "#advice", class: "more-link" }, "What to do")));
  add(element, bar);
  add(element, h("div", { class: "first" }, places, side.length > 0 && h("div", {}, ...side)));
  return { id: "overview", short: "Overview", element };
}

/** A bar of all cycles by what they were spent on. */
function timeUse(run: Summary): HTMLElement | null {
  const parts = (run.time ?? []).filter((part) => part.cycles > 0);
  if (parts.length === 0) return null;
  const words = (on: string): string => STALLS.find((stall) => stall.level === on)?.words ?? on;
  const told = (part: (typeof parts)[number]): string => `${percent(part.share)} ${words(part.on)}`;
  const bar = parts.map((part) => h("span", { class: `stall level-${part.on}`, style: `width: ${(100 * part.share).toFixed(2)}%`, title: `${told(part)}: ${count(part.cycles)} cycles` }));
  // Parts that are too narrow for a pixel appear where the pointer is on the bar.
  const legend = parts.filter((part) => part.share >= 0.0005).map((part) => h("li", {}, h("span", { class: `swatch level-${part.on}` }), h("b", {}, percent(part.share)), ` ${words(part.on)}`));
  return h(
    "div",
    { class: "time-use" },
    h("div", { class: "time-bar", role: "img", "aria-label": parts.map(told).join(", ") }, ...bar),
    h("ul", { class: "time-legend" }, ...legend),
  );
}

/** A program whose time is mostly that of Python. Its lines come before the functions in C. */
const MOSTLY_PYTHON = 0.5;

/** The code that takes most. */
function topCode(run: Summary): HTMLElement | null {
  const [python, places] = [topPython(run), topPlaces(run)];
  return python === null ? places : h("div", {}, python, places);
}

/** The lines of Python that take most, with the native code that they run. */
function topPython(run: Summary): HTMLElement | null {
  const table = run.python;
  if (table === undefined || (table.share ?? 0) < MOSTLY_PYTHON) return null;
  const rows = table.lines.filter((row) => (row.share ?? 0) >= LEAST_SHARE).slice(0, PLACES);
  if (rows.length === 0) return null;
  const isDivided = table.rank === "cycles" && knowsStalls(run);
  const estimated = run.recording.machine === null ? ", from samples" : "";
  const title = `${whereRankComesFrom(table.rank)}, by line of Python${estimated}`;
  return h("div", {}, h("h3", {}, title), h("ol", { class: "places" }, ...rows.map((row) => pythonPlace(row, isDivided))));
}

function pythonPlace(row: PythonRow, isDivided: boolean): HTMLElement {
  const file = row.file.split("/").pop() ?? row.file;
  const line = row.line === undefined ? "" : `:${row.line}`;
  const why = isDivided ? wait(row.counts) : null;
  const bar = isDivided ? h("span", { class: "place-bar" }, stallBar(row.counts)) : shareBar(row.share);
  if (isDivided) bar.style.width = `${(100 * (row.share ?? 0)).toFixed(1)}%`;
  return h(
    "li",
    {},
    h("p", { class: "place-name" }, h("bdi", { class: "name", title: name(`${row.file}${line}`) }, middle(name(`${file}${line}`), 40)), h("b", {}, percent(row.share))),
    h("div", { class: "place-track" }, bar),
    h("p", { class: "place-where" }, h("bdi", { class: "name", title: name(row.function) }, middle(name(row.function), 40)), why !== null && ` · ${why}`),
  );
}

/** What most of these cycles wait for, or that few do. */
function wait(counts: HotRow["counts"]): string | null {
  const most = cause(counts);
  const part = STALLS.find((stall) => stall.level === most);
  if (part === undefined) return most === "work" ? "mostly work" : null;
  return `${percent((counts[part.event] ?? 0) / Math.max(1, counts.cycles ?? 0))} ${part.words}`;
}

/** The functions that take most, each with its hottest line. */
function topPlaces(run: Summary): HTMLElement | null {
  const { functions, lines } = run.hot;
  const top = functions.rows.filter((row) => row.value > 0 && (row.share ?? 1) >= LEAST_SHARE && row.function !== STARTUP).slice(0, PLACES);
  if (top.length === 0) return null;
  const items = top.map((row) => {
    const line = lines.rows.find((l) => l.function === row.function && l.module === row.module && sameCallers(l, row)) ?? null;
    return place(run, row, line);
  });
  const estimated = functions.samples !== null && !hasEvery(run, functions.rank) ? ", from samples" : "";
  return h("div", {}, h("h3", {}, `${whereRankComesFrom(functions.rank)}${topPython(run) === null ? "" : ", by function in C"}${estimated}`), h("ol", { class: "places" }, ...items));
}

function sameCallers(a: HotRow, b: HotRow): boolean {
  return a.inlined_into.length === b.inlined_into.length && a.inlined_into.every((caller, i) => caller.function === b.inlined_into[i].function);
}

function place(run: Summary, row: HotRow, line: HotRow | null): HTMLElement {
  const { rank } = run.hot.functions;
  const excerpt = (run.sources ?? []).find((e) => line?.line != null && e.file === line.file && line.line >= e.first_line && line.line < e.first_line + e.lines.length);
  const text = excerpt === undefined || line?.line == null ? null : excerpt.lines[line.line - excerpt.first_line].trim();
  const isDivided = rank === "cycles" && knowsStalls(run);
  const why = isDivided ? wait(row.counts) : null;
  const where: Child[] = [
    line === null || line.file === null ? name(row.module.split("/").pop() ?? "") : h("bdi", { class: "name", title: name(`${line.file}:${line.line ?? ""}`) }, middle(placeOf(line), 36)),
    line !== null && line.value < row.value && line.file !== null && ` (${percent(line.value / row.value)} of it)`,
    why !== null && ` · ${why}`,
    rank !== "cycles" && ` · ${amount(rank, row.value)}`,
  ];
  const bar = isDivided ? h("span", { class: "place-bar" }, stallBar(row.counts)) : shareBar(row.share, row.share_low, row.share_high);
  if (isDivided) bar.style.width = `${(100 * (row.share ?? 0)).toFixed(1)}%`;
  return h(
    "li",
    {},
    h("p", { class: "place-name" }, functionName(row, 60), h("b", {}, percent(row.share))),
    h("div", { class: "place-track" }, bar),
    h("p", { class: "place-where" }, ...where),
    text !== null && text !== "" && h("pre", { class: "place-source", title: name(text) }, name(text)),
  );
}

function bandwidth(run: Summary): HTMLElement | null {
  const timeline = run.timeline;
  const plot = timeline === undefined ? null : bandwidthPlot(run, timeline, phaseStrip(timeline));
  return plot === null ? null : h("div", { id: "bandwidth" }, plot);
}

/** The phases below the plot, each with its rate and the function that is sampled most. */
function phaseStrip(timeline: Timeline): HTMLElement | null {
  const found = phases(timeline);
  if (found.length < 2) return null;
  const strip = h("div", { class: "phases", role: "group", "aria-label": "Phases of the run" });
  const buttons = found.map((phase, i) => {
    const said = `${rate(bytesPerSecond(timeline, phase) / 1e9)} GB/s`;
    const where = sampledFunction(timeline, phase);
    const short = h("span", { class: "phase-text" }, h("b", {}, said), where === null ? null : ` ${readable(name(where))}`);
    const span = `${time(phase.from, phase.to)} to ${time(phase.to)}`;
    const title = `Phase ${i + 1}, ${span}: ${said}${where === null ? "" : `, mostly ${name(where)}`}. Click to select it.`;
    return h("button", { class: "phase", title, "aria-label": title, click: () => select([phase.from, phase.to]) }, short);
  });
  add(strip, ...buttons);
  const draw = (): void => {
    const [from, to] = current();
    found.forEach((phase, i) => {
      const [start, end] = [Math.max(phase.from, from), Math.min(phase.to, to)];
      buttons[i].hidden = end <= start;
      buttons[i].style.left = `${(100 * (start - from)) / (to - from)}%`;
      buttons[i].style.width = `${(100 * Math.max(0, end - start)) / (to - from)}%`;
    });
  };
  draw();
  follow(draw);
  return strip;
}

function bytesPerSecond(timeline: Timeline, phase: Phase): number {
  const { bin_ns } = timeline;
  const moved = timeline.curves.filter((curve) => /^dram\.(read|write)_bytes$/.test(curve.event));
  const [from, to] = [Math.round(phase.from / bin_ns), Math.round(phase.to / bin_ns)];
  const sum = moved.reduce((all, curve) => all + curve.values.slice(from, to).reduce((a, b) => a + b, 0), 0);
  return (sum * 1e9) / Math.max(1, phase.to - phase.from);
}

/** Fewer samples do not name a function. */
const ENOUGH = 5;
/** Nor do those of a phase that has far fewer than its length suggests: it does something else. */
const LEAST_RATE = 0.25;

/** The function with most samples of a phase. */
function sampledFunction(timeline: Timeline, phase: Phase): string | null {
  const within = (bins: [number, number, number][], bin_ns: number): number =>
    bins.reduce((sum, [bin, samples]) => (bin * bin_ns >= phase.from && bin * bin_ns < phase.to ? sum + samples : sum), 0);
  const expected = (phase.to - phase.from) / Math.max(1, timeline.duration_ns);
  let found: { name: string; samples: number } | null = null;
  for (const event of timeline.samples) {
    const all = within(event.all.bins, event.bin_ns);
    if (all < LEAST_RATE * expected * event.all.samples) continue;
    for (const row of event.functions) {
      const samples = within(row.bins, event.bin_ns);
      if (samples >= ENOUGH && samples > (found?.samples ?? 0)) found = { name: row.name, samples };
    }
  }
  return found?.name ?? null;
}

/** The data that the program waits for most. */
function topData(run: Summary): HTMLElement | null {
  return run.data === undefined ? topRegions(run) : topCosts(run.data);
}

function topCosts(data: DataTable): HTMLElement | null {
  const rows = data.rows.filter((row) => stalled(row.counts) > 0).slice(0, REGIONS);
  if (rows.length === 0) return null;
  const items = rows.map((row) =>
    h(
      "tr",
      {},
      h("th", { scope: "row", class: "text" }, dataName(row, 38)),
      h("td", { class: "number" }, row.allocation === undefined ? "–" : bytes(row.allocation.at_peak_bytes)),
      h("td", { class: "number" }, shareBar(row.share)),
    ),
  );
  return h("div", { class: "top-data" }, h("h3", {}, "Data by stalled cycles ", h("a", { href: "#data", class: "more-link" }, "all")), h("table", { "aria-label": "The data that is waited for most" }, h("tbody", {}, ...items)));
}

/** The regions that miss most, at the level that the program waits for most. */
function topRegions(run: Summary): HTMLElement | null {
  const tables = run.regions.filter((t) => t.samples > 0);
  if (tables.length === 0) return null;
  const event = missEvent(run, tables.map((t) => t.event));
  const table = tables.find((t) => t.event === event) ?? tables[0];
  const rows = table.rows.slice(0, REGIONS).map((row: RegionTable["rows"][number]) =>
    h(
      "tr",
      {},
      h("th", { scope: "row", class: "text" }, h("bdi", { class: "name", title: name(row.name) }, middle(name(row.name), 38))),
      h("td", { class: "number" }, row.bytes === null ? "–" : bytes(row.bytes)),
      h("td", { class: "number" }, shareBar(row.share, row.share_low, row.share_high)),
    ),
  );
  return h("div", { class: "top-data" }, h("h3", {}, `Data by ${name(table.event)} `, h("a", { href: "#data", class: "more-link" }, "all")), h("table", { "aria-label": "The data that misses most" }, h("tbody", {}, ...rows)));
}

/** What a page of other recordings begins with. */
export function overviewOf(data: Data): Section | null {
  const finding = data.overview.find((said) => said.kind === "cause")?.text ?? null;
  return data.summary === null ? null : first(data.summary, finding);
}
