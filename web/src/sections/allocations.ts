// Data by the cycles that were spent waiting for it, and the heap by where it was allocated.

import type { AllocationSite, Counts, DataPlace, DataTable, HeapClass, HeapUse } from "../data";
import { Child, h } from "../dom";
import { base, bytes, count, middle, name, percent, rate, time } from "../format";
import { stalled } from "../level_colours";
import { memoryPlot } from "../memory_plot";
import { shareBar, table } from "../table";
import { stallBar } from "./hot";

/** A name with the middle cut; the whole one where the pointer is. */
export function dataName(row: { name: string }, most: number): HTMLElement {
  return h("bdi", { class: "name", title: name(row.name) }, middle(name(row.name), most));
}

export function dataTable(data: DataTable): HTMLElement {
  const of = (event: string) => ({ numeric: true, event, cell: (r: DataPlace) => count(r.counts[event] ?? 0), value: (r: DataPlace) => r.counts[event] ?? 0 });
  const inUse = (row: DataPlace): number | null => row.allocation?.at_peak_bytes ?? null;
  return table<DataPlace>({
    caption: "Data by stalled cycles, whole run",
    fileName: "data",
    isSearched: true,
    rows: data.rows,
    columns: [
      { title: "Data", cell: (r) => dataName(r, 40), value: (r) => r.name },
      { title: "Share", cell: (r) => shareBar(r.share), value: (r) => r.share },
      { title: "Stalled", numeric: true, event: "cycles", about: "Cycles in which a core waited for it", cell: (r) => count(stalled(r.counts)), value: (r) => stalled(r.counts) },
      { title: "On", about: "What the cycles waited for", cell: (r) => (stalled(r.counts) > 0 ? stallBar(r.counts) : null), value: (r) => stalled(r.counts) },
      { title: "L1D miss", ...of("l1d.miss") },
      { title: "LLC miss", ...of("llc.miss") },
      ...accesses(data).map((event) => ({ title: event === "loads" ? "Loads" : "Stores", ...of(event) })),
      { title: "In use", numeric: true, about: "Allocated bytes in use when the program used most", cell: (r) => size(inUse(r)), value: inUse },
    ],
    others: (hidden) => others(data, hidden),
    detail: (row) => (row.allocation === undefined ? null : calls(row.allocation)),
    opens: "Calls",
  });
}

function size(n: number | null): string {
  return n === null ? "–" : bytes(n);
}

function others(data: DataTable, hidden: DataPlace[]): Child[] | null {
  const rows = data.other_rows + hidden.length;
  if (rows === 0) return null;
  const sum = (event: string): number => hidden.reduce((all, row) => all + (row.counts[event] ?? 0), data.other_counts[event] ?? 0);
  const counts: Counts = Object.fromEntries(Object.keys(data.totals).map((event) => [event, sum(event)]));
  const all = stalled(data.totals);
  const share = all > 0 ? stalled(counts) / all : null;
  return [`${count(rows)} other pieces of data`, shareBar(share), count(stalled(counts)), null, count(sum("l1d.miss")), count(sum("llc.miss")), ...accesses(data).map((event) => count(sum(event))), null];
}

/** Loads and stores, if the recording counted them by data. */
function accesses(data: DataTable): string[] {
  return data.totals.loads === undefined ? [] : ["loads", "stores"];
}

/** The calls that led to an allocation, the innermost first. */
function calls(site: AllocationSite): HTMLElement {
  const items = site.calls.map((call, at) => {
    const place = call.file === null ? base(call.module) : `${base(call.file)}${call.line === null ? "" : `:${call.line}`}`;
    const text = [h("bdi", { class: "name", title: name(call.function) }, middle(name(call.function), 40)), " ", h("span", { class: "muted" }, place)];
    return h("li", at === site.named_by ? { class: "named" } : {}, ...text);
  });
  const several = site.paths > 1 ? h("p", { class: "muted" }, `Of ${count(site.paths)} call paths, the one with most bytes at the peak.`) : null;
  return h("div", {}, several, h("ol", { class: "call-list" }, ...items));
}

/** The heap: its sites, its bytes over time, and its sizes and lifetimes. */
export function heapParts(heap: HeapUse, isModelled: boolean, resets?: string): Child[] {
  const { histograms } = heap;
  const provenance = heap.errors !== undefined ? "sampled" : isModelled ? "in virtual time" : "counted";
  return [
    heapTable(heap, resets),
    heap.over_time === undefined ? null : memoryPlot(heap.over_time, provenance),
    histograms === undefined
      ? null
      : h(
          "details",
          { class: "more" },
          h("summary", {}, "Allocations by size and lifetime"),
          histogram("Allocations by size", "Size from", histograms.sizes, bytes, "heap-sizes", ""),
          histograms.lifetimes.length === 0
            ? null
            : histogram("Allocations by lifetime", "Lifetime from", histograms.lifetimes, time, "heap-lifetimes", histograms.unfreed > 0 ? `${count(histograms.unfreed)} allocations were not freed.` : ""),
        ),
  ];
}

function histogram(caption: string, title: string, classes: HeapClass[], text: (n: number) => string, fileName: string, foot: string): HTMLElement {
  const all = Math.max(1, classes.reduce((sum, c) => sum + c.allocations, 0));
  return table<HeapClass>({
    caption,
    fileName,
    shown: Infinity,
    rows: classes,
    columns: [
      { title, numeric: true, about: "Up to that of the next row", cell: (c) => text(c.min), value: (c) => c.min },
      { title: "Share", cell: (c) => shareBar(c.allocations / all), value: (c) => c.allocations / all },
      { title: "Allocations", numeric: true, cell: (c) => count(c.allocations), value: (c) => c.allocations },
    ],
    foot,
  });
}

/** How often the program allocates, and how much of that is short-lived. */
function rates(heap: HeapUse): string {
  const perSecond = heap.allocations_per_s === null ? [] : [`${rate(heap.allocations_per_s)} allocations per second.`];
  const share = percent(heap.temporary / Math.max(1, heap.allocations));
  const temporary = heap.temporary === 0 ? [] : [`${count(heap.temporary)} (${share}) are temporary: the same thread freed them before it allocated again.`];
  return [...perSecond, ...temporary].join(" ");
}

function heapTable(heap: HeapUse, resets?: string): HTMLElement {
  const left = heap.other_sites > 0 ? `${count(heap.other_sites)} more places had ${bytes(heap.other_at_peak_bytes)} in use at the peak.` : "";
  const unused = heap.untouched_bytes === undefined || heap.untouched_bytes === 0 ? "" : `, ${bytes(heap.untouched_bytes)} never used`;
  const untouched = (r: AllocationSite): number | null => r.untouched_bytes ?? null;
  return table<AllocationSite>({
    caption: `Heap: ${bytes(heap.at_peak_bytes)} in use at the peak, ${count(heap.allocations)} allocations, ${bytes(heap.live_bytes)} not freed${unused}`,
    fileName: "heap",
    isSearched: true,
    rows: heap.sites,
    columns: [
      { title: "Allocated by", cell: (r) => dataName(r, 40), value: (r) => r.name },
      { title: "At peak", numeric: true, cell: (r) => bytes(r.at_peak_bytes), value: (r) => r.at_peak_bytes },
      { title: "Not freed", numeric: true, cell: (r) => bytes(r.live_bytes), value: (r) => r.live_bytes },
      ...(heap.untouched_bytes === undefined ? [] : [{ title: "Not used", numeric: true, about: "Bytes of whole cache lines that the program neither loaded nor stored", cell: (r: AllocationSite) => size(untouched(r)), value: untouched }]),
      { title: "Allocations", numeric: true, cell: (r) => count(r.allocations), value: (r) => r.allocations },
      { title: "Temporary", numeric: true, about: "Allocations that the same thread freed before it allocated again", cell: (r) => count(r.temporary), value: (r) => r.temporary },
      { title: "Bytes", numeric: true, about: "Bytes asked for in all", cell: (r) => bytes(r.bytes), value: (r) => r.bytes },
      { title: "Lifetime", numeric: true, about: "Mean time from allocation to free", cell: (r) => (r.mean_lifetime_ns === null ? "–" : time(r.mean_lifetime_ns)), value: (r) => r.mean_lifetime_ns },
    ],
    detail: calls,
    opens: "Calls",
    foot: [left, rates(heap), resets === undefined ? "" : `What was allocated in an arena is freed by ${resets}: lifetimes end there.`].filter((text) => text !== "").join(" "),
  });
}
