// Hot functions and lines: exact over the run where the source sees all, of samples in a
// selected range.

import type { Counts, Data, Excerpt, HotRow, HotTable, Summary, TimedSamples } from "../data";
import { hasEvery, modelled } from "../data";
import { h } from "../dom";
import { amount, base, count, name, percent } from "../format";
import { follow, isWhole } from "../range";
import { firstByEach, interval, shareBar, table } from "../table";
import { onPart } from "../part";
import { section, Section } from "./section";
import { eventChoice, timedTable } from "./timed";

export function hot(data: Data): Section | null {
  const run = data.summary;
  if (run === null) return null;
  const samples = run.timeline?.samples ?? [];
  if (run.hot.functions.rows.length === 0 && samples.length === 0) return null;
  let chosen: TimedSamples | undefined = samples.find((s) => s.event === run.hot.functions.rank) ?? samples[0];
  const place = h("div");
  const choice = eventChoice(samples, "Event of the samples", (timed) => {
    chosen = timed;
    fill();
  });
  function fill(): void {
    const whole = isWhole();
    if (choice !== null) choice.hidden = whole;
    if (whole || chosen === undefined) {
      place.replaceChildren(...(run === null ? [] : wholeRun(run)));
      return;
    }
    place.replaceChildren(
      timedTable(run, chosen, "functions", "Functions", "Module"),
      timedTable(run, chosen, "lines", "Source lines", "Function"),
    );
  }
  follow(fill);
  onPart(fill);
  fill();
  const rank = run.hot.functions.rank;
  const exact = run.hot.functions.samples === null || hasEvery(run, rank);
  const ofSets = exact && run.hot.functions.rows.some((row) => row.share_low !== null);
  return section(
    "hot",
    "Hot code",
    "Code",
    {
      provenance: exact ? (run.recording.machine === null ? "counted" : modelled(run)) : "sampled",
      definition:
        `Where ${rankInWords(rank)} come from: the share of all of them. ` +
        (exact
          ? (ofSets
              ? "Estimated from some of the cache sets: the interval holds the true share in 95 of 100 choices of sets; "
              : "Over the whole run the source saw every one; ") +
            "in a selected stretch of time shares are estimated from samples. "
          : "Shares are estimated from samples; the interval holds the true share in 95 of 100 recordings. ") +
        "Of inlined code the innermost function is named.",
    },
    choice,
    place,
  );
}

/** Stalls by what is waited for: event, class of its colour, words. */
const STALLS: readonly (readonly [string, string, string])[] = [
  ["stall.l2", "l2", "waiting for L2"],
  ["stall.llc", "llc", "waiting for the last-level cache"],
  ["stall.dram", "dram", "waiting for memory"],
  ["stall.queue", "queue", "waiting in the queue to memory"],
  ["stall.tlb", "tlb", "waiting for address translation"],
  ["stall.stores", "stores", "waiting because of stores"],
];

function rankInWords(rank: string): string {
  if (rank === "cycles") return "cycles";
  return rank === "dram_bytes" ? "bytes between last-level cache and memory" : `events ${name(rank)}`;
}

/** The interval of a value that was estimated from some cache sets. */
function ends(rank: string, row: HotRow): string {
  if (row.value_low === null || row.value_high === null) return "";
  return `95 % interval: ${amount(rank, row.value_low)} to ${amount(rank, row.value_high)}`;
}

function wholeRun(run: Summary): HTMLElement[] {
  const excerpts = run.sources ?? [];
  const hotLines = new Map<string, HotRow>();
  for (const row of run.hot.lines.rows) hotLines.set(`${row.file}:${row.line}`, row);
  return [
    hotTable(run, run.hot.functions, "Functions", (row) => name(row.function), () => null),
    hotTable(run, run.hot.lines, "Source lines", placeOf, (row) => source(row, excerpts, hotLines)),
  ];
}

function placeOf(row: HotRow): string {
  if (row.file !== null) return name(`${base(row.file)}${row.line === null ? "" : `:${row.line}`}`);
  const offset = row.offset === null ? "" : `+0x${row.offset.toString(16)}`;
  return name(`${base(row.module)}${offset}`);
}

function hotTable(run: Summary, hot: HotTable, caption: string, title: (row: HotRow) => string, detail: (row: HotRow) => HTMLElement | null): HTMLElement {
  const estimated = hot.samples !== null && !hasEvery(run, hot.rank);
  const hasInterval = estimated || hot.rows.some((r) => r.share_low !== null);
  const isLines = caption === "Source lines";
  const full = (row: HotRow): string => name(row.file === null ? row.module : `${row.file}:${row.line ?? ""}`);
  const chain = (row: HotRow): string => row.inlined_into.map((c) => name(c.function)).join(" ← ");
  // The same events as `SORT_EVENTS` of `analyze`, which keeps the first rows by each.
  const others = ["llc.miss", "l1d.miss", "dtlb.walk", "dram.read_bytes"].filter((e) => e !== hot.rank && hot.rows.some((r) => r.counts[e] !== undefined));
  const rest =
    hot.others.rows > 0 || hot.others.value > 0
      ? `${count(hot.others.rows)} more ${isLines ? "lines" : "functions"} have ${percent(hot.others.share)}.${firstByEach(hot)}`
      : "";
  return table<HotRow>({
    caption: `${caption} by ${rankInWords(hot.rank)}${estimated ? `, n = ${count(hot.samples ?? 0)}` : ""}`,
    fileName: caption.toLowerCase().replace(/\s+/g, "-"),
    rows: hot.rows,
    columns: [
      { title: isLines ? "Line" : "Function", cell: (r) => h("bdi", { title: chain(r) === "" ? full(r) : `${full(r)}, inlined into ${chain(r)}` }, title(r)), value: (r) => (isLines ? full(r) : r.function) },
      { title: "Share", cell: (r) => shareBar(r.share, r.share_low, r.share_high), value: (r) => r.share },
      ...(hasInterval ? [{ title: "95 % interval", numeric: true, cell: (r: HotRow) => interval(r.share_low, r.share_high), value: (r: HotRow) => r.share_low }] : []),
      { title: hot.rank === "dram_bytes" ? "DRAM" : hot.rank === "cycles" ? "Cycles" : "Events", about: name(hot.rank), numeric: true, cell: (r) => h("span", { title: ends(hot.rank, r) }, amount(hot.rank, r.value)), value: (r) => r.value },
      ...(hot.rank === "cycles" ? [{ title: "Stalled", about: "What these cycles were spent on: work, or waiting", cell: (r: HotRow) => timeBar(r.counts), value: (r: HotRow) => stalled(r.counts) }] : []),
      ...others.map((event) => ({ title: event, numeric: true, cell: (r: HotRow) => count(r.counts[event] ?? 0), value: (r: HotRow) => r.counts[event] ?? 0 })),
      isLines
        ? { title: "Function", cell: (r: HotRow) => h("bdi", {}, name(r.function)), value: (r: HotRow) => r.function }
        : { title: "Module", cell: (r: HotRow) => h("bdi", { title: name(r.module) }, name(base(r.module))), value: (r: HotRow) => r.module },
    ],
    foot: rest,
    detail,
  });
}

/** Cycles that a place stalled. */
function stalled(counts: Counts): number {
  return STALLS.reduce((sum, [event]) => sum + (counts[event] ?? 0), 0);
}

/** A bar of the cycles of a place: work, then what it waited for. */
function timeBar(counts: Counts): HTMLElement {
  const cycles = counts.cycles ?? 0;
  const all = stalled(counts);
  const parts = STALLS.map(([event, level, words]) => ({ level, words, cycles: counts[event] ?? 0 })).filter((part) => part.cycles > 0);
  const words = parts.map((part) => `${percent(part.cycles / cycles)} ${part.words}`);
  const bar = parts.map((part) => h("span", { class: `stall level-${part.level}`, style: `width: ${((100 * part.cycles) / Math.max(1, cycles)).toFixed(2)}%` }));
  return h("span", { class: "time", title: words.join(", ") }, h("span", { class: "time-bar" }, ...bar), h("span", { class: "time-share" }, percent(all / Math.max(1, cycles))));
}

function source(row: HotRow, excerpts: Excerpt[], hotLines: Map<string, HotRow>): HTMLElement | null {
  const { file, line } = row;
  if (file === null || line === null) return null;
  const found = excerpts.find((e) => e.file === file && line >= e.first_line && line < e.first_line + e.lines.length);
  if (found === undefined) return null;
  const lines = found.lines.map((text, i) => {
    const number = found.first_line + i;
    const share = hotLines.get(`${file}:${number}`)?.share ?? null;
    return h(
      "span",
      { class: number === line ? "source-line here" : "source-line" },
      h("span", { class: "source-number" }, String(number)),
      h("span", { class: "source-share" }, share === null ? "" : percent(share)),
      h("span", { class: "source-text" }, `${name(text.replace(/\t/g, "    "))}\n`),
    );
  });
  const warning = found.is_newer ? h("p", { class: "muted" }, "This file changed after the program was recorded: lines may be others.") : null;
  return h("div", {}, h("p", { class: "muted" }, name(file)), warning, h("pre", { class: "source", tabindex: "0" }, ...lines));
}
