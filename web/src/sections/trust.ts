// Losses, provenance and own cost: always there.

import type { Data } from "../data";
import { h, withCode } from "../dom";
import { bytes, count, name, rate, time } from "../format";
import { facts, section, Section } from "./section";
import { table } from "../table";

export function trust(data: Data): Section | null {
  const run = data.summary;
  if (run === null) return data.curves.length > 0 ? ofCurves(data) : null;
  const problems = [...run.problems, ...(run.import?.problems ?? [])];
  const losses = run.losses.map((l) => `${count(l.count)} ${l.meaning}${l.detail === "" ? "" : `: ${l.detail}`}`);
  if (!run.recording.complete) {
    losses.unshift("The recorder did not end in order: what it lost at its end is not known.");
  }
  const list = (items: string[], none: string): HTMLElement =>
    items.length === 0 ? h("p", {}, none) : h("ul", {}, ...items.map((text) => h("li", {}, name(text))));
  return section(
    "trust",
    "What to trust",
    "Trust",
    {
      provenance: "measured",
      definition:
        "What is not in the recording, what could not be read of it, how each event came to be, and what recording cost. " +
        "Nothing is scaled up for a loss.",
    },
    h("h3", {}, "Losses"),
    list(losses, "None."),
    problems.length > 0 ? h("h3", {}, "What could not be read") : null,
    problems.length > 0 ? list(problems, "") : null,
    data.sampling_notes.length > 0 ? h("h3", {}, "Sampling") : null,
    data.sampling_notes.length > 0 ? list(data.sampling_notes, "") : null,
    h("h3", {}, "Cost of recording"),
    cost(data),
    ...provenance(data),
    ...resolution(data),
  );
}

/** Curves are of references, not of a recording. */
function ofCurves(data: Data): Section {
  const all = data.curves.every((curve) => curve.provenance === "exact");
  const text = all
    ? "The curves are of every reference that was given. Fully associative memories have no conflicts; real caches have some."
    : "The curves are of a sample of the blocks: the band says how far they may be off. Fully associative memories have no conflicts; real caches have some.";
  const about = { provenance: all ? "exact" : "sampled", definition: "What the curves are of, and what they leave out." };
  return section("trust", "What to trust", "Trust", about, h("p", {}, text));
}

function cost(data: Data): HTMLElement {
  const own = data.summary?.own_cost;
  if (own === undefined || own.wall_s + own.cpu_s + own.recording_bytes === 0) return h("p", {}, "Not recorded.");
  const seconds = (s: number): string | null => (s > 0 ? `${rate(s)} s` : null);
  return facts([
    ["wall time", seconds(own.wall_s)],
    ["program CPU", seconds(own.program_cpu_s)],
    ["recorder CPU", seconds(own.cpu_s)],
    ["recorder memory", own.peak_memory_bytes > 0 ? bytes(own.peak_memory_bytes) : null],
    ["recording", own.recording_bytes > 0 ? bytes(own.recording_bytes) : null],
  ]);
}

function provenance(data: Data): HTMLElement[] {
  const run = data.summary;
  if (run === null || run.events.length === 0) return [];
  return [
    table({
      caption: "Events of the recording: how they came to be, and what they are",
      fileName: "events",
      isSearched: true,
      shown: 8,
      rows: run.events,
      columns: [
        { title: "Event", cell: (e) => name(e.name), value: (e) => e.name },
        { title: "Provenance", cell: (e) => name(e.provenance), value: (e) => e.provenance },
        { title: "Unit", cell: (e) => name(e.unit), value: (e) => e.unit },
        { title: "Definition", cell: (e) => h("span", { class: "definition" }, name(e.description)), value: (e) => e.description },
      ],
    }),
  ];
}

/** What the page leaves out of what the recording has. */
function resolution(data: Data): HTMLElement[] {
  const timeline = data.summary?.timeline;
  if (timeline === undefined) return [];
  const samples = timeline.samples[0];
  const parts = [
    timeline.curves.length > 0 ? `curves have bins of ${time(timeline.bin_ns)}` : "",
    samples === undefined ? "" : `samples are in bins of ${time(samples.bin_ns)}, in tables of 40 rows`,
  ].filter((part) => part !== "");
  if (parts.length === 0) return [];
  const text = `So that this file stays small, ${parts.join("; ")}. The recording has every row; \`memgauge view\` shows a selected stretch of it in finer bins.`;
  return [h("h3", {}, "Resolution of this page"), h("p", {}, ...withCode(text))];
}
