// Numbers and names for people: the same rounding as the text report.

function significant(x: number, digits = 3): string {
  if (x === 0) return "0";
  return x.toFixed(digits - (x >= 100 ? 3 : x >= 10 ? 2 : 1));
}

/** A count with three significant digits, or more: `1.24M`. */
export function count(n: number, digits = 3): string {
  if (Math.abs(n) < 10_000) return String(Math.round(n));
  let x = n;
  for (const unit of ["k", "M", "G", "T", "P"]) {
    x /= 1000;
    if (Math.abs(x) < 999.5) return significant(x, digits) + unit;
  }
  return significant(x / 1000, digits) + "E";
}

/** Bytes in powers of 1024: `14.6 MiB`. */
export function bytes(n: number, digits = 3): string {
  if (n < 1024) return `${Math.round(n)} B`;
  let x = n;
  for (const unit of ["KiB", "MiB", "GiB", "TiB"]) {
    x /= 1024;
    if (x < 1023.5) return `${significant(x, digits)} ${unit}`;
  }
  return `${significant(x / 1024, digits)} PiB`;
}

/** How much of an event: bytes and processor time in their units, all else counted. */
export function amount(event: string, value: number): string {
  if (event === "task-clock" || event === "cpu-clock") return time(value);
  return event.endsWith("bytes") ? bytes(value) : count(value);
}

/** A capacity, which is a whole number of units: `32 KiB`. */
export function capacity(n: number): string {
  return bytes(n).replace(/\.0+ /, " ").replace(/(\.\d*?)0+ /, "$1 ");
}

export function percent(x: number | null | undefined): string {
  if (x === null || x === undefined || !Number.isFinite(x)) return "–";
  const p = 100 * x;
  if (p > 0 && p < 0.01) return "<0.01 %";
  if (p === 0) return "0 %";
  // Never rounded to all.
  if (p < 100 && p > 99.99) return ">99.99 %";
  if (p < 100 && p >= 99.95) return `${p.toFixed(2)} %`;
  return `${p >= 10 ? p.toFixed(1) : p.toFixed(2)} %`;
}

/** Nanoseconds in the unit that suits a span of them. */
export function time(ns: number, span = ns): string {
  const [scale, unit] = timeUnit(span);
  const x = ns / scale;
  const digits = span / scale >= 100 ? 1 : span / scale >= 10 ? 2 : 3;
  return `${trim(x.toFixed(digits))} ${unit}`;
}

export function timeUnit(span: number): [number, string] {
  if (span < 1e3) return [1, "ns"];
  if (span < 1e6) return [1e3, "µs"];
  if (span < 1e9) return [1e6, "ms"];
  if (span < 600e9) return [1e9, "s"];
  return [60e9, "min"];
}

function trim(text: string): string {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

/** A rate per second. */
export function rate(x: number): string {
  if (x > 0 && x < 0.01) return "<0.01";
  return x < 100 ? trim(x.toFixed(2)) : count(x);
}

/** A value in an event's unit. */
export function inUnit(value: number, unit: string): string {
  if (unit === "bytes") return bytes(value);
  if (unit === "nanoseconds") return time(value);
  return count(value);
}

const DANGEROUS =
  // eslint-disable-next-line no-control-regex
  /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;

/**
 * A name as it may be shown: characters that turn the reading direction, take no room or
 * control a terminal are spelled out.
 */
export function name(text: string): string {
  return text.replace(DANGEROUS, (c) => `⟨${c.charCodeAt(0).toString(16).padStart(4, "0")}⟩`);
}

/** The last part of a path. */
export function base(path: string): string {
  const last = path.split("/").pop();
  return last === undefined || last === "" ? path : last;
}

/** Wilson's 95 % interval of a share seen in n samples; as `analyze::wilson_95`. */
export function wilson(share: number, n: number): [number, number] | null {
  if (n <= 0) return null;
  const z2 = 1.959964 * 1.959964;
  const centre = share + z2 / (2 * n);
  const half = 1.959964 * Math.sqrt((share * (1 - share)) / n + z2 / (4 * n * n));
  const scale = 1 / (1 + z2 / n);
  return [Math.max(0, (centre - half) * scale), Math.min(1, (centre + half) * scale)];
}

/** Names up to this length are shown whole. */
const SHORT = 40;

/**
 * A function's name without the arguments of templates and of the call if it is long:
 * `std::map<>::find()`. As `names::readable` of `report`.
 */
export function readable(text: string): string {
  if ([...text].length <= SHORT || text.includes("operator")) return text;
  let short = "";
  let depth = 0;
  for (const c of text) {
    if ((c === ">" || c === ")") && depth > 0) depth--;
    if (depth === 0) short += c;
    if (c === "<" || c === "(") depth++;
  }
  return short;
}

/** A text shortened in its middle, where names of paths and of templates differ least. */
export function middle(text: string, most: number): string {
  const letters = [...text];
  if (letters.length <= most) return text;
  const end = Math.ceil((most - 1) * 0.55);
  return `${letters.slice(0, most - 1 - end).join("")}…${letters.slice(-end).join("")}`;
}

/** A function behind those that it was inlined into, outermost first: `main > lookups`. */
export function chain(row: { function: string; inlined_into: { function: string }[] }): string {
  const frames = [row.function, ...row.inlined_into.map((caller) => caller.function)].map(readable).reverse();
  const shown = frames.length > 3 ? [frames[0], "…", ...frames.slice(-2)] : frames;
  return shown.join(" > ");
}
