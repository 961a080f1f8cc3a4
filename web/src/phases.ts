// Phases of a run: stretches in which its rates stay about the same.
//
// The curves are joined to at most 96 columns. The cut into at most six stretches with the
// least squared deviation from each stretch's mean is found exactly, by dynamic programming.
// A further cut must explain at least 4 % of all variation, so that noise makes no phases.

import type { Timeline } from "./data";

const COLUMNS = 96;
const MOST = 6;
const WORTH = 0.04;
/** Events whose rates tell phases apart. */
const EVENTS = ["dram.read_bytes", "dram.write_bytes", "l1d.miss", "instructions"];

export interface Phase {
  from: number;
  to: number;
}

export function phases(timeline: Timeline): Phase[] {
  const { bin_ns, duration_ns } = timeline;
  const curves = timeline.curves.filter((curve) => EVENTS.includes(curve.event) && curve.values.some((v) => v > 0));
  const bins = Math.min(Math.ceil(duration_ns / bin_ns), Math.max(0, ...curves.map((curve) => curve.values.length)));
  const joined = Math.ceil(bins / COLUMNS);
  const n = joined === 0 ? 0 : Math.ceil(bins / joined);
  if (n < 4) return [];
  const rows = curves.map((curve) => {
    const sums = new Array<number>(n).fill(0);
    curve.values.slice(0, bins).forEach((value, bin) => (sums[Math.floor(bin / joined)] += value));
    // The last column may be shorter than the others.
    const last = (duration_ns - (n - 1) * joined * bin_ns) / (joined * bin_ns);
    if (last > 0 && last < 1) sums[n - 1] /= Math.max(last, 0.25);
    const most = Math.max(...sums);
    return sums.map((sum) => sum / most);
  });
  const cuts = best(rows, n);
  const ends = cuts.map((column) => Math.min(duration_ns, column * joined * bin_ns));
  return ends.slice(1).map((to, i) => ({ from: ends[i], to: i === ends.length - 2 ? duration_ns : to }));
}

/** Borders of the stretches, from 0 to n. */
function best(rows: number[][], n: number): number[] {
  const sums = rows.map((row) => prefix(row));
  const squares = rows.map((row) => prefix(row.map((x) => x * x)));
  const cost = (from: number, to: number): number =>
    rows.reduce((all, _, r) => {
      const sum = sums[r][to] - sums[r][from];
      return all + Math.max(0, squares[r][to] - squares[r][from] - (sum * sum) / (to - from));
    }, 0);
  const whole = cost(0, n);
  let least = Array.from({ length: n + 1 }, (_, to) => (to === 0 ? 0 : cost(0, to)));
  let borders: number[][] = Array.from({ length: n + 1 }, (_, to) => [0, to]);
  let found = borders[n];
  for (let parts = 2; parts <= MOST; parts++) {
    const next = new Array<number>(n + 1).fill(Infinity);
    const nextBorders: number[][] = new Array<number[]>(n + 1).fill([]);
    for (let to = parts; to <= n; to++) {
      for (let from = parts - 1; from < to; from++) {
        const sum = least[from] + cost(from, to);
        if (sum < next[to]) {
          next[to] = sum;
          nextBorders[to] = [...borders[from], to];
        }
      }
    }
    if (least[n] - next[n] < WORTH * whole || whole < 1e-9) break;
    [least, borders] = [next, nextBorders];
    found = borders[n];
  }
  return found;
}

function prefix(values: number[]): number[] {
  const sums = [0];
  for (const value of values) sums.push(sums[sums.length - 1] + value);
  return sums;
}
