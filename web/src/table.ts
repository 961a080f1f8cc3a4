// Tables that sort by a click on a heading, with their data to save.

import { csv, h, save, Child } from "./dom";
import { count, percent } from "./format";

export interface Column<Row> {
  title: string;
  /** What it says, for people who ask. */
  about?: string;
  /** Cells are numbers, to the right. */
  numeric?: boolean;
  cell: (row: Row) => Child;
  /** What CSV has and sorting goes by. */
  value: (row: Row) => string | number | null;
}

export interface Options<Row> {
  caption: string;
  rows: Row[];
  columns: Column<Row>[];
  fileName: string;
  /** Rows shown at first. */
  shown?: number;
  /** What is said below it. */
  foot?: string;
  /** What opens below a row; null where nothing does. */
  detail?: (row: Row) => HTMLElement | null;
}

export function table<Row>(options: Options<Row>): HTMLElement {
  const { rows, columns, fileName, caption } = options;
  let shown = options.shown ?? 10;
  let order: { column: number; falling: boolean } | null = null;
  const body = h("tbody");
  const more = h("button", { class: "small", click: () => ((shown = Infinity), fill()) });
  const heads = columns.map((column, i) => head(column, i));

  function head(column: Column<Row>, i: number): HTMLElement {
    const button = h("button", { class: column.title.length > 18 ? "sort long" : "sort", title: column.about ?? "Sort", click: () => sort(i) }, column.title);
    return h("th", { scope: "col", class: column.numeric === true ? "number" : "text" }, button);
  }

  function sort(i: number): void {
    const falling: boolean = order?.column === i ? !order.falling : columns[i].numeric === true;
    order = { column: i, falling };
    heads.forEach((th, at) => {
      if (at === i) th.setAttribute("aria-sort", falling ? "descending" : "ascending");
      else th.removeAttribute("aria-sort");
    });
    fill();
  }

  function sorted(): Row[] {
    if (order === null) return rows;
    const { column, falling } = order;
    const value = columns[column].value;
    const sign = falling ? -1 : 1;
    return [...rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === null || y === null) return x === y ? 0 : x === null ? 1 : -1;
      if (typeof x === "number" && typeof y === "number") return sign * (x - y);
      return sign * String(x).localeCompare(String(y));
    });
  }

  function fill(): void {
    body.replaceChildren();
    for (const row of sorted().slice(0, shown)) {
      const cells = columns.map((column, i) => {
        const tag = i === 0 && column.numeric !== true ? "th" : "td";
        const cell = h(tag, { class: column.numeric === true ? "number" : "text" }, column.cell(row));
        if (tag === "th") cell.setAttribute("scope", "row");
        return cell;
      });
      const line = h("tr", {}, ...cells);
      body.appendChild(line);
      const detail = options.detail?.(row);
      if (detail) body.appendChild(opening(line, detail));
    }
    const left = rows.length - shown;
    more.hidden = left <= 0;
    more.textContent = `Show ${left} more`;
  }

  function opening(line: HTMLElement, detail: HTMLElement): HTMLElement {
    const below = h("tr", { class: "detail", hidden: true }, h("td", { colspan: String(columns.length) }, detail));
    const button = h("button", { class: "small", "aria-expanded": "false" }, "Source");
    button.addEventListener("click", () => {
      below.hidden = !below.hidden;
      button.setAttribute("aria-expanded", String(!below.hidden));
    });
    line.firstElementChild?.append(" ", button);
    return below;
  }

  const get = h("button", { class: "small", click: saveAll }, "Get the data");
  get.setAttribute("aria-label", `Get the data of ${caption} as CSV`);
  function saveAll(): void {
    const lines = rows.map((row) => columns.map((column) => column.value(row)));
    save(`${fileName}.csv`, csv([columns.map((c) => c.title), ...lines]));
  }

  fill();
  if (rows.length === 0) return h("p", { class: "muted" }, "Nothing here.");
  const scroll = h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", { "aria-label": caption }, h("thead", {}, h("tr", {}, ...heads)), body),
  );
  return h(
    "div",
    { class: "table" },
    h("p", { class: "caption" }, caption),
    scroll,
    h("div", { class: "table-foot" }, h("span", { class: "muted" }, options.foot ?? ""), more, get),
  );
}

/** Says how far down a table that leaves rows out can be trusted when it is sorted. */
export function firstByEach(kept: { first_by_each?: number }): string {
  return kept.first_by_each === undefined ? "" : ` Sorted by any count or size, the first ${count(kept.first_by_each)} rows are complete.`;
}

/** A share as a bar with its number, and its interval where it is estimated. */
export function shareBar(share: number | null, low?: number | null, high?: number | null): HTMLElement {
  const bar = h("span", { class: "bar", "aria-hidden": "true" });
  const fill = h("span", { class: "bar-fill" });
  fill.style.width = `${100 * Math.max(0, Math.min(1, share ?? 0))}%`;
  bar.appendChild(fill);
  if (low !== null && low !== undefined && high !== null && high !== undefined) {
    const whisker = h("span", { class: "bar-interval" });
    whisker.style.left = `${100 * low}%`;
    whisker.style.width = `${100 * (high - low)}%`;
    bar.appendChild(whisker);
  }
  return h("span", { class: "share" }, bar, h("span", { class: "share-number" }, percent(share)));
}

/** An interval in per cent. */
export function interval(low: number | null | undefined, high: number | null | undefined): string {
  if (low === null || low === undefined || high === null || high === undefined) return "–";
  const digits = high < 0.1 ? 2 : 1;
  return `${(100 * low).toFixed(digits)}–${(100 * high).toFixed(digits)} %`;
}
