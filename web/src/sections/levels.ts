// Caches and TLBs of a modelled machine, or counters' totals of a real one.

import type { Data } from "../data";
import { modelled } from "../data";
import { count, inUnit, name, percent, rate } from "../format";
import { table } from "../table";
import { section, Section } from "./section";

const NAMES: Record<string, string> = { l1d: "L1D", l2: "L2", llc: "LLC", dtlb: "DTLB", stlb: "STLB" };

const MISSES: Record<string, string> = { l1d: "l1d.miss", l2: "l2.miss", llc: "llc.miss" };

export function levels(data: Data): Section | null {
  const run = data.summary;
  if (run === null) return null;
  const seen = run.levels.filter((level) => level.lookups !== null || level.misses !== null);
  if (seen.length === 0) return counters(data);
  const provenance = run.recording.machine === null ? "counted" : modelled(run);
  const interval = (level: string): string => {
    const of = run.sets?.estimates[MISSES[level] ?? ""];
    return of === undefined ? "–" : `${count(of.low)} to ${count(of.high)}`;
  };
  const prefetched = run.totals.prefetches ?? 0;
  const used = (run.totals["prefetch.hits"] ?? 0) / prefetched;
  const number = (n: number | null): string => (n === null ? "–" : count(n));
  return section(
    "levels",
    "Caches and TLBs",
    "Caches",
    {
      provenance,
      definition:
        "Look-ups of each level: those that it answered and those that it missed. Miss ratio: misses / look-ups. " +
        "MPKI: misses per 1000 instructions. Prefetches are not look-ups.",
    },
    table({
      caption: "Look-ups and misses of each level",
      fileName: "levels",
      rows: seen,
      columns: [
        { title: "Level", cell: (l) => NAMES[l.name] ?? name(l.name), value: (l) => NAMES[l.name] ?? l.name },
        { title: "Look-ups", numeric: true, cell: (l) => number(l.lookups), value: (l) => l.lookups },
        { title: "Misses", numeric: true, cell: (l) => number(l.misses), value: (l) => l.misses },
        { title: "Miss ratio", numeric: true, cell: (l) => percent(l.miss_ratio), value: (l) => l.miss_ratio },
        { title: "MPKI", numeric: true, cell: (l) => (l.mpki === null ? "–" : rate(l.mpki)), value: (l) => l.mpki },
        ...(provenance === "estimated"
          ? [{ title: "Misses, 95 %", numeric: true, cell: (l: { name: string }) => interval(l.name), value: (l: { name: string }) => interval(l.name) }]
          : []),
      ],
      foot: prefetched > 0 ? `${count(prefetched)} lines were prefetched, and ${percent(used)} of them were used.` : "",
    }),
  );
}

function counters(data: Data): Section | null {
  const run = data.summary;
  const counting = run?.counting;
  if (run === null || counting === null || counting === undefined) return null;
  const seconds = run.run.duration_ns / 1e9;
  const unitOf = (event: string): string => run.events.find((e) => e.name === event)?.unit ?? "count";
  const isTime = (event: string): boolean => event === "task-clock" || event === "cpu-clock";
  const show = (event: string, value: number): string => (isTime(event) ? `${rate(value / 1e9)} s` : inUnit(value, unitOf(event)));
  const perSecond = (event: string, value: number): string => (isTime(event) ? `${rate(value / 1e9)} CPUs` : rate(value));
  return section(
    "levels",
    "Counters",
    "Counters",
    {
      provenance: "counted",
      definition:
        "What each counter gained over the run, all threads together. A second: the total / the run's length. " +
        "Counted: the share of the time in which the counter was on; less than all where counters shared the hardware.",
    },
    table({
      caption: "Totals of counters",
      fileName: "counters",
      shown: 20,
      rows: counting.totals,
      columns: [
        { title: "Event", cell: (c) => name(c.name), value: (c) => c.name },
        { title: "Total", numeric: true, cell: (c) => show(c.name, c.value), value: (c) => c.value },
        { title: "A second", numeric: true, cell: (c) => (seconds > 0 ? perSecond(c.name, c.value / seconds) : "–"), value: (c) => (seconds > 0 ? c.value / seconds : null) },
        { title: "Counted", numeric: true, cell: (c) => percent(c.share_counted), value: (c) => c.share_counted },
      ],
      foot: counting.unsupported.length > 0 ? `Not counted: ${counting.unsupported.map((u) => name(u.name)).join(", ")}` : "",
    }),
  );
}
