// Tables that sort by a click on a heading, with their data to save.

import { add, csv, h, save, Child } from "./dom";
import { count, percent } from "./format";
import { levelOf } from "./level_colours";
import { offer } from "./search";
import { keep, kept } from "./state";

export interface Column<Row> {
  title: string;
  /** What it says, for people who ask. */
  about?: string;
  /** The event that it counts: its heading has the colour of the event's level. */
  event?: string;
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
  /** Sums of these rows and of all that the table lacks: a cell for each column; null for none. */
  others?: (hidden: Row[]) => Child[] | null;
  /** What opens below a row; null where nothing does. */
  detail?: (row: Row) => HTMLElement | null;
  /** What the button that opens it says. */
  opens?: string;
  /** Rows are found by the page's search. */
  isSearched?: boolean;
}

export function table<Row>(options: Options<Row>): HTMLElement {
  const { rows, columns, fileName, caption } = options;
  let shown = options.shown ?? 10;
  let order: { column: number; falling: boolean } | null = null;
  /** A row that was searched for. */
  let marked: Row | null = null;
  const body = h("tbody");
  const more = h("button", { class: "small", click: () => ((shown = Infinity), fill()) });
  const heads = columns.map((column, i) => head(column, i));

  function head(column: Column<Row>, i: number): HTMLElement {
    const level = column.event === undefined ? null : levelOf(column.event);
    const swatch = level === null ? null : h("i", { class: `swatch level-${level}`, "aria-hidden": "true" });
    const button = h("button", { class: column.title.length > 18 ? "sort long" : "sort", title: column.about ?? "Sort", click: () => sort(i) }, swatch, column.title);
    return h("th", { scope: "col", class: column.numeric === true ? "number" : "text" }, button);
  }

  function sort(i: number): void {
    const falling: boolean = order?.column === i ? !order.falling : columns[i].numeric === true;
    orderBy(i, falling);
    keep(`sort-${fileName}`, `${columns[i].title},${falling ? "desc" : "asc"}`);
    fill();
  }

  function orderBy(i: number, falling: boolean): void {
    order = { column: i, falling };
    heads.forEach((th, at) => {
      if (at === i) th.setAttribute("aria-sort", falling ? "descending" : "ascending");
      else th.removeAttribute("aria-sort");
    });
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
    const inOrder = sorted();
    for (const row of inOrder.slice(0, shown)) {
      const cells = columns.map((column, i) => {
        const tag = i === 0 && column.numeric !== true ? "th" : "td";
        const cell = h(tag, { class: column.numeric === true ? "number" : "text" }, column.cell(row));
        if (tag === "th") cell.setAttribute("scope", "row");
        else cell.setAttribute("data-title", column.title);
        return cell;
      });
      const line = h("tr", { class: row === marked ? "marked" : false }, ...cells);
      body.appendChild(line);
      if (options.detail?.(row)) body.appendChild(opening(line, row));
    }
    const others = options.others?.(inOrder.slice(shown)) ?? null;
    if (others !== null) {
      const cells = columns.map((column, i) => h("td", { class: column.numeric === true ? "number" : "text", "data-title": i === 0 ? "" : column.title }, others[i]));
      body.appendChild(h("tr", { class: "others" }, ...cells));
    }
    const left = rows.length - shown;
    more.hidden = left <= 0;
    more.textContent = `Show ${left} more`;
  }

  function opening(line: HTMLElement, row: Row): HTMLElement {
    const key = `open-${fileName}`;
    const id = String(rows.indexOf(row));
    const place = h("td", { colspan: String(columns.length) });
    const below = h("tr", { class: "detail", hidden: true }, place);
    const what = options.opens ?? "Source";
    const button = h("button", { class: "opens", "aria-expanded": "false", "aria-label": what, title: what });
    const open = (): void => {
      below.hidden = !below.hidden;
      if (place.firstChild === null) add(place, options.detail?.(row));
      button.setAttribute("aria-expanded", String(!below.hidden));
    };
    button.addEventListener("click", () => {
      open();
      keep(key, below.hidden ? null : id);
    });
    if (kept(key) === id) open();
    line.firstElementChild?.prepend(button);
    return below;
  }

  const get = h("button", { class: "small", click: saveAll }, "Get the data");
  get.setAttribute("aria-label", `Get the data of ${caption} as CSV`);
  function saveAll(): void {
    const lines = rows.map((row) => columns.map((column) => column.value(row)));
    save(`${fileName}.csv`, csv([columns.map((c) => c.title), ...lines]));
  }

  /** Shows a row, wherever it is in the order. */
  function reveal(row: Row): void {
    marked = row;
    shown = Math.max(shown, sorted().indexOf(row) + 1);
    fill();
    const line = body.querySelector(".marked");
    line?.scrollIntoView({ block: "center" });
    line?.querySelector<HTMLElement>("button")?.focus({ preventScroll: true });
  }

  const before = kept(`sort-${fileName}`)?.split(",");
  const column = before === undefined ? -1 : columns.findIndex((c) => c.title === before.slice(0, -1).join(","));
  if (column >= 0) orderBy(column, before?.[before.length - 1] === "desc");
  fill();
  if (rows.length === 0) return h("p", { class: "muted" }, "Nothing here.");
  if (options.isSearched === true) {
    const texts = rows.map((row) => columns.map((c) => c.value(row)).filter((v): v is string => typeof v === "string"));
    offer(caption.split(/ by | from |,|:/)[0], (text) =>
      rows
        .map((row, i) => ({ row, words: texts[i] }))
        .filter(({ words }) => words.some((word) => word.toLowerCase().includes(text)))
        .map(({ row, words }) => ({ text: words.join("  "), go: () => reveal(row) })),
    );
  }
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
