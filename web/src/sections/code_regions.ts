// Regions of interest: sums, and when threads were inside.

import type { CodeRegionRow, Data, Summary, TimedRegion } from "../data";
import { modelled } from "../data";
import { h } from "../dom";
import { bytes, count, name, percent, rate, time } from "../format";
import { lanes } from "../lanes";
import { current, follow, isWhole } from "../range";
import { Column, table } from "../table";
import { section, Section } from "./section";

const LANES = 10;

export function codeRegions(data: Data): Section | null {
  const run = data.summary;
  const rows = run?.code_regions ?? [];
  if (run === null || rows.length === 0) return null;
  const timed = run.timeline?.code_regions ?? [];
  const place = h("div");
  const fill = (): void =>
    place.replaceChildren(isWhole() || timed.length === 0 ? sums(run, rows) : within(timed));
  follow(fill);
  fill();
  return section(
    "code-regions",
    "Regions of interest",
    "Regions",
    {
      provenance: run.recording.machine !== null ? modelled(run) : "estimated from samples",
      definition:
        "Stretches of execution that the program marked, or functions that were asked for by name. Entries: times that " +
        "a thread went in from outside. Time: summed over threads, waits included. Events are those of all that happened " +
        "inside; a region within another counts in both.",
    },
    timed.length > 0 && lanes(timed, LANES),
    place,
  );
}

function sums(run: Summary, rows: CodeRegionRow[]): HTMLElement {
  const known = new Set(rows.flatMap((row) => Object.keys(row.counts)));
  const first = ["instructions", "l1d.miss", "llc.miss", "dram.read_bytes", "dram.write_bytes"].filter((e) => known.has(e));
  const events = first.length > 0 ? first : [...known].sort().slice(0, 5);
  const unit = (event: string): string => run.events.find((e) => e.name === event)?.unit ?? "count";
  const amount = (event: string, value: number | undefined): string =>
    value === undefined ? "0" : unit(event) === "bytes" ? bytes(value) : unit(event) === "nanoseconds" ? time(value) : count(value);
  const perKilo = (row: CodeRegionRow): number | null => {
    const instructions = row.counts["instructions"] ?? 0;
    return instructions > 0 ? (1000 * (row.counts["llc.miss"] ?? 0)) / instructions : null;
  };
  const columns: Column<CodeRegionRow>[] = [
    { title: "Region", cell: (r) => h("bdi", {}, name(r.name)), value: (r) => r.name },
    { title: "Entries", numeric: true, cell: (r) => count(r.entries), value: (r) => r.entries },
    { title: "Threads", numeric: true, cell: (r) => count(r.threads), value: (r) => r.threads },
    { title: "Time", about: "Nanoseconds inside, summed over threads", numeric: true, cell: (r) => time(r.time_ns), value: (r) => r.time_ns },
    ...events.map((event) => ({
      title: name(event),
      numeric: true,
      cell: (r: CodeRegionRow) => amount(event, r.counts[event]),
      value: (r: CodeRegionRow) => r.counts[event] ?? 0,
    })),
  ];
  if (known.has("instructions") && known.has("llc.miss")) {
    columns.push({
      title: "MPKI",
      about: "LLC misses per 1000 instructions",
      numeric: true,
      cell: (r) => {
        const value = perKilo(r);
        return value === null ? "–" : rate(value);
      },
      value: perKilo,
    });
  }
  return table<CodeRegionRow>({ caption: "Regions of interest", fileName: "code_regions", isSearched: true, rows, columns });
}

interface Within {
  name: string;
  inside: number;
  threads: number;
}

/** Time inside in the selected range; joined stays count evenly. */
function within(timed: TimedRegion[]): HTMLElement {
  const [from, to] = current();
  const rows: Within[] = timed.map((region) => {
    let inside = 0;
    const threads = new Set<string>();
    for (const [start, duration, ns, , pid, tid] of region.spans) {
      const shared = Math.min(to, start + duration) - Math.max(from, start);
      if (shared < 0 || (shared === 0 && duration > 0)) continue;
      inside += duration > 0 ? (ns * shared) / duration : 0;
      threads.add(`${pid},${tid}`);
    }
    return { name: region.name, inside, threads: threads.size };
  });
  const some = rows.filter((row) => row.threads > 0).sort((a, b) => b.inside - a.inside);
  const range = to - from;
  return table<Within>({
    caption: `Regions of interest from ${time(from, to)} to ${time(to)}`,
    fileName: "code_regions_selected",
    rows: some,
    columns: [
      { title: "Region", cell: (r) => h("bdi", {}, name(r.name)), value: (r) => r.name },
      { title: "Threads", numeric: true, cell: (r) => count(r.threads), value: (r) => r.threads },
      { title: "Time", numeric: true, cell: (r) => time(r.inside), value: (r) => Math.round(r.inside) },
      { title: "Of the range", numeric: true, cell: (r) => percent(r.inside / range), value: (r) => r.inside / range },
    ],
    foot: "Events of regions are known for the whole run alone.",
  });
}
