// Allocated memory over time: a layer for each allocation site, and the maximum as a line.
//
// Layers are bytes at the end of a step, which add up. The line is the maximum within it, and is
// above the layers where memory was in use for less than a step. A second line, where it was read,
// is the resident memory of the processes.

import { keys } from "./curves";
import type { HeapOverTime } from "./data";
import { csv, h, save, sized } from "./dom";
import { Drag, timeAt } from "./drag";
import { bytes, middle, name, time } from "./format";
import { current, follow, isWhole } from "./range";
import { colour, onTheme } from "./theme";

const HEIGHT = 180;
/** Room for times below the layers. */
const FOOT = 18;
const COLOURS = ["series-1", "series-2", "series-3", "module-1", "module-4", "module-0", "module-3", "module-5"];
const OTHERS = "level-work";

interface Layer {
  label: string;
  colour: string;
  bytes: readonly number[];
}

class MemoryPlot {
  readonly element: HTMLElement;
  private readonly canvas = h("canvas", { tabindex: "0", role: "application", "aria-roledescription": "plot over time" });
  private readonly note = h("p", { class: "told", role: "status", "aria-live": "polite" });
  private readonly drag: Drag;
  private readonly layers: Layer[];

  constructor(
    private readonly history: HeapOverTime,
    provenance: string,
  ) {
    this.layers = history.sites.map((site, i) => ({ label: site.name, colour: COLOURS[i % COLOURS.length], bytes: site.bytes }));
    if (history.other_bytes.some((n) => n > 0)) this.layers.push({ label: "other places", colour: OTHERS, bytes: history.other_bytes });
    const get = h("button", { class: "small", click: () => this.save() }, "Get the data");
    get.setAttribute("aria-label", "Get the data of allocated memory over time as CSV");
    const names = this.layers.map((layer) => {
      const swatch = h("i");
      swatch.style.background = `var(--${layer.colour})`;
      return h("span", { class: "key", title: name(layer.label) }, swatch, h("bdi", {}, middle(name(layer.label), 40)));
    });
    if (history.resident !== undefined) {
      const swatch = h("i");
      swatch.style.background = "repeating-linear-gradient(90deg, var(--text) 0 4px, transparent 4px 6px)";
      names.push(h("span", { class: "key", title: "Memory of the processes that is in RAM, with code, stacks and what the allocator holds" }, swatch, "resident (RSS)"));
    }
    this.element = h(
      "figure",
      { class: "plot memory-plot" },
      h("figcaption", {}, h("span", { class: "plot-title" }, "Allocated memory over time"), h("span", { class: "unit" }, `bytes, ${provenance}`), ...names, get),
      this.canvas,
      this.note,
    );
    this.drag = new Drag(this.canvas, (event) => this.tell(event));
    this.canvas.addEventListener("keydown", keys);
    this.canvas.addEventListener("pointerleave", () => this.say());
    requestAnimationFrame(() => this.draw());
    follow(() => this.draw());
    onTheme(() => this.draw());
    window.addEventListener("resize", () => this.draw());
  }

  /** The first step of the selected range, and the one after the last. */
  private steps(): [number, number] {
    const [from, to] = current();
    const { bin_ns, in_use } = this.history;
    return [Math.max(0, Math.floor(from / bin_ns)), Math.min(in_use.length, Math.ceil(to / bin_ns))];
  }

  private say(): void {
    const [first, last] = this.steps();
    const { bin_ns, in_use, resident } = this.history;
    let peak = first;
    for (let i = first; i < last; i++) if (in_use[i] > in_use[peak]) peak = i;
    const [from, to] = current();
    const where = isWhole() ? "" : `From ${time(from, to)} to ${time(to)}: `;
    const most = resident === undefined ? "" : ` The most resident memory is ${bytes(Math.max(0, ...resident.slice(first, last)))}.`;
    const text = `${where}peak of ${bytes(in_use[peak] ?? 0)} at ${time(peak * bin_ns, to)}. A step is ${time(bin_ns)}: layers are bytes at its end, the line is its maximum.${most}`;
    this.note.textContent = text;
    this.canvas.setAttribute("aria-label", `Allocated memory over time. ${text}`);
  }

  private tell(event: PointerEvent): void {
    this.draw();
    const at = timeAt(this.canvas, event);
    const step = Math.min(this.history.in_use.length - 1, Math.floor(at / this.history.bin_ns));
    const parts = this.layers.filter((layer) => layer.bytes[step] > 0).map((layer) => `${middle(name(layer.label), 40)} ${bytes(layer.bytes[step])}`);
    const all = bytes(this.history.in_use[step] ?? 0);
    if (this.history.resident !== undefined) parts.push(`resident ${bytes(this.history.resident[step] ?? 0)}`);
    this.note.textContent = `At ${time(at, current()[1])}: at most ${all}${parts.length > 0 ? `; ${parts.join(", ")}` : ""}`;
  }

  draw(): void {
    const width = Math.max(200, Math.floor(this.element.clientWidth));
    const context = sized(this.canvas, width, HEIGHT);
    if (context === null) return;
    const { bin_ns, in_use, duration_ns, resident } = this.history;
    const [from, to] = current();
    const [first, last] = this.steps();
    const x = (step: number): number => ((Math.min(step * bin_ns, duration_ns) - from) / (to - from)) * width;
    const below = HEIGHT - FOOT;
    let most = 1;
    for (let i = first; i < last; i++) {
      const stacked = this.layers.reduce((sum, layer) => sum + layer.bytes[i], 0);
      most = Math.max(most, in_use[i], stacked, resident?.[i] ?? 0);
    }
    const y = (n: number): number => below - (n / (most * 1.08)) * (below - 4);
    const sums = new Array<number>(in_use.length).fill(0);
    for (const layer of this.layers) {
      context.fillStyle = colour(layer.colour);
      for (let i = first; i < last; i++) {
        const [left, right] = [x(i), x(i + 1)];
        const [bottom, top] = [y(sums[i]), y(sums[i] + layer.bytes[i])];
        // Half a pixel more, so that no seam is seen between two steps.
        if (bottom > top) context.fillRect(left, top, right - left + 0.5, bottom - top);
        sums[i] += layer.bytes[i];
      }
    }
    const line = (values: readonly number[], name: string, width: number): void => {
      context.strokeStyle = colour(name);
      context.lineWidth = width;
      context.beginPath();
      for (let i = first; i < last; i++) {
        context.lineTo(x(i), y(values[i]));
        context.lineTo(x(i + 1), y(values[i]));
      }
      context.stroke();
    };
    line(in_use, "text", 1);
    if (resident !== undefined) {
      // Dashes on a light line, because it crosses layers of any colour.
      line(resident, "card", 5);
      context.setLineDash([6, 4]);
      line(resident, "text", 2);
      context.setLineDash([]);
    }
    context.lineWidth = 1;
    this.axes(context, width, most, y);
    this.drag.draw(context, width, HEIGHT, colour("accent"));
    this.say();
  }

  private axes(context: CanvasRenderingContext2D, width: number, most: number, y: (n: number) => number): void {
    const [from, to] = current();
    context.font = "12px system-ui, sans-serif";
    context.strokeStyle = colour("grid");
    for (const part of [0.5, 1]) {
      context.beginPath();
      context.moveTo(0, y(most * part));
      context.lineTo(width, y(most * part));
      context.stroke();
      const label = bytes(most * part);
      // Legible above any layer.
      context.fillStyle = colour("card");
      context.globalAlpha = 0.75;
      context.fillRect(2, y(most * part) + 2, context.measureText(label).width + 6, 16);
      context.globalAlpha = 1;
      context.fillStyle = colour("text");
      context.fillText(label, 5, y(most * part) + 14);
    }
    context.fillStyle = colour("muted");
    for (const [part, align] of [[0, "left"], [0.5, "center"], [1, "right"]] as const) {
      context.textAlign = align;
      context.fillText(time(from + part * (to - from), to), part * width, HEIGHT - 4);
    }
    context.textAlign = "left";
  }

  private save(): void {
    const { bin_ns, in_use, resident } = this.history;
    const [first, last] = this.steps();
    const rows: (string | number | null)[][] = [["start_ns", "bin_ns", "maximum", "resident", ...this.layers.map((layer) => layer.label)]];
    for (let i = first; i < last; i++) rows.push([i * bin_ns, bin_ns, in_use[i], resident?.[i] ?? null, ...this.layers.map((layer) => layer.bytes[i])]);
    save("heap-over-time.csv", csv(rows));
  }
}

/** The plot; null if nothing was allocated. */
export function memoryPlot(history: HeapOverTime, provenance: string): HTMLElement | null {
  if (!history.in_use.some((n) => n > 0)) return null;
  return new MemoryPlot(history, provenance).element;
}
