// Data: what it costs, the heap, regions of memory, and the heat map.

import type { Data, RegionTable, TimedSamples } from "../data";
import { hasEvery } from "../data";
import { h } from "../dom";
import { amount, bytes, count, name, percent } from "../format";
import { missEvent } from "../level_colours";
import { heatMap } from "../heatmap";
import { follow, isWhole } from "../range";
import { firstByEach, interval, shareBar, table } from "../table";
import { onPart } from "../part";
import { dataTable, heapParts } from "./allocations";
import { sharingTable } from "./sharing";
import { typeTable } from "./types";
import { section, Section } from "./section";
import { eventChoice, timedTable } from "./timed";

export function data(all: Data): Section | null {
  const run = all.summary;
  if (run === null) return null;
  const tables = run.regions.filter((t) => t.samples > 0);
  const heat = run.timeline?.heat ?? null;
  const costs = run.data === undefined ? null : dataTable(run.data);
  const heap = run.heap === undefined ? [] : heapParts(run.heap, run.recording.machine !== null, run.recording.source.settings.resets);
  const sharing = run.sharing === undefined ? null : sharingTable(run.sharing);
  const types = run.types === undefined ? null : typeTable(run.types);
  if (tables.length === 0 && heat === null && costs === null && heap.length === 0 && sharing === null) return null;
  const samples = (run.timeline?.samples ?? []).filter((s) => s.regions.length > 0);
  const ordered = tables.map((t) => samples.find((s) => s.event === t.event)).filter((s): s is TimedSamples => s !== undefined);
  const event = missEvent(run, ordered.map((timed) => timed.event));
  let chosen = Math.max(0, ordered.findIndex((timed) => timed.event === event));
  const place = h("div");
  const choice = eventChoice(ordered, "Event of the regions", (timed) => {
    chosen = ordered.indexOf(timed);
    fill();
  }, chosen);
  function fill(): void {
    const timed = ordered[chosen];
    if (isWhole() || timed === undefined) place.replaceChildren(...tables.slice(chosen, chosen + 1).flatMap((table) => withGap(table, regionTable(table, hasEvery(run, table.event)))));
    else place.replaceChildren(timedTable(run, timed, "regions", "Regions", "Process"));
  }
  follow(fill);
  onPart(fill);
  fill();
  const more = heat !== null && heat.other_stretches > 0 ? h("p", { class: "muted" }, `${count(heat.other_stretches)} stretches with fewer samples are not shown.`) : null;
  return section(
    "data",
    "Data",
    "Data",
    {
      provenance: costs !== null ? "modelled" : tables.length > 0 && tables.every((t) => hasEvery(run, t.event)) ? "counted" : "sampled",
      definition:
        (costs === null
          ? ""
          : "Every miss and stalled cycle of the modelled machine is charged to the data that was accessed: to the place in the code that allocated it, to a variable, or to a mapping. " +
            "Objects of one place are one row. Where debug information tells, they are also summed by type and member. ") +
        "Which memory the sampled events touch: variables, heap, stack, files, nameless mappings. A share is that of the " +
        "events that the samples stand for; the interval follows from the number of samples. Where each event is a sample there is no interval. In the heat map a row is a " +
        "stretch of addresses, low ones at the bottom, and a column a stretch of time; darker is more samples, in equal " +
        "ratios. A cell's function is the one with more than half of its samples, where there is one.",
    },
    costs,
    types,
    sharing,
    ...heap,
    choice,
    place,
    heat === null ? null : heatMap(heat),
    more,
  );
}

/** The table, after a warning where its shares rest on too few samples. */
function withGap(regions: RegionTable, shown: HTMLElement): HTMLElement[] {
  const gap = regions.address_gap;
  return gap === undefined ? [shown] : [h("p", { class: "state warn" }, gapInWords(gap)), shown];
}

function gapInWords(gap: NonNullable<RegionTable["address_gap"]>): string {
  const all = `Shares rest on ${count(gap.with_address)} of ${count(gap.samples)} samples, those with a data address.`;
  const f = gap.function;
  if (f === null) return all;
  return `${all} ${name(f.name)} has ${percent(f.share)} of all events, but only ${count(f.with_address)} of its ${count(f.samples)} samples have an address.`;
}

function regionTable(regions: RegionTable, every: boolean): HTMLElement {
  type Row = RegionTable["rows"][number];
  const without = regions.samples_without_address;
  const foot = [
    without > 0 ? `${count(without)} samples have no data address.` : "",
    regions.other_rows > 0
      ? `${count(regions.other_rows)} more regions have ${amount(regions.event, regions.other_events)}${regions.event.endsWith("-clock") ? "" : " events"}.${firstByEach(regions)}`
      : "",
  ];
  return table<Row>({
    caption: `Regions by ${name(regions.event)}, n = ${count(regions.samples)}`,
    fileName: "regions",
    isSearched: true,
    rows: regions.rows,
    columns: [
      { title: "Region", cell: (r) => h("bdi", {}, name(r.name)), value: (r) => r.name },
      { title: "Share", cell: (r) => shareBar(r.share, r.share_low, r.share_high), value: (r) => r.share },
      ...(every ? [] : [{ title: "95 % interval", numeric: true, cell: (r: Row) => interval(r.share_low, r.share_high), value: (r: Row) => r.share_low }]),
      { title: "Events", numeric: true, cell: (r) => amount(regions.event, r.events), value: (r) => r.events },
      { title: "n", numeric: true, about: "Samples", cell: (r) => count(r.samples), value: (r) => r.samples },
      { title: "Size", numeric: true, cell: (r) => (r.bytes === null ? "–" : bytes(r.bytes)), value: (r) => r.bytes },
      { title: "Process", numeric: true, cell: (r) => String(r.pid), value: (r) => r.pid },
    ],
    foot: foot.filter((text) => text !== "").join(" "),
  });
}
