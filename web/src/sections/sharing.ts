// Cache lines that threads share: a row for each line, and a picture of its 64 bytes.

import type { SharedAccess, SharedLine, SharedLines } from "../data";
import { Child, h } from "../dom";
import { base, count, middle, name } from "../format";
import { table } from "../table";
import { dataName } from "./allocations";

const BYTES = 64;
/** Lines with a smaller part of all misses are noise of locks and the start of threads. */
const LEAST_SHARE = 0.01;

export function sharingTable(sharing: SharedLines): HTMLElement | null {
  const most = misses(sharing.lines[0] ?? sharing);
  const rows = sharing.lines.filter((line) => misses(line) >= most * LEAST_SHARE);
  const others = sharing.other_lines + sharing.lines.length - rows.length;
  if (rows.length === 0) return null;
  const isEstimate = sharing.samples > 0;
  const of = (value: (r: SharedLine) => number) => ({ numeric: true, cell: (r: SharedLine): Child => count(value(r)), value });
  return table<SharedLine>({
    caption: `Cache lines shared between threads, ${isEstimate ? `estimated from ${count(sharing.hitm_samples)} HITM samples` : "whole run"}`,
    fileName: "sharing",
    isSearched: true,
    rows,
    columns: [
      { title: "Line", cell: (r) => dataName(r, 40), value: (r) => r.name },
      isEstimate
        ? { title: "Latency", about: "Latency of the HITM samples in cycles, each times its period", ...of((r) => r.stall_cycles) }
        : { title: "Stalled", about: "Cycles in which cores waited for the line from another core", ...of((r) => r.stall_cycles) },
      { title: "HITM", about: "Misses whose line another core held modified", ...of((r) => r.hitm) },
      { title: "False", about: "Misses after another core's store, of bytes that nobody else has stored since", ...of((r) => r.false_sharing) },
      { title: "True", about: "Misses after another core's store, of bytes that others have stored since", ...of((r) => r.true_sharing) },
      ...(isEstimate ? [{ title: "Remote", about: "Part of HITM whose line came from another node", ...of((r: SharedLine) => r.remote_hitm) }, { title: "Samples", about: "Samples of accesses to the line", ...of((r: SharedLine) => r.samples) }] : []),
      { title: "Threads", ...of((r) => r.threads) },
    ],
    detail: accesses,
    opens: "Bytes and code",
    foot: [
      isEstimate ? "Each HITM sample stands for its period. The sampled stores of other threads decide between false and true sharing." : "",
      others > 0 ? `${count(others)} more lines are shared and cost little.` : "",
    ].join(" "),
  });
}

function misses(line: { hitm: number; true_sharing: number; false_sharing: number }): number {
  return Math.max(line.hitm, line.true_sharing + line.false_sharing);
}

/** Who accesses which bytes of the line. */
function accesses(line: SharedLine): HTMLElement {
  const rows = line.accesses.map((access) =>
    h("li", {}, h("div", { class: "line-code" }, code(access), " ", h("span", { class: "muted" }, numbers(access))), strip(access)),
  );
  const more = line.other_accesses > 0 ? h("p", { class: "muted" }, `${count(line.other_accesses)} more accesses are not shown.`) : null;
  const legend = h(
    "p",
    { class: "muted" },
    `Line ${line.address.toString(16).padStart(1, "0")}: 64 bytes, in groups of 8. `,
    h("span", { class: "byte loaded" }),
    " loaded ",
    h("span", { class: "byte stored" }),
    " stored",
  );
  return h("div", {}, legend, h("ul", { class: "line-accesses" }, ...rows), more);
}

function code(access: SharedAccess): HTMLElement {
  const place = access.file === null ? base(access.module) : `${base(access.file)}${access.line === null ? "" : `:${access.line}`}`;
  const text = access.function === null ? `${base(access.module)} [no symbols]` : access.function;
  return h("span", {}, h("bdi", { class: "name", title: name(text) }, middle(name(text), 36)), " ", h("span", { class: "muted" }, place));
}

function numbers(access: SharedAccess): string {
  const threads = access.threads === 1 ? `thread ${access.tid ?? "?"}` : `${count(access.threads)} threads`;
  const member = access.member === undefined ? "" : `${access.member}, `;
  return `${member}${threads}, ${count(access.hitm)} HITM, ${count(access.stall_cycles)} cycles`;
}

function strip(access: SharedAccess): HTMLElement {
  const within = (ranges: { first: number; last: number }[], byte: number): boolean => ranges.some((range) => range.first <= byte && byte <= range.last);
  const cells = Array.from({ length: BYTES }, (_, byte) => {
    const stored = within(access.stored, byte);
    const kind = stored ? " stored" : within(access.loaded, byte) ? " loaded" : "";
    return h("span", { class: `byte${kind}${byte % 8 === 0 && byte > 0 ? " group" : ""}` });
  });
  const words = (ranges: { first: number; last: number }[]): string => ranges.map((range) => (range.first === range.last ? `${range.first}` : `${range.first} to ${range.last}`)).join(", ");
  const label = [access.loaded.length > 0 ? `loads bytes ${words(access.loaded)}` : "", access.stored.length > 0 ? `stores bytes ${words(access.stored)}` : ""].filter((text) => text !== "").join("; ");
  return h("div", { class: "line-bytes", role: "img", title: label, "aria-label": label }, ...cells);
}
