// The head of the page and the overview: what was recorded, and what to do next.

import type { Data, Statement, Summary, WhatIf } from "../data";
import { caches } from "../data";
import { add, h, withCode } from "../dom";
import { bytes, capacity, count, middle, name, percent, rate, time } from "../format";
import { table } from "../table";
import { address } from "./fleet";
import { facts, Section } from "./section";

export function header(data: Data): HTMLElement {
  const run = data.summary;
  const place = data.served?.in_dataset;
  return h(
    "header",
    {},
    place && h("p", { class: "back" }, h("a", { href: address(data, { service: place.service }) }, "← ", h("bdi", {}, name(place.service)), " in ", h("bdi", {}, name(place.dataset)))),
    h("h1", {}, h("span", { class: "brand" }, "memgauge "), h("bdi", { title: name(data.title) }, middle(name(data.title), 120))),
    h("p", { class: "facts-line" }, ...(run === null ? [] : subtitle(run)), ...warning(data)),
  );
}

/** What was recorded, in one line. */
function subtitle(run: Summary): HTMLElement[] {
  const { recording } = run;
  const started = new Date(recording.started_unix_s * 1000);
  const when = recording.started_unix_s > 0 ? `${started.toISOString().slice(0, 16).replace("T", " ")} UTC` : null;
  const machine = recording.machine;
  const seed = recording.source.settings["seed"];
  const only = recording.source.settings["regions"];
  const parts: (string | null | undefined)[] = [
    machine === null ? name(recording.host.cpu ?? "") : `modelled: ${name(machine.name)}, ${rate(machine.frequency_hz / 1e9)} GHz`,
    `${time(run.run.duration_ns)} ${recording.clock === "virtual" ? "virtual time" : ""}`,
    run.run.instructions === null ? null : `${count(run.run.instructions)} instructions`,
    only === undefined ? null : `recorded inside ${name(only)} only`,
    ended(recording.end),
    seed === undefined ? null : `seed ${name(seed)}`,
    `source ${name(recording.source.name)}`,
    when,
  ];
  return parts.filter((part): part is string => part !== null && part !== undefined && part.trim() !== "").map((part) => h("span", {}, part));
}

function ended(end: unknown): string | null {
  if (end === null || end === undefined) return null;
  if (typeof end === "string") return end;
  const [[kind, value]] = Object.entries(end as Record<string, unknown>);
  if (kind === "exited") return value === 0 ? "exit status 0" : `exit status ${String(value)}`;
  return `${kind} ${String(value)}`;
}

/** What makes every number doubtful is said before any of them. */
function warning(data: Data): HTMLElement[] {
  const run = data.summary;
  // Curves alone come of no recording that could have lost something.
  if (run === null) return [];
  const said: string[] = [];
  if (!run.recording.complete) {
    said.push("The recorder did not end in order: what it lost at its end is not known.");
  }
  const problems = run.problems.length;
  if (problems > 0) said.push(problems === 1 ? "1 thing could not be read." : `${problems} things could not be read.`);
  const losses = run.losses.length;
  if (losses > 0) said.push(`${losses} kind${losses === 1 ? "" : "s"} of losses.`);
  const link = h("a", { href: "#trust" }, "What to trust");
  if (said.length === 0) return [h("span", { class: "state good" }, "Losses: none. ", link)];
  return [h("span", { class: "state warn" }, `${said.join(" ")} `, link)];
}

const FINDINGS = 3;

/** The findings, at most three, then what else is known in sentences and figures. */
export function advice(data: Data, isFirst: boolean): Section | null {
  const causes = data.overview.filter((said) => said.kind === "cause").slice(0, FINDINGS);
  const cautions = data.overview.filter((said) => said.kind === "caution");
  const facts = data.overview.filter((said) => said.kind !== "cause" && said.kind !== "caution");
  const figures = data.summary === null ? null : keyFigures(data.summary);
  if (data.overview.length === 0 && figures === null) return null;
  const list = h("ol", { class: "statements" }, ...[...causes, ...cautions].map(statement));
  const rest = h("ul", { class: "facts-list" }, ...facts.map(statement));
  const [id, title] = isFirst ? ["overview", "Overview"] : ["advice", "What to do"];
  const element = h(
    "section",
    { id, "aria-labelledby": `${id}-title` },
    h("h2", { id: `${id}-title` }, title),
    !isFirst &&
      h("details", { class: "about" }, h("summary", {}, "What this is"), h("p", {}, "What limits the run, by which rule, and the next step: the strongest three findings. Then figures of the whole run.")),
    causes.length + cautions.length > 0 && list,
    facts.length > 0 && rest,
    ...whatIf(data.summary?.what_if ?? [], data.what_if_cautions),
    figures,
  );
  return { id, short: isFirst ? "Overview" : "Advice", element };
}

/** The same run with changes of the program and on other machines, and what the results leave out. */
function whatIf(changes: WhatIf[], cautions: string[]): HTMLElement[] {
  const notes = cautions.map((caution) => h("p", { class: "state warn" }, name(caution)));
  return [
    ...changeTable("What if the program changes", "what_if", changes.filter((row) => row.changes === "program")),
    ...changeTable("What if the machine is another", "what_if_machine", changes.filter((row) => row.changes === "machine")),
    ...notes,
  ];
}

function changeTable(title: string, fileName: string, changes: WhatIf[]): HTMLElement[] {
  if (changes.length === 0) return [];
  const rows = table<WhatIf>({
    caption: `${title}: the same instructions and accesses, modelled`,
    fileName,
    rows: [...changes].sort((a, b) => a.relative - b.relative),
    columns: [
      { title: "Change", cell: (r) => r.change, value: (r) => r.change },
      { title: "Time", numeric: true, about: "Time in which its threads executed, summed", cell: (r) => time(r.busy_ns), value: (r) => r.busy_ns },
      { title: "Difference", numeric: true, cell: (r) => difference(r.relative), value: (r) => r.relative },
      { title: "LLC misses", numeric: true, event: "llc.miss", cell: (r) => count(r.totals["llc.miss"] ?? 0), value: (r) => r.totals["llc.miss"] ?? 0 },
      { title: "TLB walks", numeric: true, event: "dtlb.walk", cell: (r) => count(r.totals["dtlb.walk"] ?? 0), value: (r) => r.totals["dtlb.walk"] ?? 0 },
    ],
  });
  return [rows];
}

function difference(relative: number): string {
  const size = Math.abs(relative);
  return size < 0.0005 ? "0 %" : `${relative < 0 ? "−" : "+"}${percent(size)}`;
}

function statement(said: Statement): HTMLElement {
  const kind = said.kind === "cause" || said.kind === "caution" ? said.kind : "fact";
  const item = h("li", { class: kind }, h("p", { class: "said" }, name(said.text)));
  if (said.next !== "") add(item, h("p", { class: "next" }, h("b", {}, "Next: "), ...withCode(said.next)));
  if (said.rule !== "") add(item, h("p", { class: "rule" }, `Shown because: ${said.rule}.`));
  return item;
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
