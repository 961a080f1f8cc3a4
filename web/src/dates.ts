// Dates in UTC. The selected range of a dataset's page is in nanoseconds since its first recording
// started, as that of a recording is since its start.

let startUnixS = 0;

export function setStart(unixS: number): void {
  startUnixS = unixS;
}

export function toRange(unixS: number): number {
  return (unixS - startUnixS) * 1e9;
}

export function toUnixS(ns: number): number {
  return startUnixS + ns / 1e9;
}

/** `2026-11-20 14:05` */
export function minute(unixS: number): string {
  return new Date(unixS * 1000).toISOString().slice(0, 16).replace("T", " ");
}

/** `14:05:30` */
export function secondOfDay(unixS: number): string {
  return new Date(unixS * 1000).toISOString().slice(11, 19);
}

/** Two times, the date of the second only if it is another. */
export function between(first: number, last: number): string {
  const [from, to] = [minute(first), minute(last)];
  if (from === to) return from;
  return `${from} to ${from.slice(0, 10) === to.slice(0, 10) ? to.slice(11) : to}`;
}

export function datesBetween(from: number, to: number): string {
  return `${between(toUnixS(from), toUnixS(to))} UTC`;
}
