// Hot functions and lines: exact over the run where the source sees all, of samples in a
// selected range.

import type { Counts, Data, Excerpt, HotRow, HotTable, Summary, TimedSamples } from "../data";
import { hasEvery, modelled } from "../data";
import { Child, h } from "../dom";
import { amount, base, chain, count, middle, name, percent } from "../format";
import { knowsStalls, stalled, timeParts } from "../level_colours";
import { follow, isWhole } from "../range";
import { Column, firstByEach, interval, shareBar, table } from "../table";
import { onPart } from "../part";
import { listing, listingOf } from "./listing";
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
        `${whereRankComesFrom(rank)}: the share of all of them. ` +
        (exact
          ? (ofSets
              ? "Estimated from some of the cache sets: the interval holds the true share in 95 of 100 choices of sets; "
              : "Over the whole run the source saw every one; ") +
            "in a selected stretch of time shares are estimated from samples. "
          : "Shares are estimated from samples; the interval holds the true share in 95 of 100 recordings. ") +
        "Code that was inlined from a library's header counts for the function that uses it. The dynamic loader and startup share a row if they have less than 10 %. Colours are those of the bar above.",
    },
    choice,
    place,
  );
}

/** The title of a list of places. */
export function whereRankComesFrom(rank: string): string {
  if (rank === "cycles") return "Where cycles go";
  return isClock(rank) ? "Where processor time goes" : `Where ${rankInWords(rank)} come from`;
}

function isClock(rank: string): boolean {
  return /^(cpu|task)-clock\b/.test(rank);
}

export function rankInWords(rank: string): string {
  if (rank === "cycles") return "cycles";
  if (isClock(rank)) return "processor time";
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
    hotTable(run, run.hot.functions, "Functions", (row) => {
      const code = listingOf(run, row);
      return code === null ? null : listing(run, code);
    }),
    hotTable(run, run.hot.lines, "Source lines", (row) => source(run, row, excerpts, hotLines)),
  ];
}

export function placeOf(row: HotRow): string {
  if (row.file !== null) return name(`${base(row.file)}${row.line === null ? "" : `:${row.line}`}`);
  if (row.module === "") return name(row.function);
  const offset = row.offset === null ? "" : `+0x${row.offset.toString(16)}`;
  return name(`${base(row.module)}${offset}`);
}

/** A function's name, shortened; whole where the pointer stays on it. */
export function functionName(row: HotRow, most = 56): HTMLElement {
  const all = [row.function, ...row.inlined_into.map((caller) => caller.function)].map(name);
  const whole = all.length > 1 ? `${all[0]}, inlined into ${all.slice(1).join(", inlined into ")}` : all[0];
  return h("bdi", { class: "name", title: whole }, middle(name(chain(row)), most));
}

/** Each event's count over all places of a table. */
function totals(hot: HotTable): Counts {
  const sums: Counts = { ...hot.others.counts };
  for (const row of hot.rows) for (const [event, n] of Object.entries(row.counts)) sums[event] = (sums[event] ?? 0) + n;
  return sums;
}

type Others = HotTable["others"];

/** What the table lacks, with some of its rows. */
function othersWith(hot: HotTable, rows: HotRow[]): Others {
  const counts: Counts = { ...hot.others.counts };
  for (const row of rows) for (const [event, n] of Object.entries(row.counts)) counts[event] = (counts[event] ?? 0) + n;
  const value = rows.reduce((sum, row) => sum + row.value, hot.others.value);
  return { rows: hot.others.rows + rows.length, value, share: hot.total > 0 ? value / hot.total : null, counts };
}

const TITLES: Record<string, string> = { "llc.miss": "LLC misses", "l1d.miss": "L1D misses", "dtlb.walk": "TLB walks", "dram.read_bytes": "DRAM read", cycles: "Cycles", dram_bytes: "DRAM" };

function hotTable(run: Summary, hot: HotTable, caption: string, detail: (row: HotRow) => HTMLElement | null): HTMLElement {
  const estimated = hot.samples !== null && !hasEvery(run, hot.rank);
  const hasInterval = estimated || hot.rows.some((r) => r.share_low !== null);
  const isLines = caption === "Source lines";
  const full = (row: HotRow): string => name(row.file === null ? row.module : `${row.file}:${row.line ?? ""}`);
  // The same sums as `SORT_SUMS` of `analyze`, which keeps the first rows by each.
  const known = (event: string): boolean => event !== hot.rank && hot.rows.some((r) => r.counts[event] !== undefined);
  // Bytes say little more than the misses that read them.
  const others = ["l1d.miss", "llc.miss", "dtlb.walk", "dram.read_bytes"].filter((e) => known(e) && (e !== "dram.read_bytes" || !known("llc.miss")));
  const sums = totals(hot);
  const hasOthers = hot.others.rows > 0 || hot.others.value > 0;
  const shareOf = (event: string) => (rest: Others): string => percent((rest.counts[event] ?? 0) / Math.max(1, sums[event] ?? 0));
  const amountOf = (event: string, row: HotRow): string => amount(event, row.counts[event] ?? 0);
  const what = isLines ? "lines" : "functions";
  const rankEvent = hot.rank === "dram_bytes" ? "dram.read_bytes" : hot.rank;
  const columns: (Column<HotRow> & { others?: (rest: Others) => Child })[] = [
    {
      title: isLines ? "Line" : "Function",
      cell: (r) => (isLines ? h("bdi", { class: "name", title: full(r) }, middle(placeOf(r), 30)) : functionName(r, 44)),
      value: (r) => (isLines ? full(r) : r.function),
      others: (rest) => `${count(rest.rows)} other ${what}`,
    },
    { title: "Share", numeric: true, cell: (r) => shareBar(r.share, r.share_low, r.share_high), value: (r) => r.share, others: (rest) => shareBar(rest.share) },
    ...(hasInterval ? [{ title: "95 % interval", numeric: true, cell: (r: HotRow) => interval(r.share_low, r.share_high), value: (r: HotRow) => r.share_low }] : []),
    { title: TITLES[hot.rank] ?? "Events", event: rankEvent, about: name(hot.rank), numeric: true, cell: (r) => h("span", { title: ends(hot.rank, r) }, amount(hot.rank, r.value)), value: (r) => r.value, others: (rest) => percent(rest.share) },
    ...(hot.rank === "cycles" && knowsStalls(run)
      ? [{ title: "Stalled", about: "What these cycles were spent on: work, or waiting", numeric: true, cell: (r: HotRow) => timeBar(r.counts), value: (r: HotRow) => stalled(r.counts), others: (rest: Others) => timeBar(rest.counts) }]
      : []),
    ...others.map((event) => ({ title: TITLES[event] ?? event, event, about: event, numeric: true, cell: (r: HotRow) => amountOf(event, r), value: (r: HotRow) => r.counts[event] ?? 0, others: shareOf(event) })),
    isLines
      ? { title: "Function", cell: (r: HotRow) => functionName(r, 34), value: (r: HotRow) => r.function }
      : { title: "Module", cell: (r: HotRow) => h("bdi", { class: "name", title: name(r.module) }, middle(name(base(r.module)), 28)), value: (r: HotRow) => r.module },
  ];
  return table<HotRow>({
    caption: `${caption} by ${rankInWords(hot.rank)}${estimated ? `, n = ${count(hot.samples ?? 0)}` : ""}`,
    fileName: caption.toLowerCase().replace(/\s+/g, "-"),
    rows: hot.rows,
    columns,
    others: (hidden) => {
      const rest = othersWith(hot, hidden);
      return rest.rows > 0 || rest.value > 0 ? columns.map((column) => column.others?.(rest) ?? "") : null;
    },
    foot: hasOthers ? `${count(hot.others.rows)} more ${what} have ${percent(hot.others.share)}.${firstByEach(hot)}` : "",
    detail,
    opens: isLines ? "Source" : "Code",
    isSearched: true,
  });
}

/** A bar of the cycles of a place, work first; nothing where the source does not know them. */
export function stallBar(counts: Counts): HTMLElement {
  const cycles = Math.max(1, counts.cycles ?? 0);
  const parts = timeParts(counts);
  const bar = parts.map((part) => h("span", { class: `stall level-${part.level}`, style: `width: ${((100 * part.cycles) / cycles).toFixed(2)}%` }));
  const words = parts.map((part) => `${percent(part.cycles / cycles)} ${part.words}`).join(", ");
  return h("span", { class: "time-bar", title: words, role: "img", "aria-label": words }, ...bar);
}

/** The same with the share that stalled. */
function timeBar(counts: Counts): HTMLElement {
  return h("span", { class: "time" }, stallBar(counts), h("span", { class: "time-share" }, percent(stalled(counts) / Math.max(1, counts.cycles ?? 0))));
}

function source(run: Summary, row: HotRow, excerpts: Excerpt[], hotLines: Map<string, HotRow>): HTMLElement | null {
  const { file, line } = row;
  const { rank } = run.hot.lines;
  if (file === null || line === null) return null;
  const found = excerpts.find((e) => e.file === file && line >= e.first_line && line < e.first_line + e.lines.length);
  if (found === undefined) return null;
  const lines = found.lines.map((text, i) => {
    const number = found.first_line + i;
    const here = hotLines.get(`${file}:${number}`);
    return h(
      "span",
      { class: number === line ? "source-line here" : "source-line" },
      h("span", { class: "source-number" }, String(number)),
      h("span", { class: "source-share" }, here === undefined ? "" : percent(here.share)),
      h("span", { class: "source-count" }, here === undefined ? "" : amount(rank, here.value)),
      rank === "cycles" && knowsStalls(run) && h("span", { class: "source-bar" }, here === undefined ? null : stallBar(here.counts)),
      h("span", { class: "source-text" }, `${name(text.replace(/\t/g, "    "))}\n`),
    );
  });
  const warning = found.is_newer ? h("p", { class: "muted" }, "This file changed after the program was recorded: lines may be others.") : null;
  return h("div", {}, h("p", { class: "muted" }, name(file)), warning, h("pre", { class: "source", tabindex: "0" }, ...lines));
}
