// Use of memory by address and age, on a canvas. Rows are addresses, columns the time from the start of
// the run to its end, and a cell is the share of the row that was used. A pointer or the arrow keys
// show the numbers of a cell.

import type { PageMap } from "./data";
import { csv, h, save, sized } from "./dom";
import { base, bytes, name, percent } from "./format";
import { colour, onTheme } from "./theme";

const ROW_HEIGHT = 16;
const GAP = 1;
const SHADES = 7;

class Map {
  readonly element: HTMLElement;
  private readonly canvas = h("canvas", { tabindex: "0", role: "img" });
  private row = 0;
  private column = 0;

  constructor(
    title: string,
    private readonly map: PageMap,
    private readonly told: HTMLElement,
  ) {
    const size = bytes(map.rows.reduce((sum, row) => sum + row.resident_bytes, 0));
    this.canvas.setAttribute("aria-label", `Heat map of ${title}, ${size}. Arrow keys move from cell to cell.`);
    this.element = h(
      "div",
      { class: "stretch" },
      h("p", { class: "stretch-name" }, `${title} `, h("span", { class: "muted" }, `${size}; each row about ${bytes(map.rows[0].resident_bytes)}`)),
      this.canvas,
      h("p", { class: "map-axis" }, h("span", {}, `${age(this.end() - this.start())} ago`), h("span", {}, "end of the run")),
    );
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerdown", (event) => this.point(event));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("blur", () => this.draw());
  }

  private start(): number {
    return this.map.columns[0].start_s;
  }

  private end(): number {
    return this.map.columns[this.map.columns.length - 1].end_s;
  }

  private point(event: PointerEvent): void {
    const box = this.canvas.getBoundingClientRect();
    const { rows, columns } = this.map;
    const down = (event.clientY - box.top) / box.height;
    this.row = Math.max(0, Math.min(rows.length - 1, Math.floor(down * rows.length)));
    const at = this.start() + ((event.clientX - box.left) / box.width) * (this.end() - this.start());
    const column = columns.findIndex((c) => at < c.end_s);
    this.column = column < 0 ? columns.length - 1 : column;
    this.tell();
  }

  private key(event: KeyboardEvent): void {
    const steps: Record<string, [number, number]> = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    this.row = Math.max(0, Math.min(this.map.rows.length - 1, this.row + step[0]));
    this.column = Math.max(0, Math.min(this.map.columns.length - 1, this.column + step[1]));
    this.tell();
  }

  private tell(): void {
    const row = this.map.rows[this.row];
    const { start_s, end_s } = this.map.columns[this.column];
    const ago = `${age(this.end() - start_s)} to ${age(this.end() - end_s)} before the end`;
    const where = `${name(base(row.name))}, 0x${row.start.toString(16)} to 0x${row.end.toString(16)} (${bytes(row.resident_bytes)} in memory)`;
    this.told.textContent = `${where}, ${ago}: ${percent(row.used[this.column])} used`;
    this.draw();
  }

  draw(): void {
    const { rows, columns } = this.map;
    const width = Math.max(200, Math.floor(this.element.clientWidth));
    const context = sized(this.canvas, width, rows.length * ROW_HEIGHT);
    if (context === null) return;
    const scale = width / (this.end() - this.start());
    const x = (at: number): number => Math.round((at - this.start()) * scale);
    rows.forEach((row, r) => {
      row.used.forEach((share, c) => {
        context.fillStyle = colour(shade(share));
        const left = c === 0 ? 0 : x(columns[c - 1].end_s);
        context.fillRect(left, r * ROW_HEIGHT, x(columns[c].end_s) - left, ROW_HEIGHT - GAP);
      });
    });
    if (document.activeElement === this.canvas) {
      context.strokeStyle = colour("text");
      const left = x(this.column === 0 ? this.start() : columns[this.column - 1].end_s);
      context.strokeRect(left + 0.5, this.row * ROW_HEIGHT + 0.5, x(columns[this.column].end_s) - left - 1, ROW_HEIGHT - GAP - 1);
    }
  }
}

/** Name of the colour of a share: its own for none, and seven of equal steps. */
function shade(share: number): string {
  return share <= 0 ? "heat-none" : `heat-${Math.min(SHADES - 1, Math.floor(share * SHADES))}`;
}

function age(seconds: number): string {
  return seconds < 9.95 ? `${seconds.toFixed(1)} s` : `${seconds.toFixed(0)} s`;
}

/** The heat maps of processes, with a scale. */
export function pageMaps(maps: { title: string; map: PageMap }[]): HTMLElement {
  const told = h("p", { class: "told", role: "status", "aria-live": "polite" }, "Touch the map to see addresses and shares.");
  const drawn = maps.map(({ title, map }) => new Map(name(title), map, told));
  const draw = (): void => drawn.forEach((map) => map.draw());
  const steps = [...Array(SHADES).keys()].map((i) => {
    const step = h("span", { class: "step" });
    step.style.background = `var(--heat-${i})`;
    return step;
  });
  requestAnimationFrame(draw);
  onTheme(draw);
  window.addEventListener("resize", draw);
  const get = h("button", { class: "small", click: () => saveMaps(maps) }, "Get the data");
  get.setAttribute("aria-label", "Get the data of the heat map as CSV");
  return h(
    "figure",
    { class: "plot page-map" },
    h(
      "figcaption",
      {},
      h("span", { class: "plot-title" }, "Use by address and age"),
      h("span", { class: "unit" }, "share of a row that was used: 1/7 ", ...steps, " all"),
      get,
    ),
    ...drawn.map((map) => map.element),
    told,
  );
}

function saveMaps(maps: { title: string; map: PageMap }[]): void {
  const rows: (string | number)[][] = [["process", "region", "start", "end", "resident_bytes", "start_s", "end_s", "used"]];
  for (const { title, map } of maps) {
    for (const row of map.rows) {
      const range = [`0x${row.start.toString(16)}`, `0x${row.end.toString(16)}`, row.resident_bytes];
      row.used.forEach((share, c) => rows.push([title, row.name, ...range, map.columns[c].start_s, map.columns[c].end_s, share]));
    }
  }
  save("page-use.csv", csv(rows));
}
