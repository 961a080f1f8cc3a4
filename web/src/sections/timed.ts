// Tables of samples that follow the selected range.

import type { Summary, TimedRow, TimedSamples } from "../data";
import { hasEvery } from "../data";
import { h } from "../dom";
import { amount, base, count, name, time, wilson } from "../format";
import { samplesOfPart } from "../part";
import { current } from "../range";
import { interval, shareBar, table } from "../table";

interface InRange {
  name: string;
  of: string;
  samples: number;
  events: number;
}

/** The bins that a range touches. */
function bins(timed: TimedSamples): [number, number] {
  const [from, to] = current();
  return [Math.floor(from / timed.bin_ns), Math.ceil(to / timed.bin_ns)];
}

function within(row: TimedRow, [from, to]: [number, number]): InRange {
  let [samples, events] = [0, 0];
  for (const [bin, s, e] of row.bins) {
    if (bin >= from && bin < to) {
      samples += s;
      events += e;
    }
  }
  return { name: row.name, of: row.of, samples, events };
}

export type Kind = "functions" | "lines" | "regions" | "threads";

/** A table of one kind of rows in the range; `run` says whether each event is a sample. */
export function timedTable(run: Summary | null, coarse: TimedSamples, kind: Kind, caption: string, of: string): HTMLElement {
  const timed = samplesOfPart(coarse.event) ?? coarse;
  const rows = timed[kind];
  const part = samplesOfPart(timed.event);
  const range: [number, number] = part === null ? bins(timed) : [0, Infinity];
  const all = within(timed.all, range);
  const every = hasEvery(run, timed.event);
  const inside = rows.map((row) => within(row, range)).filter((row) => row.samples > 0);
  inside.sort((a, b) => b.events - a.events);
  const shown = inside.reduce((sum, row) => sum + row.events, 0);
  const total = Math.max(all.events, 1);
  const bounds = (row: InRange): [number | null, number | null] => (every ? null : wilson(row.events / total, all.samples)) ?? [null, null];
  // Bins that the range cuts count whole, and the title shows their ends.
  const told = part === null ? range.map((bin) => bin * timed.bin_ns) : current();
  const [from, to] = [time(told[0], current()[1]), time(told[1], current()[1])];
  const missing = all.events - shown;
  const rest = missing > 0 && of !== "process" ? ` ${count(missing)} events are in no row shown.` : "";
  return h(
    "div",
    {},
    table<InRange>({
      caption: `${caption} from ${from} to ${to}: ${count(all.samples)} samples of ${name(timed.event)}`,
      fileName: caption.toLowerCase().replace(/\s+/g, "-"),
      isSearched: true,
      rows: inside,
      columns: [
        { title: "Name", cell: (r) => h("bdi", {}, name(r.name)), value: (r) => r.name },
        { title: "Share", cell: (r) => shareBar(r.events / total, ...bounds(r)), value: (r) => r.events / total },
        ...(every ? [] : [{ title: "95 % interval", numeric: true, cell: (r: InRange) => interval(...bounds(r)), value: (r: InRange) => bounds(r)[0] }]),
        { title: "Events", numeric: true, cell: (r) => amount(timed.event, r.events), value: (r) => r.events },
        { title: "n", numeric: true, about: "Samples", cell: (r) => count(r.samples), value: (r) => r.samples },
        { title: of, cell: (r) => h("bdi", { title: name(r.of) }, name(base(r.of))), value: (r) => r.of },
      ],
      foot: `${every ? "" : "Sampled: shares are estimates."}${rest}`,
    }),
  );
}

/** A choice of the sampled event; `draw` is asked again when it changes. */
export function eventChoice(samples: TimedSamples[], label: string, chosen: (timed: TimedSamples) => void, first = 0): HTMLElement | null {
  if (samples.length < 2) return null;
  const select = h("select", { "aria-label": label });
  samples.forEach((s, i) => {
    select.appendChild(h("option", { value: String(i) }, `${name(s.event)} (${count(s.all.samples)} samples)`));
  });
  select.value = String(first);
  select.addEventListener("change", () => chosen(samples[Number(select.value)]));
  return h("label", { class: "choice" }, "Event: ", select);
}
