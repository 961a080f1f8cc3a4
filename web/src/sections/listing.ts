// Machine code of a hot function between the source lines that it was made from, with what each
// instruction cost in the margin.

import type { CodeListing, Excerpt, HotRow, Summary } from "../data";
import { h } from "../dom";
import { amount, base, count, name, percent } from "../format";
import { knowsStalls } from "../level_colours";
import { stallBar } from "./hot";

/** The listing that has a row's code. */
export function listingOf(run: Summary, row: HotRow): CodeListing | null {
  const callers = row.inlined_into;
  const outermost = callers.length === 0 ? row.function : callers[callers.length - 1].function;
  return (run.listings ?? []).find((listing) => listing.function === outermost && listing.module === row.module) ?? null;
}

export function listing(run: Summary, code: CodeListing): HTMLElement {
  if (code.missing !== undefined) return h("p", { class: "muted" }, `No machine code: ${name(code.missing)}.`);
  const { rank, total } = run.hot.functions;
  const rows: HTMLElement[] = [];
  /** What each row costs. */
  const marks: (number | null)[] = [];
  let at = "";
  for (const instruction of code.instructions) {
    const { file, line } = instruction;
    const place = file === undefined ? "" : `${file}:${line ?? ""}`;
    if (place !== at && place !== "") {
      rows.push(sourceLine(run, file ?? "", line));
      marks.push(null);
    }
    at = place;
    const cost = instruction.value > 0;
    marks.push(instruction.value);
    rows.push(
      h(
        "span",
        { class: cost ? "source-line hot" : "source-line" },
        h("span", { class: "source-share" }, cost ? percent(instruction.value / Math.max(1, total)) : ""),
        h("span", { class: "source-count" }, cost ? amount(rank, instruction.value) : ""),
        rank === "cycles" && knowsStalls(run) && h("span", { class: "source-bar" }, cost ? stallBar(instruction.counts) : null),
        h("span", { class: "source-address" }, instruction.address.toString(16)),
        h("span", { class: "source-text" }, `${name(instruction.text)}\n`),
      ),
    );
  }
  const text = h("pre", { class: "source", tabindex: "0" }, ...rows);
  const most = Math.max(...code.instructions.map((instruction) => instruction.value));
  const hottest = rows[marks.findIndex((value) => value === most)];
  requestAnimationFrame(() => (text.scrollTop = hottest.offsetTop - text.offsetTop - text.clientHeight / 2));
  const omitted = code.omitted > 0 ? ` ${count(code.omitted)} more instructions of it are not shown.` : "";
  return h(
    "div",
    { class: "listing" },
    h("p", { class: "muted" }, `Machine code of ${name(code.function)} in ${name(base(code.module))}.${omitted}`),
    text,
  );
}

/** The source line above its instructions; its name alone where its text is not here. */
function sourceLine(run: Summary, file: string, line: number | undefined): HTMLElement {
  const has = (e: Excerpt): boolean => e.file === file && line !== undefined && line >= e.first_line && line < e.first_line + e.lines.length;
  const excerpt = (run.sources ?? []).find(has);
  const text = excerpt === undefined || line === undefined ? "" : excerpt.lines[line - excerpt.first_line].trim();
  return h("span", { class: "source-line source-above", title: name(`${file}:${line ?? ""}`) }, `${name(base(file))}:${line ?? ""}  ${name(text)}\n`);
}
