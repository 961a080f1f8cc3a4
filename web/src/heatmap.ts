// Samples by address and time, on a canvas. Touching a cell, or moving over the map with
// the arrow keys, tells its region, module and function.

import type { Heat, Stretch } from "./data";
import { csv, h, save, sized } from "./dom";
import { Drag, timeAt } from "./drag";
import { base, bytes, count, name, time } from "./format";
import { current, follow, select } from "./range";
import { colour, onTheme } from "./theme";

const ROW_HEIGHT = 4;
const GAP = 1;

/** Steps of a scale from few to many, light to dark (dark to light in the dark). */
function shades(): string[] {
  return [0, 1, 2, 3, 4, 5, 6].map((i) => colour(`heat-${i}`));
}

function shade(samples: number, most: number): number {
  // Equal ratios are equal steps: a few cells often have most of the samples.
  return Math.min(6, Math.floor((7 * Math.log1p(samples)) / Math.log1p(most + 1e-9)));
}

class Map {
  readonly element: HTMLElement;
  private readonly canvas = h("canvas", { tabindex: "0", role: "img" });
  private readonly told: HTMLElement;
  private readonly byPlace: Record<string, Stretch["cells"][number]> = {};
  private at: [number, number] = [0, 0];
  private readonly drag: Drag;

  constructor(
    private readonly heat: Heat,
    private readonly stretch: Stretch,
    private readonly most: number,
    told: HTMLElement,
  ) {
    this.told = told;
    for (const cell of stretch.cells) this.byPlace[`${cell[0]},${cell[1]}`] = cell;
    const size = bytes(stretch.rows * stretch.row_bytes);
    const label = `process ${stretch.pid}, ${stretch.start}, ${size}, ${count(stretch.samples)} samples`;
    this.canvas.setAttribute("aria-label", `Heat map: ${label}. Arrow keys move from cell to cell.`);
    this.element = h(
      "div",
      { class: "stretch" },
      h("p", { class: "stretch-name" }, `${this.regions()} `, h("span", { class: "muted" }, `${label}; a row is ${bytes(stretch.row_bytes)}`)),
      this.canvas,
    );
    this.drag = new Drag(this.canvas, (event) => this.point(event));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  /** The regions with the most samples here. */
  private regions(): string {
    const sums: Record<number, number> = {};
    for (const [, , n, , region] of this.stretch.cells) sums[region] = (sums[region] ?? 0) + n;
    const sorted = Object.entries(sums).sort((a, b) => b[1] - a[1]);
    const names = sorted.slice(0, 2).map(([region]) => name(this.heat.regions[Number(region)]));
    return names.join(", ") + (sorted.length > 2 ? " …" : "");
  }

  private point(event: PointerEvent): void {
    const box = this.canvas.getBoundingClientRect();
    const row = Math.floor(((event.clientY - box.top) / box.height) * this.stretch.rows);
    this.at = [this.stretch.rows - 1 - row, Math.floor(timeAt(this.canvas, event) / this.heat.bin_ns)];
    this.tell();
  }

  private key(event: KeyboardEvent): void {
    const steps: Record<string, [number, number]> = {
      ArrowUp: [1, 0],
      ArrowDown: [-1, 0],
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
    };
    const step = steps[event.key];
    if (step === undefined) {
      if (event.key === "Escape") select(null);
      return;
    }
    event.preventDefault();
    const [from, to] = current().map((t) => Math.floor(t / this.heat.bin_ns));
    const row = Math.max(0, Math.min(this.stretch.rows - 1, this.at[0] + step[0]));
    this.at = [row, Math.max(from, Math.min(to, this.at[1] + step[1]))];
    this.tell();
  }

  private tell(): void {
    const [row, column] = this.at;
    const start = BigInt(this.stretch.start) + BigInt(Math.max(0, row)) * BigInt(this.stretch.row_bytes);
    const where = `0x${start.toString(16)}, ${time(column * this.heat.bin_ns, current()[1])}`;
    const cell = this.byPlace[`${row},${column}`];
    this.draw();
    if (cell === undefined) {
      this.told.textContent = `${where}: no samples`;
      return;
    }
    const [fn, module] = this.heat.functions[cell[3]];
    const region = name(this.heat.regions[cell[4]]);
    this.told.textContent =
      `${where}: ${count(cell[2])} samples in ${region}, mostly by ${name(fn)} of ${name(base(module))}`;
  }

  draw(): void {
    const width = Math.max(200, Math.floor(this.element.clientWidth));
    const { rows, cells } = this.stretch;
    const rowHeight = Math.max(ROW_HEIGHT, Math.min(18, Math.floor(72 / rows)));
    const height = rows * rowHeight;
    const context = sized(this.canvas, width, height);
    if (context === null) return;
    const colours = shades();
    const [from, to] = current();
    const scale = width / (to - from);
    const bin = this.heat.bin_ns;
    context.fillStyle = colour("heat-none");
    context.fillRect(0, 0, width, height);
    for (const [row, column, samples] of cells) {
      // Whole pixels, so that neighbours leave no seam.
      const x = Math.floor((column * bin - from) * scale);
      const right = Math.ceil(((column + 1) * bin - from) * scale);
      if (right < 0 || x > width) continue;
      context.fillStyle = colours[shade(samples, this.most)];
      const y = (rows - 1 - row) * rowHeight;
      context.fillRect(x, y, right - x, rowHeight > 6 ? rowHeight - GAP : rowHeight);
    }
    context.strokeStyle = colour("text");
    if (document.activeElement === this.canvas) {
      const y = (rows - 1 - this.at[0]) * rowHeight;
      context.strokeRect((this.at[1] * bin - from) * scale, y, Math.max(3, bin * scale), rowHeight);
    }
    this.drag.draw(context, width, height, colour("accent"));
  }
}

/** The maps of all stretches, with a scale. */
export function heatMap(heat: Heat): HTMLElement {
  const told = h("p", { class: "told", role: "status", "aria-live": "polite" }, "Touch the map to see region, module and function.");
  const most = Math.max(1, ...heat.stretches.map((s) => Math.max(0, ...s.cells.map((c) => c[2]))));
  const maps = heat.stretches.map((stretch) => new Map(heat, stretch, most, told));
  const draw = (): void => maps.forEach((map) => map.draw());
  const steps = [0, 1, 2, 3, 4, 5, 6].map((i) => {
    const step = h("span", { class: "step" });
    step.style.background = `var(--heat-${i})`;
    return step;
  });
  requestAnimationFrame(draw);
  follow(draw);
  onTheme(draw);
  window.addEventListener("resize", draw);
  const get = h("button", { class: "small", click: () => saveHeat(heat) }, "Get the data");
  get.setAttribute("aria-label", "Get the data of the heat map as CSV");
  return h(
    "figure",
    { class: "plot heat" },
    h(
      "figcaption",
      {},
      h("span", { class: "plot-title" }, "Samples by address and time"),
      most === 1
        ? h("span", { class: "unit" }, "one sample a cell")
        : h("span", { class: "unit" }, "samples a cell: 1 ", ...steps, ` ${count(most)}`),
      get,
    ),
    ...maps.map((map) => map.element),
    told,
  );
}

function saveHeat(heat: Heat): void {
  const rows: (string | number)[][] = [["pid", "address", "row_bytes", "start_ns", "samples", "function", "module", "region"]];
  for (const stretch of heat.stretches) {
    for (const [row, column, samples, fn, region] of stretch.cells) {
      const address = BigInt(stretch.start) + BigInt(row) * BigInt(stretch.row_bytes);
      const [functionName, module] = heat.functions[fn];
      rows.push([
        stretch.pid,
        `0x${address.toString(16)}`,
        stretch.row_bytes,
        column * heat.bin_ns,
        samples,
        functionName,
        module,
        heat.regions[region],
      ]);
    }
  }
  save("heat.csv", csv(rows));
}
