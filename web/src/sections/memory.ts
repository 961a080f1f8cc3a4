// Memory that running processes need: fault rates by size, working sets, unused memory.

import type { Data, Interval, MemoryRegion, PageMap, RunningMemory } from "../data";
import { h } from "../dom";
import { bytes, capacity, count, name, percent, rate } from "../format";
import { faultRate } from "../fault_rate";
import { pageMaps } from "../page_map";
import { table } from "../table";
import { facts, section, Section } from "./section";

export function memory(data: Data): Section | null {
  const found = data.memory;
  if (found === null || found === undefined) return null;
  const maps = mapsOf(found);
  return section(
    "memory",
    "How much memory it needs",
    "Memory",
    {
      provenance: "estimated",
      definition:
        "The kernel's accessed bits are cleared, and the used pages are counted in windows of growing length. A working set is the " +
        "mean memory used in a window. The growth of the working set is the fault rate of a memory of that size which evicts the least " +
        "recently used page. Sizes beyond the largest window have no rate. docs/mrc.md defines all numbers.",
    },
    figures(found),
    found.points.length > 0 ? faultRate(found) : null,
    found.sizes.length > 0 ? sizeTable(found) : null,
    windowTable(found),
    maps.length > 0 ? pageMaps(maps) : null,
    ...regionTables(found),
    found.processes.length > 0 ? processTable(found) : null,
    h("ul", { class: "facts-list" }, ...found.notes.map((note) => h("li", {}, name(note)))),
  );
}

function figures(memory: RunningMemory): HTMLElement {
  const { cost } = memory;
  const unused = memory.unused_bytes === null ? null : `${bytes(memory.unused_bytes)} for ${seconds(memory.unused_for_s ?? 0)}`;
  return facts([
    ["in memory", bytes(memory.resident_bytes)],
    ["not used", unused],
    ["limit of the control group", memory.limit_bytes === null ? null : capacity(memory.limit_bytes)],
    ["paged out", memory.swapped_bytes === 0 ? null : bytes(memory.swapped_bytes)],
    ["observed", `${seconds(cost.elapsed_s)}, ${count(memory.epochs)} epoch${memory.epochs === 1 ? "" : "s"}`],
    ["accessed bits from", memory.source],
    ["cost", `${percent(cost.own_cpu_s / cost.elapsed_s)} of a processor`],
  ]);
}

function sizeTable(memory: RunningMemory): HTMLElement {
  type Row = RunningMemory["sizes"][number];
  const size = (r: Row): string => {
    if (r.bytes === null) return "–";
    return r.state === "known" ? bytes(r.bytes.value) : `${r.state} ${bytes(r.bytes.value)}`;
  };
  return table<Row>({
    caption: "Memory for at most this many faults per second",
    fileName: "memory-sizes",
    rows: memory.sizes,
    columns: [
      { title: "Faults/s", numeric: true, cell: (r) => rate(r.faults_per_s), value: (r) => r.faults_per_s },
      { title: "Memory", numeric: true, about: "Above: the largest window has more faults", cell: size, value: (r) => r.bytes?.value ?? null },
      { title: "95 % interval", numeric: true, cell: (r) => range(r.bytes), value: (r) => r.bytes?.low ?? null },
    ],
  });
}

function windowTable(memory: RunningMemory): HTMLElement {
  type Row = RunningMemory["working_sets"][number];
  return table<Row>({
    caption: "Working sets by length of the window",
    fileName: "working-sets",
    rows: [...memory.working_sets].reverse(),
    shown: 5,
    columns: [
      { title: "Window", numeric: true, cell: (r) => seconds(r.window_s), value: (r) => r.window_s },
      { title: "Working set", numeric: true, cell: (r) => bytes(r.bytes.value), value: (r) => r.bytes.value },
      { title: "95 % interval", numeric: true, cell: (r) => (memory.epochs === 1 ? "one epoch" : range(r.bytes)), value: (r) => r.bytes.low },
    ],
  });
}

interface ProcessRegion extends MemoryRegion {
  process: string;
}

/** Unused memory by region, since the start and since the middle of the run. */
function regionTables(memory: RunningMemory): HTMLElement[] {
  const regions: ProcessRegion[] = (memory.regions ?? []).map((region) => ({ ...region, process: "" }));
  for (const process of memory.processes) {
    for (const region of process.regions ?? []) regions.push({ ...region, process: `${process.command} (${process.pid})` });
  }
  if (regions.length === 0) return [];
  regions.sort((a, b) => (b.unused[0]?.bytes ?? 0) - (a.unused[0]?.bytes ?? 0));
  const columns = regions[0].unused.length;
  const times = columns > 1 ? [0, Math.floor(columns / 2)] : [0];
  const several = memory.processes.length > 0;
  return [
    table<ProcessRegion>({
      caption: several ? "Unused memory by process and region" : "Unused memory by region",
      fileName: "unused-memory",
      rows: regions,
      isSearched: true,
      columns: [
        ...(several ? [{ title: "Process", cell: (r: ProcessRegion) => name(r.process), value: (r: ProcessRegion) => r.process }] : []),
        { title: "Region", cell: (r) => h("span", { class: "name" }, name(r.name)), value: (r) => r.name },
        { title: "In memory", numeric: true, cell: (r) => bytes(r.resident_bytes), value: (r) => r.resident_bytes },
        ...times.map((at, i) => ({
          title: i === 0 ? `Unused ${seconds(regions[0].unused[at].for_s)}` : `Unused ${seconds(regions[0].unused[at].for_s)} `,
          numeric: true,
          about: i === 0 ? "In the whole run" : "In the second half of the run",
          cell: (r: ProcessRegion) => bytes(r.unused[Math.min(at, r.unused.length - 1)].bytes),
          value: (r: ProcessRegion) => r.unused[Math.min(at, r.unused.length - 1)].bytes,
        })),
      ],
    }),
  ];
}

function processTable(memory: RunningMemory): HTMLElement {
  type Row = RunningMemory["processes"][number];
  return table<Row>({
    caption: "Memory by process",
    fileName: "processes",
    rows: [...memory.processes].sort((a, b) => b.resident_bytes - a.resident_bytes),
    isSearched: true,
    columns: [
      { title: "Command", cell: (r) => name(r.command), value: (r) => r.command },
      { title: "PID", numeric: true, cell: (r) => String(r.pid), value: (r) => r.pid },
      { title: "In memory", numeric: true, cell: (r) => bytes(r.resident_bytes), value: (r) => r.resident_bytes },
      { title: "Working set", numeric: true, about: "Used in the longest window", cell: (r) => (r.working_set_bytes === null ? "–" : bytes(r.working_set_bytes)), value: (r) => r.working_set_bytes },
    ],
  });
}

function mapsOf(memory: RunningMemory): { title: string; map: PageMap }[] {
  const maps: { title: string; map: PageMap | null }[] = [{ title: memory.title, map: memory.heat_map }];
  for (const process of memory.processes) maps.push({ title: `${process.command} (${process.pid})`, map: process.heat_map ?? null });
  return maps.filter((each): each is { title: string; map: PageMap } => each.map !== null && each.map.rows.length > 0 && each.map.columns.length > 0);
}

function range(of: Interval | { value: number; low?: number; high?: number } | null): string {
  if (of === null || of.low === undefined || of.high === undefined) return "";
  return `${bytes(of.low)} – ${bytes(of.high)}`;
}

function seconds(s: number): string {
  return s < 9.95 ? `${Number(s.toFixed(2))} s` : `${s.toFixed(0)} s`;
}
