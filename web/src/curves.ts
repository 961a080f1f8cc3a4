// Curves over time, drawn by uPlot. All share the selected range; dragging over one, or
// the keys of one, zooms all.

import uPlot from "../vendor/uplot/uPlot.js";
import { h, save, csv } from "./dom";
import { SHORTEST_DRAG } from "./drag";
import { time, timeUnit } from "./format";
import { columns, gained } from "./levels";
import { onPart, selectedPart } from "./part";
import { all, current, follow, isWhole, select } from "./range";
import { colour, onTheme } from "./theme";

export interface Line {
  label: string;
  /** The event, where a part of the recording has it in finer bins. */
  event?: string;
  /** Name of a colour of the style sheet. */
  colour: string;
  values: readonly number[];
}

export interface Plot {
  title: string;
  /** What a value on the axis is. */
  unit: string;
  /** A rate per second in the axis' unit. */
  show: (perSecond: number) => string;
  lines: Line[];
  binNs: number;
  durationNs: number;
  /** A rate that the machine cannot exceed, with its name. */
  limit?: { label: string; value: number };
  height?: number;
  /** How what it gained in the range reads. */
  total?: (gained: number) => string;
  fileName: string;
  /** What it is, where no section around it says so. */
  about?: string;
  /** What belongs right below its axis. */
  below?: HTMLElement | null;
}

const plots: Drawn[] = [];

class Drawn {
  readonly element: HTMLElement;
  private chart: uPlot | null = null;
  private readonly place = h("div", { class: "chart" });
  private readonly note = h("p", { class: "chart-note" });
  private said = "";

  constructor(private readonly plot: Plot) {
    this.place.tabIndex = 0;
    this.place.setAttribute("role", "application");
    this.place.setAttribute("aria-roledescription", "plot over time");
    this.place.addEventListener("keydown", (event) => keys(event));
    const data = h("button", { class: "small", click: () => this.save() }, "Get the data");
    data.setAttribute("aria-label", `Get the data of ${plot.title} as CSV`);
    this.element = h(
      "figure",
      { class: "plot" },
      h("figcaption", {}, h("span", { class: "plot-title", title: plot.about ?? "" }, plot.title), h("span", { class: "unit" }, plot.unit), ...key(plot), data),
      this.place,
      plot.below ?? "",
      this.note,
    );
  }

  private width(): number {
    return Math.max(240, Math.floor(this.place.clientWidth));
  }

  /** The bins of a line: of the selected part, where that is here, else of the page. */
  private bins(line: Line): { values: readonly number[]; binNs: number; durationNs: number; start: number } {
    const { binNs, durationNs } = this.plot;
    const part = selectedPart();
    const found = part?.curves.find((c) => c.event === line.event);
    if (part !== null && found !== undefined && part.bin_ns < binNs) {
      return { values: found.values, binNs: part.bin_ns, durationNs: part.duration_ns, start: part.start_ns };
    }
    return { values: line.values, binNs, durationNs, start: 0 };
  }

  private data(): uPlot.AlignedData {
    const { lines } = this.plot;
    const [from, to] = current();
    const most = Math.min(1200, this.width());
    let x: number[] = [];
    const series: (number | null)[][] = [];
    let joined = 1;
    for (const line of lines) {
      const { values, binNs, durationNs, start } = this.bins(line);
      const made = columns(values, binNs, durationNs, from - start, to - start, most);
      this.binNs = binNs;
      x = made.x.map((at) => at + start);
      joined = made.binsPerColumn;
      series.push(made.mean, made.highest);
    }
    if (this.plot.limit) series.push(x.map(() => this.plot.limit?.value ?? null));
    this.say(joined);
    return [x, ...series] as uPlot.AlignedData;
  }

  private joined = 1;
  private binNs = 1;

  private say(joined: number): void {
    this.joined = joined;
    const { binNs, durationNs, lines, total } = this.plot;
    const [from, to] = current();
    const column = time(this.binNs * joined);
    const detail =
      joined > 1
        ? `A step is the mean of ${column}; the thin line is its highest ${time(this.binNs)}.`
        : `A step is ${column}, the finest that this page has.`;
    const sums = total
      ? lines.map((l) => `${l.label} ${total(gained(l.values, binNs, durationNs, from, to))}`)
      : [];
    const where = isWhole() ? "In all: " : `From ${time(from, to)} to ${time(to)}: `;
    this.said = sums.length > 0 ? `${where}${sums.join(", ")}. ${detail}` : detail;
    this.note.textContent = this.said;
    this.place.setAttribute("aria-label", `${this.plot.title}. ${this.said}`);
  }

  /** What the curves are at the pointer. */
  private tell(chart: uPlot): void {
    const i = chart.cursor.idx;
    if (i === null || i === undefined || (chart.cursor.left ?? -1) < 0) {
      this.note.textContent = this.said;
      return;
    }
    const at = (series: number): string => {
      const value = chart.data[series][i];
      return value === null || value === undefined ? "–" : this.plot.show(value);
    };
    const several = this.joined > 1;
    const values = this.plot.lines.map((line, n) => `${line.label} ${at(2 * n + 1)}${several ? ` (highest ${at(2 * n + 2)})` : ""}`);
    this.note.textContent = `At ${time(chart.data[0][i], current()[1])}: ${values.join(", ")} ${this.plot.unit}`;
  }

  draw(): void {
    this.chart?.destroy();
    if (this.place.clientWidth === 0) return;
    this.chart = new uPlot(this.options(), this.data(), this.place);
    this.show();
  }

  /** Draws the selected range. */
  show(): void {
    if (this.chart === null) return;
    const [from, to] = current();
    this.chart.batch(() => {
      this.chart?.setData(this.data(), false);
      this.chart?.setScale("x", { min: from, max: to });
    });
  }

  private options(): uPlot.Options {
    const { plot } = this;
    const grid = { stroke: colour("grid"), width: 1 };
    const axis = {
      stroke: colour("muted"),
      font: "12px system-ui, sans-serif",
      grid,
      ticks: { stroke: colour("grid"), width: 1, size: 4 },
    };
    const paths = uPlot.paths.stepped?.({ align: 1 });
    const series: uPlot.Series[] = [
      {},
    ];
    for (const line of plot.lines) {
      const stroke = colour(line.colour);
      series.push(
        { label: line.label, stroke, width: 1.5, fill: `${stroke}26`, paths, points: { show: false } },
        { label: `${line.label}, highest`, stroke: `${stroke}73`, width: 1, paths, points: { show: false } },
      );
    }
    if (plot.limit) {
      series.push({
        label: plot.limit.label,
        stroke: colour("limit"),
        width: 1,
        dash: [6, 4],
        points: { show: false },
      });
    }
    const top = (_: uPlot, __: number, most: number): [number, number] => [0, most > 0 ? most * 1.08 : 1];
    return {
      width: this.width(),
      height: plot.height ?? 150,
      padding: [8, 12, 0, 0],
      scales: { x: { time: false }, y: { range: this.fit(top) } },
      cursor: {
        // The other plots follow the pointer only. With the buttons they would select too, each
        // with its own pixels on a scale that the plot before it has just changed.
        sync: { key: "time", filters: { pub: (type) => type === "mousemove", sub: (type) => type === "mousemove" } },
        // uPlot would fit the axis to the data, which can end before the recording does.
        bind: { dblclick: () => () => (select(null), null) },
        drag: { x: true, y: false, setScale: false },
        y: false,
      },
      legend: { show: false },
      axes: [
        { ...axis, size: 34, values: (_, ticks) => labels(ticks), space: 74 },
        { ...axis, size: 62, values: (_, ticks) => ticks.map((y) => plot.show(y)), space: 28 },
      ],
      series,
      hooks: {
        setCursor: [(chart) => this.tell(chart)],
        setSelect: [
          (chart) => {
            const { left, width } = chart.select;
            const range = [chart.posToVal(left, "x"), chart.posToVal(left + width, "x")] as const;
            chart.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            if (width >= SHORTEST_DRAG) select(range);
          },
        ],
      },
    };
  }

  /** The limit is only drawn where the curve comes near it: it would flatten a low one. */
  private fit(top: (u: uPlot, min: number, max: number) => [number, number]): uPlot.Scale.Range {
    const { limit } = this.plot;
    const count = this.plot.lines.length * 2;
    return (u, min, max) => {
      if (limit === undefined) return top(u, min, max);
      let most = 0;
      for (let i = 1; i <= count; i++) {
        for (const value of u.data[i]) most = Math.max(most, value ?? 0);
      }
      return top(u, min, most >= limit.value * 0.4 ? Math.max(most, limit.value) : most);
    };
  }

  private save(): void {
    const { binNs, lines, fileName } = this.plot;
    const [from, to] = current();
    const rows: (string | number | null)[][] = [["start_ns", "bin_ns", ...lines.map((l) => l.label)]];
    const last = Math.max(...lines.map((l) => l.values.length));
    for (let i = Math.floor(from / binNs); i < Math.min(last, Math.ceil(to / binNs)); i++) {
      rows.push([i * binNs, binNs, ...lines.map((l) => l.values[i] ?? 0)]);
    }
    save(`${fileName}.csv`, csv(rows));
  }
}

/** Times in one unit, with as many digits as tell them apart. */
function labels(ticks: number[]): string[] {
  // Ticks are decimal: minutes would have fractions.
  const [scale, unit] = timeUnit(Math.min(current()[1], 500e9));
  const values = ticks.map((x) => x / scale);
  let digits = 0;
  const exact = (v: number): boolean => Math.abs(Number(v.toFixed(digits)) - v) < 1e-9 * Math.max(1, Math.abs(v));
  while (digits < 9 && !values.every(exact)) digits++;
  return values.map((v) => `${v.toFixed(digits)} ${unit}`);
}

/** Names of several lines with their colours, and of the limit. */
function key(plot: Plot): HTMLElement[] {
  const lines: { label: string; colour: string }[] = plot.lines.length > 1 ? [...plot.lines] : [];
  return lines.map((line) => {
    const swatch = h("i");
    swatch.style.background = `var(--${line.colour})`;
    return h("span", { class: "key" }, swatch, line.label);
  });
}

/** Arrows move, plus and minus zoom, Escape shows all. */
export function keys(event: KeyboardEvent): void {
  const [from, to] = current();
  const span = to - from;
  const middle = (from + to) / 2;
  const move = (by: number): void => {
    const start = Math.max(all()[0], Math.min(all()[1] - span, from + by));
    select([start, start + span]);
  };
  switch (event.key) {
    case "+":
    case "=":
      select([middle - span / 4, middle + span / 4]);
      break;
    case "-":
      select([middle - span, middle + span]);
      break;
    case "ArrowLeft":
      move(-span / 4);
      break;
    case "ArrowRight":
      move(span / 4);
      break;
    case "Escape":
      select(null);
      break;
    default:
      return;
  }
  event.preventDefault();
}

/** A plot; drawn when it is on the page. */
export function curve(plot: Plot): HTMLElement {
  const drawn = new Drawn(plot);
  plots.push(drawn);
  return drawn.element;
}

/** Draws what was put on the page, and again when the range or the colours change. */
export function drawCurves(): void {
  const draw = (): void => plots.forEach((plot) => plot.draw());
  draw();
  follow(() => plots.forEach((plot) => plot.show()));
  onPart(() => plots.forEach((plot) => plot.show()));
  onTheme(draw);
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    draw();
  });
  // Plots in a closed part have no width yet.
  document.addEventListener("toggle", draw, true);
}
