// Call stacks as a flame graph: width is the share of an event's samples, callers above
// what they call.

import type { CallNode, CallTree, Data, Summary } from "../data";
import { csv, h, save, sized } from "../dom";
import { base, count, middle, name, percent, readable, time } from "../format";
import { cause, knowsStalls, missEvent, STALLS } from "../level_colours";
import { current, follow, isWhole } from "../range";
import { offer } from "../search";
import { keep, kept } from "../state";
import { colour, onTheme } from "../theme";
import { section, Section } from "./section";

const ROW = 18;
/** Narrower boxes have no text, and those below a pixel are not drawn. */
const TEXT_FROM = 24;
/** Mean width of a letter. */
const LETTER = 6.6;

/** Modules with a colour of their own. */
const MODULES = 6;

/** What colours tell: a name of the style sheet for each node, and what they mean. */
export interface Colouring {
  of: (node: number) => string;
  legend: { colour: string; words: string }[];
}

interface Box {
  node: number;
  x: number;
  width: number;
  row: number;
}

export class Flames {
  readonly element: HTMLElement;
  private readonly canvas = h("canvas", { tabindex: "0", role: "img" });
  private readonly called: number[][];
  private readonly tops: number[] = [];
  private boxes: Box[] = [];
  /** What fills the width; null is all. */
  private root: number | null = null;
  private at: number | null = null;
  private wanted = "";

  constructor(
    private readonly tree: CallTree,
    private readonly told: HTMLElement,
    private colouring: Colouring,
    /** What is said of a node; its share by default. */
    private readonly words: (node: number) => string = (node) => inWords(tree, node),
    /** The node that fills the width has changed. */
    private readonly zoomed: (node: number | null) => void = () => undefined,
  ) {
    this.called = tree.nodes.map(() => []);
    tree.nodes.forEach((node, i) => (node.caller === null ? this.tops : this.called[node.caller]).push(i));
    this.canvas.setAttribute(
      "aria-label",
      `Flame graph of ${name(tree.event)}, ${count(tree.samples)} samples. Arrow keys move between callers and what they call, Enter zooms in, Escape out.`,
    );
    this.element = h("div", { class: "flames" }, this.canvas);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("click", (event) => {
      this.point(event);
      this.zoom(this.at);
    });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("focus", () => this.draw());
    this.canvas.addEventListener("blur", () => this.draw());
  }

  find(text: string): void {
    this.wanted = text.toLowerCase();
    this.draw();
    if (this.wanted === "") return this.tell();
    const found = this.tree.nodes.filter((node) => this.matches(node)).length;
    this.told.textContent = `${count(found)} places match; code in them or called by them has ${percent(this.matched() / Math.max(1, this.tree.events))}.`;
  }

  zoom(node: number | null): void {
    this.root = node === null || node === this.root ? null : node;
    this.zoomed(this.root);
    this.draw();
    this.tell();
  }

  /** Fills the width with a node, and tells it. */
  show(node: number): void {
    this.root = this.at = node;
    this.zoomed(node);
    this.draw();
    this.tell();
  }

  recolour(colouring: Colouring): void {
    this.colouring = colouring;
    this.draw();
  }

  private matches(node: CallNode): boolean {
    return this.wanted !== "" && node.function.toLowerCase().includes(this.wanted);
  }

  /** Events in the outermost nodes that match: no event counts twice. */
  private matched(): number {
    let sum = 0;
    const look = (list: number[]): void => {
      for (const i of list) {
        if (this.matches(this.tree.nodes[i])) sum += this.tree.nodes[i].events;
        else look(this.called[i]);
      }
    };
    look(this.tops);
    return sum;
  }

  private point(event: PointerEvent | MouseEvent): void {
    const area = this.canvas.getBoundingClientRect();
    const [x, row] = [event.clientX - area.left, Math.floor((event.clientY - area.top) / ROW)];
    const box = this.boxes.find((b) => b.row === row && x >= b.x && x < b.x + b.width);
    this.at = box?.node ?? null;
    this.draw();
    this.tell();
  }

  private key(event: KeyboardEvent): void {
    if (event.key === "Escape") return this.zoom(null);
    if (event.key === "Enter") return this.zoom(this.at);
    const node = this.at === null ? null : this.tree.nodes[this.at];
    const beside = node === null ? this.tops : node.caller === null ? this.tops : this.called[node.caller];
    const index = this.at === null ? -1 : beside.indexOf(this.at);
    const next: Record<string, number | null | undefined> = {
      ArrowUp: node?.caller ?? this.at,
      ArrowDown: this.at === null ? this.tops[0] : this.called[this.at][0],
      ArrowLeft: beside[index - 1],
      ArrowRight: beside[index + 1],
    };
    if (!(event.key in next)) return;
    event.preventDefault();
    this.at = next[event.key] ?? this.at;
    this.draw();
    this.tell();
  }

  private tell(): void {
    this.told.textContent = this.at === null ? "Touch a box to see its share. Click to zoom in, again to zoom out." : this.words(this.at);
  }

  /** Boxes below `root`, and its callers across the whole width above it. */
  private layOut(width: number): Box[] {
    const boxes: Box[] = [];
    const above: number[] = [];
    for (let at = this.root; at !== null; at = this.tree.nodes[at].caller) above.unshift(at);
    const whole = this.root === null ? this.tree.events : this.tree.nodes[this.root].events;
    above.forEach((node, row) => boxes.push({ node, x: 0, width, row }));
    const scale = width / Math.max(1, whole);
    const place = (list: number[], from: number, row: number): void => {
      let x = from;
      for (const node of list) {
        const wide = this.tree.nodes[node].events * scale;
        if (wide >= 1) {
          boxes.push({ node, x, width: wide, row });
          place(this.called[node], x, row + 1);
        }
        x += wide;
      }
    };
    place(this.root === null ? this.tops : this.called[this.root], 0, above.length);
    return boxes;
  }

  draw(): void {
    const width = Math.max(200, Math.floor(this.element.clientWidth));
    this.boxes = this.layOut(width);
    const height = ROW * (1 + this.boxes.reduce((most, box) => Math.max(most, box.row), 0));
    const context = sized(this.canvas, width, height);
    if (context === null) return;
    context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    context.textBaseline = "middle";
    for (const box of this.boxes) this.drawBox(context, box);
  }

  private drawBox(context: CanvasRenderingContext2D, box: Box): void {
    const node = this.tree.nodes[box.node];
    const y = box.row * ROW;
    const isFound = this.matches(node);
    context.fillStyle = colour("card");
    context.fillRect(box.x, y, Math.max(1, box.width - 1), ROW - 1);
    context.fillStyle = colour(isFound ? "accent" : this.colouring.of(box.node));
    // Half of the colour leaves the name readable on it.
    context.globalAlpha = isFound ? 1 : 0.5;
    context.fillRect(box.x, y, Math.max(1, box.width - 1), ROW - 1);
    context.globalAlpha = 1;
    if (box.width >= TEXT_FROM) {
      context.save();
      context.beginPath();
      context.rect(box.x, y, box.width - 4, ROW);
      context.clip();
      context.fillStyle = colour(isFound ? "card" : "text");
      const text = readable(name(node.function));
      const letters = Math.floor((box.width - 6) / LETTER);
      context.fillText(letters < 8 ? text : middle(text, letters), box.x + 3, y + ROW / 2);
      context.restore();
    }
    if (box.node === this.at) {
      context.strokeStyle = colour("text");
      context.lineWidth = document.activeElement === this.canvas ? 2 : 1;
      context.strokeRect(box.x + 0.5, y + 0.5, Math.max(1, box.width - 2), ROW - 2);
    }
  }
}

function inWords(tree: CallTree, at: number): string {
  const node = tree.nodes[at];
  const all = Math.max(1, tree.events);
  return (
    `${name(node.function)}${node.module === "" ? "" : ` of ${name(base(node.module))}`}: ${percent(node.events / all)} ` +
    `with what it calls, ${percent(node.own_events / all)} itself; ${count(node.samples)} samples`
  );
}

/** Each module with a colour of its own, those with most events first. */
function byModule(tree: CallTree): Colouring {
  const events = new Map<string, number>();
  for (const node of tree.nodes) events.set(node.module, (events.get(node.module) ?? 0) + node.own_events);
  events.delete("");
  const modules = [...events].sort((a, b) => b[1] - a[1]).map(([module]) => module);
  const colourOf = new Map(modules.slice(0, MODULES).map((module, i) => [module, `module-${i}`]));
  const legend = [...colourOf].map(([module, colour]) => ({ colour, words: name(base(module)) }));
  if (modules.length > MODULES) legend.push({ colour: "heat-none", words: "other modules" });
  return { of: (node) => colourOf.get(tree.nodes[node].module) ?? "heat-none", legend };
}

/**
 * What most of the cycles in a box and in what it calls were spent on. The model knows that of
 * functions, so each event counts for the cause of the innermost frame that the table of
 * functions has. Null where the source does not know cycles.
 */
function byCause(run: Summary, tree: CallTree): Colouring | null {
  if (!knowsStalls(run)) return null;
  const causes = new Map<string, string>();
  for (const row of run.hot.functions.rows) {
    const most = cause(row.counts);
    if (most !== null && !causes.has(row.function)) causes.set(row.function, most);
  }
  if (causes.size === 0) return null;
  const own: (string | null)[] = [];
  tree.nodes.forEach((node) => own.push(causes.get(node.function) ?? (node.caller === null ? null : own[node.caller])));
  const sums = tree.nodes.map((): Record<string, number> => ({}));
  for (let i = tree.nodes.length - 1; i >= 0; i--) {
    const level = own[i];
    if (level !== null) sums[i][level] = (sums[i][level] ?? 0) + tree.nodes[i].own_events;
    const caller = tree.nodes[i].caller;
    if (caller !== null) for (const [of, n] of Object.entries(sums[i])) sums[caller][of] = (sums[caller][of] ?? 0) + n;
  }
  const most = sums.map((sum) => Object.entries(sum).sort((a, b) => b[1] - a[1])[0]?.[0] ?? null);
  const seen = [{ level: "work", words: "work" }, ...STALLS].filter(({ level }) => most.includes(level));
  return {
    of: (node) => (most[node] === null ? "heat-none" : `level-${most[node]}`),
    legend: seen.map(({ level, words }) => ({ colour: `level-${level}`, words })),
  };
}

export function legend(colouring: Colouring): HTMLElement {
  const items = colouring.legend.map(({ colour, words }) => {
    const swatch = h("span", { class: "swatch" });
    swatch.style.background = `var(--${colour})`;
    return h("li", {}, swatch, h("bdi", {}, words));
  });
  return h("ul", { class: "time-legend" }, ...items);
}

/** The tree of the selected stretch: bins that it cuts count whole. */
function inRange(tree: CallTree): CallTree {
  const timed = tree.timed;
  if (timed === undefined || isWhole()) return tree;
  const [from, to] = bins(tree);
  const nodes = tree.nodes.map((node) => ({ ...node, samples: 0, events: 0, own_events: 0 }));
  let [samples, events] = [0, 0];
  // Callees come after their callers.
  for (let i = nodes.length - 1; i >= 0; i--) {
    const node = nodes[i];
    for (const [bin, s, e] of timed.own[i] ?? []) {
      if (bin < from || bin >= to) continue;
      node.samples += s;
      node.events += e;
      node.own_events += e;
    }
    if (node.caller === null) {
      samples += node.samples;
      events += node.events;
    } else {
      nodes[node.caller].samples += node.samples;
      nodes[node.caller].events += node.events;
    }
  }
  return { ...tree, nodes, samples, events };
}

/** The bins that the range touches. */
function bins(tree: CallTree): [number, number] {
  const bin = tree.timed?.bin_ns ?? 1;
  const [from, to] = current();
  return [Math.floor(from / bin), Math.ceil(to / bin)];
}

function stretch(tree: CallTree): string {
  if (tree.timed === undefined || isWhole()) return "the whole run";
  const end = current()[1];
  const [from, to] = bins(tree).map((bin) => time(bin * (tree.timed?.bin_ns ?? 1), end));
  return `from ${from} to ${to}`;
}

function graph(run: Summary, all: CallTree): HTMLElement {
  const tree = inRange(all);
  const told = h("p", { class: "told", role: "status", "aria-live": "polite" }, "Touch a box to see its share. Click to zoom in, again to zoom out.");
  const causes = byCause(run, tree);
  const modules = byModule(tree);
  const isByModule = (): boolean => causes === null || kept("flame-colour") === "module";
  const colouring = (): Colouring => (isByModule() || causes === null ? modules : causes);
  const flames = new Flames(tree, told, colouring(), undefined, (node) => keep("flame", node === null ? null : String(node)));
  const meaning = h("div", {}, legend(colouring()));
  const colours = h("select", { "aria-label": "What colours mean" }, h("option", { value: "cause" }, "Colour: cause"), h("option", { value: "module" }, "Colour: module"));
  colours.value = isByModule() ? "module" : "cause";
  colours.addEventListener("change", () => {
    keep("flame-colour", colours.value);
    flames.recolour(colouring());
    meaning.replaceChildren(legend(colouring()));
  });
  offer("Flame graph", (text) =>
    tree.nodes
      .map((node, i) => ({ node, i }))
      .filter(({ node }) => node.function.toLowerCase().includes(text))
      .sort((a, b) => b.node.events - a.node.events)
      .map(({ node, i }) => ({
        text: `${node.function}  ${percent(node.events / Math.max(1, tree.events))}`,
        go: () => {
          flames.element.scrollIntoView({ block: "center" });
          flames.show(i);
        },
      })),
  );
  const root = Number(kept("flame") ?? "-1");
  if (root >= 0 && root < tree.nodes.length) requestAnimationFrame(() => flames.show(root));
  const find = h("input", { type: "search", class: "search", placeholder: "Find a function", "aria-label": "Find a function in the flame graph" });
  find.addEventListener("input", () => flames.find(find.value.trim()));
  const whole = h("button", { class: "small", click: () => flames.zoom(null) }, "Whole");
  const get = h("button", { class: "small", click: () => saveTree(tree) }, "Get the data");
  get.setAttribute("aria-label", "Get the data of the flame graph as CSV");
  requestAnimationFrame(() => flames.draw());
  onTheme(() => flames.draw());
  window.addEventListener("resize", () => flames.draw());
  return h(
    "figure",
    { class: "plot" },
    h(
      "figcaption",
      {},
      h("span", { class: "plot-title" }, `Calls that led to ${name(tree.event)}`),
      h("span", { class: "unit" }, `${count(tree.samples)} samples, ${stretch(all)}`),
      causes !== null && colours,
      find,
      whole,
      get,
    ),
    meaning,
    flames.element,
    told,
  );
}

function saveTree(tree: CallTree): void {
  const rows: (string | number | null)[][] = [["node", "caller", "function", "module", "samples", "events", "own_events"]];
  tree.nodes.forEach((node, i) => {
    rows.push([i, node.caller, node.function, node.module, node.samples, node.events, node.own_events]);
  });
  save("calls.csv", csv(rows));
}

export function calls(data: Data): Section | null {
  const run = data.summary;
  const trees = run?.calls ?? [];
  if (run === null || trees.length === 0) return null;
  const event = kept("flame-event") ?? missEvent(run, trees.map((tree) => tree.event));
  const before = Math.max(0, trees.findIndex((tree) => tree.event === event));
  const place = h("div", {}, graph(run, trees[before]));
  const choice = h("select", { "aria-label": "Event of the flame graph" }, ...trees.map((tree, i) => h("option", { value: String(i) }, name(tree.event))));
  choice.value = String(before);
  const draw = (): void => place.replaceChildren(graph(run, trees[Number(choice.value)]));
  choice.addEventListener("change", () => {
    keep("flame", null);
    keep("flame-event", trees[Number(choice.value)].event);
    draw();
  });
  follow(draw);
  return section(
    "calls",
    "Flame graph",
    "Calls",
    {
      provenance: "sampled",
      definition:
        "Which calls led to the samples. A box is a function, as wide as its share of the events that the samples stand " +
        "for, with what it calls below it; functions that the compiler inlined have boxes of their own. Boxes narrower " +
        "than a pixel are not drawn; zoom in to see them. Colours tell what the cycles of a box were spent on, or its module. The graph is of the selected stretch of time, else of the whole run.",
    },
    trees.length > 1 ? choice : null,
    place,
  );
}
