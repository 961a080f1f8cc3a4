// The selected stretch of time, which everything with times follows.

export type Range = readonly [number, number];

type Listener = (range: Range | null) => void;

let selected: Range | null = null;
let whole: Range = [0, 1];
const listeners: Listener[] = [];

/** Nanoseconds of the recording that there are. */
export function setWhole(end: number): void {
  whole = [0, Math.max(end, 1)];
}

export function current(): Range {
  return selected ?? whole;
}

export function all(): Range {
  return whole;
}

export function isWhole(): boolean {
  return selected === null;
}

/** Selects a stretch; the whole, or nothing, is no selection. */
export function select(range: Range | null): void {
  let next: Range | null = null;
  if (range !== null) {
    const from = Math.max(whole[0], Math.min(range[0], range[1]));
    const to = Math.min(whole[1], Math.max(range[0], range[1]));
    const isAll = from <= whole[0] && to >= whole[1];
    if (to - from >= 10 && !isAll) next = [from, to];
    else if (!isAll) return;
  }
  if (next === null && selected === null) return;
  selected = next;
  for (const listener of listeners) listener(selected);
}

export function follow(listener: Listener): void {
  listeners.push(listener);
}
