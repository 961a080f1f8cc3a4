// The head of the page and the overview: what was recorded, and what to do next.

import type { Data, Summary } from "../data";
import { caches } from "../data";
import { add, h, withCode } from "../dom";
import { bytes, capacity, count, name, percent, rate, time } from "../format";
import { facts, Section } from "./section";

export function header(data: Data): HTMLElement {
  const run = data.summary;
  const element = h(
    "header",
    {},
    h("p", { class: "brand" }, "memgauge"),
    h("h1", {}, h("bdi", {}, name(data.title))),
  );
  if (run !== null) add(element, subtitle(run));
  add(element, warning(data));
  return element;
}

function subtitle(run: Summary): HTMLElement {
  const { recording } = run;
  const started = new Date(recording.started_unix_s * 1000);
  const when = recording.started_unix_s > 0 ? `${started.toISOString().slice(0, 16).replace("T", " ")} UTC` : null;
  const machine = recording.machine;
  const pairs: [string, string | null | undefined][] = [
    ["source", name(recording.source.name)],
    ["started", when],
    ["ended", ended(recording.end)],
    ["seed of random numbers", recording.source.settings["seed"]],
    ["recorded inside regions alone", name(recording.source.settings["regions"] ?? "")],
    [recording.clock === "virtual" ? "virtual time" : "time", time(run.run.duration_ns)],
    ["instructions", run.run.instructions === null ? null : count(run.run.instructions)],
    ["modelled machine", machine === null ? null : `${name(machine.name)}, ${rate(machine.frequency_hz / 1e9)} GHz`],
    ["host", name(recording.host.cpu ?? "")],
  ];
  return facts(pairs);
}

function ended(end: unknown): string | null {
  if (end === null || end === undefined) return null;
  if (typeof end === "string") return end;
  const [[kind, value]] = Object.entries(end as Record<string, unknown>);
  if (kind === "exited") return value === 0 ? "exit status 0" : `exit status ${String(value)}`;
  return `${kind} ${String(value)}`;
}

/** What makes every number doubtful is said before any of them. */
function warning(data: Data): HTMLElement | null {
  const run = data.summary;
  // Curves alone come of no recording that could have lost something.
  if (run === null && data.io === null) return null;
  const said: string[] = [];
  if (run !== null && !run.recording.complete) {
    said.push("The recorder did not end in order: what it lost at its end is not known.");
  }
  const problems = (run?.problems ?? data.problems).length;
  if (problems > 0) said.push(problems === 1 ? "1 thing could not be read." : `${problems} things could not be read.`);
  const losses = (run?.losses.length ?? 0) + (data.io?.losses.length ?? 0);
  if (losses > 0) said.push(`${losses} kind${losses === 1 ? "" : "s"} of losses.`);
  if (said.length === 0) return h("p", { class: "state good" }, "Losses: none. ", h("a", { href: "#trust" }, "What to trust"));
  return h("p", { class: "state warn" }, `${said.join(" ")} `, h("a", { href: "#trust" }, "What to trust"));
}

export function overview(data: Data): Section {
  const list = h("ol", { class: "statements" });
  for (const said of data.overview) {
    const kind = said.kind === "cause" || said.kind === "caution" ? said.kind : "fact";
    const item = h("li", { class: kind }, h("p", { class: "said" }, name(said.text)));
    if (said.next !== "") add(item, h("p", { class: "next" }, h("b", {}, "Next: "), ...withCode(said.next)));
    if (said.rule !== "") add(item, h("p", { class: "rule" }, `Shown because: ${said.rule}.`));
    list.appendChild(item);
  }
  const element = h("section", { id: "overview", "aria-labelledby": "overview-title" }, h("h2", { id: "overview-title" }, "Overview"));
  const run = data.summary;
  if (run !== null) add(element, timeUse(run));
  add(element, list);
  if (run !== null) add(element, keyFigures(run));
  return { id: "overview", short: "Overview", element };
}

const TIME_USES: Record<string, string> = {
  work: "work",
  l2: "waiting for L2",
  llc: "waiting for the last-level cache",
  dram: "waiting for DRAM",
  queue: "queued at DRAM",
  tlb: "translating addresses",
  stores: "waiting for stores",
};

/** A bar of all cycles by what they were spent on. */
function timeUse(run: Summary): HTMLElement | null {
  const parts = (run.time ?? []).filter((part) => part.cycles > 0);
  if (parts.length === 0) return null;
  const words = (on: string): string => TIME_USES[on] ?? on;
  const bar = parts.map((part) => {
    const title = `${percent(part.share)} ${words(part.on)}: ${count(part.cycles)} cycles`;
    return h("span", { class: `stall level-${part.on}`, style: `width: ${(100 * part.share).toFixed(2)}%`, title });
  });
  const legend = parts.map((part) => h("li", {}, h("span", { class: `level-${part.on}` }), `${percent(part.share)} ${words(part.on)}`));
  return h(
    "div",
    { class: "time-use" },
    h("h3", {}, `Where ${count(run.totals["cycles"] ?? 0)} cycles went`),
    h("div", { class: "time-bar", role: "img", "aria-label": parts.map((part) => `${percent(part.share)} ${words(part.on)}`).join(", ") }, ...bar),
    h("ul", { class: "time-legend" }, ...legend),
  );
}

function keyFigures(run: Summary): HTMLElement | null {
  const { dram, recording } = run;
  const machine = recording.machine;
  const perSecond = (x: number | null): string | null => (x === null ? null : `${rate(x / 1e9)} GB/s`);
  const pairs: [string, string | null | undefined][] = [
    ["memory read", dram.read_bytes === null ? null : bytes(dram.read_bytes)],
    ["mean read", perSecond(dram.mean_read_bytes_per_s)],
    ["memory written", dram.write_bytes === null ? null : bytes(dram.write_bytes)],
    ["mean written", perSecond(dram.mean_write_bytes_per_s)],
    ["peak, both", perSecond(dram.peak?.per_s ?? null)],
    ["memory limit", machine === null ? null : perSecond(machine.dram_bytes_per_s)],
    ["caches", machine === null ? null : caches(machine).map((c) => capacity(c.bytes)).join(", ")],
  ];
  const derived = run.counting?.derived ?? [];
  for (const d of derived) {
    pairs.push([d.name, d.unit.startsWith("of ") ? percent(d.value) : `${rate(d.value)} ${d.unit}`]);
  }
  return pairs.some(([, value]) => value !== null && value !== undefined) ? facts(pairs) : null;
}
