// Bandwidth and counters over time.

import type { Data, Summary, Timeline } from "../data";
import { modelled as modelledAs } from "../data";
import { curve, Plot } from "../curves";
import { bytes, count, inUnit, name, rate, time } from "../format";
import { h } from "../dom";
import { colourOf } from "../level_colours";
import { section, Section } from "./section";

const READ = "dram.read_bytes";
const WRITE = "dram.write_bytes";
/** Shown at once; the others are a touch away. */
const FIRST = ["llc.miss", "l1d.miss", "dtlb.walk", "instructions"];

export function overTime(data: Data): (Section | null)[] {
  const run = data.summary;
  const timeline = run?.timeline;
  if (run === null || timeline === undefined) return [];
  return [counters(run, timeline)];
}

const HOW =
  "Drag over a plot to select a stretch of time: everything on this page that has times then shows that stretch " +
  "alone. Double-click, or Escape, shows all. With a plot in focus, + and − zoom and the arrows move.";

function values(timeline: Timeline, event: string): number[] | undefined {
  return timeline.curves.find((c) => c.event === event)?.values;
}

function frame(timeline: Timeline): Pick<Plot, "binNs" | "durationNs"> {
  return { binNs: timeline.bin_ns, durationNs: timeline.duration_ns };
}

/** Memory bandwidth, with the definition of its plot; null where nothing counted it. */
export function bandwidthPlot(run: Summary, timeline: Timeline, below: HTMLElement | null): HTMLElement | null {
  const read = values(timeline, READ);
  const write = values(timeline, WRITE);
  if (read === undefined && write === undefined) return null;
  const lines = [];
  if (read !== undefined) lines.push({ label: "read", event: READ, colour: colourOf(READ), values: read });
  if (write !== undefined) lines.push({ label: "written", event: WRITE, colour: colourOf(WRITE), values: write });
  const machine = run.recording.machine;
  const provenance = machine === null ? "counted" : modelledAs(run);
  const definition =
    `Bytes that moved between the last-level cache and memory, per second of ${run.recording.clock} time; ` +
    `1 GB/s = 10⁹ bytes per second. A step is the mean of its time. ${HOW}`;
  return curve({
      title: "Memory bandwidth",
      unit: `GB/s, ${provenance}`,
      show: (x) => `${rate(x / 1e9)}`,
      lines,
      ...frame(timeline),
      height: 150,
      limit: machine === null ? undefined : { label: "memory limit", value: machine.dram_bytes_per_s },
      total: bytes,
      fileName: "bandwidth",
      about: definition,
      below,
  });
}

function counters(run: Summary, timeline: Timeline): Section | null {
  const others = timeline.curves.filter((c) => c.event !== READ && c.event !== WRITE);
  const has = others.filter((c) => c.values.some((v) => v > 0));
  const sampled = timeline.samples.filter((s) => s.all.samples > 1);
  if (has.length === 0 && sampled.length === 0) return null;
  const unit = (event: string): string => run.events.find((e) => e.name === event)?.unit ?? "count";
  const plot = (event: string, series: number[]): HTMLElement => {
    const isTime = event === "task-clock" || event === "cpu-clock" || unit(event) === "nanoseconds";
    return curve({
      title: name(event),
      unit: isTime ? "processors used" : `${unit(event) === "count" ? "events" : unit(event)} a second`,
      show: (x) => (isTime ? rate(x / 1e9) : rate(x)),
      lines: [{ label: name(event), event, colour: colourOf(event), values: series }],
      ...frame(timeline),
      height: 110,
      total: (sum) => (isTime ? time(sum) : inUnit(sum, unit(event))),
      fileName: event.replace(/[^\w.-]+/g, "_"),
    });
  };
  const order = (event: string): number => (FIRST.includes(event) ? FIRST.indexOf(event) : FIRST.length);
  has.sort((a, b) => order(a.event) - order(b.event));
  const shown = has.length <= 6 ? has.length : FIRST.filter((e) => has.some((c) => c.event === e)).length || 4;
  const modelled = run.recording.machine !== null;
  const rest = has.slice(shown);
  const samplePlots = sampled.map((s) => {
    const series = new Array<number>(s.bins).fill(0);
    for (const [bin, samples] of s.all.bins) series[bin] = samples;
    return curve({
      title: `Samples of ${name(s.event)}`,
      unit: "samples a second",
      show: rate,
      lines: [{ label: "samples", colour: "series-3", values: series }],
      binNs: s.bin_ns,
      durationNs: timeline.duration_ns,
      height: 110,
      total: (n) => count(n),
      fileName: `samples-${s.event.replace(/[^\w.-]+/g, "_")}`,
    });
  });
  return section(
    "counters",
    "Events over time",
    "Over time",
    {
      provenance: has.length === 0 ? "sampled" : modelled ? modelledAs(run) : "counted",
      definition:
        "What each counter gained in each step, per second, all threads together; samples by the time they were " +
        `taken. The bins of this page are ${time(timeline.bin_ns)} long. ${HOW}`,
    },
    h("p", { class: "hint" }, HOW),
    h("div", { class: "plots" }, ...has.slice(0, shown).map((c) => plot(c.event, c.values)), ...samplePlots),
    rest.length === 0
      ? null
      : h(
          "details",
          { class: "more" },
          h("summary", {}, `${rest.length} more counters`),
          h("div", { class: "plots" }, ...rest.map((c) => plot(c.event, c.values))),
        ),
  );
}
