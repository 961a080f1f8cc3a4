// A curve at the resolution of the screen: bins of the recording are joined in columns,
// each with its mean and its highest bin, so that a short peak is never smoothed away.

export interface Columns {
  /** Start of each column in nanoseconds, and the end of the last. */
  x: number[];
  /** Mean rate per second in each. */
  mean: (number | null)[];
  /** Highest rate of a bin in each. */
  highest: (number | null)[];
  /** Bins in a column. */
  binsPerColumn: number;
}

export function columns(
  values: readonly number[],
  binNs: number,
  durationNs: number,
  from: number,
  to: number,
  most: number,
): Columns {
  const first = Math.max(0, Math.floor(from / binNs));
  const last = Math.min(values.length, Math.ceil(to / binNs));
  const joined = Math.max(1, Math.ceil((last - first) / Math.max(1, most)));
  const begin = Math.floor(first / joined) * joined;
  const x: number[] = [];
  const mean: (number | null)[] = [];
  const highest: (number | null)[] = [];
  for (let i = begin; i < last; i += joined) {
    const end = Math.min(i + joined, values.length);
    let sum = 0;
    let top = 0;
    for (let j = i; j < end; j++) {
      sum += values[j];
      top = Math.max(top, values[j] / lengthOf(j, binNs, durationNs));
    }
    x.push(i * binNs);
    const length = Math.min(end * binNs, Math.max(durationNs, i * binNs + 1)) - i * binNs;
    mean.push((sum * 1e9) / length);
    highest.push(top * 1e9);
  }
  if (x.length > 0) {
    // The last column is drawn to its end.
    x.push(Math.min(Math.max(last, begin + 1) * binNs, Math.max(durationNs, x[x.length - 1] + 1)));
    mean.push(mean[mean.length - 1]);
    highest.push(highest[highest.length - 1]);
  }
  return { x, mean, highest, binsPerColumn: joined };
}

/** Nanoseconds of a bin that lie within the recording. */
function lengthOf(bin: number, binNs: number, durationNs: number): number {
  const start = bin * binNs;
  return Math.max(1, Math.min(binNs, durationNs - start));
}

/** What a curve gained in a range; a bin that a border cuts counts in proportion. */
export function gained(
  values: readonly number[],
  binNs: number,
  durationNs: number,
  from: number,
  to: number,
): number {
  let sum = 0;
  const first = Math.max(0, Math.floor(from / binNs));
  const last = Math.min(values.length, Math.ceil(to / binNs));
  for (let i = first; i < last; i++) {
    const start = i * binNs;
    const length = lengthOf(i, binNs, durationNs);
    const inside = Math.min(to, start + length) - Math.max(from, start);
    if (inside > 0) sum += (values[i] * inside) / length;
  }
  return sum;
}
