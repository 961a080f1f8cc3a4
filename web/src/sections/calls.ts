// Call stacks as a flame graph: width is the share of an event's samples, callers above
// what they call.

import type { CallNode, CallTree, Data } from "../data";
import { csv, h, save, sized } from "../dom";
import { base, count, name, percent, time } from "../format";
import { current, follow, isWhole } from "../range";
import { colour, onTheme } from "../theme";
import { section, Section } from "./section";

const ROW = 18;
/** Narrower boxes have no text, and those below a pixel are not drawn. */
const TEXT_FROM = 24;

interface Box {
  node: number;
  x: number;
  width: number;
  row: number;
}

class Flames {
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
    this.draw();
    this.tell();
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
    const node = this.at === null ? null : this.tree.nodes[this.at];
    if (node === null) {
      this.told.textContent = "Touch a box to see its share. Click to zoom in, again to zoom out.";
      return;
    }
    const all = Math.max(1, this.tree.events);
    this.told.textContent =
      `${name(node.function)}${node.module === "" ? "" : ` of ${name(base(node.module))}`}: ${percent(node.events / all)} ` +
      `with what it calls, ${percent(node.own_events / all)} itself; ${count(node.samples)} samples`;
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
    const colours = palette();
    for (const box of this.boxes) this.drawBox(context, box, colours);
  }

  private drawBox(context: CanvasRenderingContext2D, box: Box, colours: Record<string, string>): void {
    const node = this.tree.nodes[box.node];
    const y = box.row * ROW;
    const isFound = this.matches(node);
    context.fillStyle = colours[isFound ? "accent" : shade(node)];
    context.fillRect(box.x, y, Math.max(1, box.width - 1), ROW - 1);
    if (box.width >= TEXT_FROM) {
      context.save();
      context.beginPath();
      context.rect(box.x, y, box.width - 4, ROW);
      context.clip();
      context.fillStyle = colours[isFound ? "card" : "text"];
      context.fillText(name(node.function), box.x + 3, y + ROW / 2);
      context.restore();
    }
    if (box.node === this.at) {
      context.strokeStyle = colours.text;
      context.lineWidth = document.activeElement === this.canvas ? 2 : 1;
      context.strokeRect(box.x + 0.5, y + 0.5, Math.max(1, box.width - 2), ROW - 2);
    }
  }
}

function palette(): Record<string, string> {
  const names = ["heat-none", "heat-0", "heat-1", "heat-2", "accent", "card", "text"];
  return Object.fromEntries(names.map((name) => [name, colour(name)]));
}

/** Neighbouring modules mostly differ in shade. */
function shade(node: CallNode): string {
  if (node.module === "") return "heat-none";
  let sum = 0;
  for (const c of base(node.module)) sum = (sum * 31 + (c.codePointAt(0) ?? 0)) % 997;
  return `heat-${sum % 3}`;
}

/** The tree of the selected stretch: bins that it cuts count whole. */
function inRange(tree: CallTree): CallTree {
  const timed = tree.timed;
  if (timed === undefined || isWhole()) return tree;
  const [from, to] = bins(tree);
  const nodes = tree.nodes.map((node) => ({ ...node, samples: 0, events: 0, own_events: 0 }));
  let [samples, events] = [0, 0];
  // What is called comes behind its caller.
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

function graph(all: CallTree): HTMLElement {
  const tree = inRange(all);
  const told = h("p", { class: "told", role: "status", "aria-live": "polite" }, "Touch a box to see its share. Click to zoom in, again to zoom out.");
  const flames = new Flames(tree, told);
  const find = h("input", { type: "search", placeholder: "Find a function", "aria-label": "Find a function in the flame graph" });
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
      find,
      whole,
      get,
    ),
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
  const trees = data.summary?.calls ?? [];
  if (trees.length === 0) return null;
  const place = h("div", {}, graph(trees[0]));
  const choice = h("select", { "aria-label": "Event of the flame graph" }, ...trees.map((tree, i) => h("option", { value: String(i) }, name(tree.event))));
  const draw = (): void => place.replaceChildren(graph(trees[Number(choice.value)]));
  choice.addEventListener("change", draw);
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
        "than a pixel are not drawn; zoom in to see them. Shade tells modules apart. The graph is of the selected stretch of time, else of the whole run.",
    },
    trees.length > 1 ? choice : null,
    place,
  );
}
