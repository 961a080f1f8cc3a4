// One colour per memory level, wherever a level is shown: in the bar of the cycles, tables,
// flame graphs and curves. An event has the colour of the level that it makes the program
// wait for: a miss of the first level waits for the second.

import type { Counts, Summary } from "./data";

/** Stalls by what is waited for: event, level, words. */
export const STALLS: readonly { event: string; level: string; words: string }[] = [
  { event: "stall.l2", level: "l2", words: "waiting for L2" },
  { event: "stall.llc", level: "llc", words: "waiting for the LLC" },
  { event: "stall.dram", level: "dram", words: "waiting for DRAM" },
  { event: "stall.queue", level: "queue", words: "queued at DRAM" },
  { event: "stall.tlb", level: "tlb", words: "translating addresses" },
  { event: "stall.stores", level: "stores", words: "waiting for stores" },
  { event: "stall.sharing", level: "sharing", words: "waiting for other cores" },
];

const LEVELS: Record<string, string> = {
  "l1d.miss": "l2",
  "l2.miss": "llc",
  "llc.miss": "dram",
  "dram.read_bytes": "dram",
  "dram.write_bytes": "stores",
  "dtlb.miss": "tlb",
  "dtlb.walk": "tlb",
  cycles: "work",
  instructions: "work",
  ...Object.fromEntries(STALLS.map((stall) => [stall.event, stall.level])),
};

/** The level that an event belongs to; null for events of no level. */
export function levelOf(event: string): string | null {
  return LEVELS[event] ?? null;
}

/** Name of the colour of an event in the style sheet. */
export function colourOf(event: string): string {
  const level = levelOf(event);
  return level === null ? "series-1" : `level-${level}`;
}

/** Cycles of a place that stalled. */
export function stalled(counts: Counts): number {
  return STALLS.reduce((sum, stall) => sum + (counts[stall.event] ?? 0), 0);
}

/** Whether the run's cycles are known by what they were spent on. Sampled cycles are not. */
export function knowsStalls(run: Summary): boolean {
  return (run.time ?? []).length > 0;
}

/** Cycles of a place by what they were spent on, work first. */
export function timeParts(counts: Counts): { level: string; words: string; cycles: number }[] {
  const cycles = counts.cycles ?? 0;
  const work = { level: "work", words: "work", cycles: Math.max(0, cycles - stalled(counts)) };
  const stalls = STALLS.map((stall) => ({ level: stall.level, words: stall.words, cycles: counts[stall.event] ?? 0 }));
  return [work, ...stalls].filter((part) => part.cycles > 0);
}

/** What most cycles of a place were spent on. */
export function cause(counts: Counts): string | null {
  const parts = timeParts(counts);
  return parts.reduce<(typeof parts)[number] | null>((most, part) => (most === null || part.cycles > most.cycles ? part : most), null)?.level ?? null;
}

/** The sampled event whose misses the program waits for most; the first where that is not known. */
export function missEvent(run: Summary, events: string[]): string | undefined {
  const stall = (names: string[]): number => names.reduce((sum, event) => sum + (run.totals[event] ?? 0), 0);
  const inCaches = stall(["stall.l2", "stall.llc"]) > stall(["stall.dram", "stall.queue"]);
  const wanted = inCaches ? "l1d.miss" : "llc.miss";
  return events.includes(wanted) ? wanted : events[0];
}
