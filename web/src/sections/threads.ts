// Threads and processes.

import type { Data, ProcessRow, Summary, ThreadRow } from "../data";
import { modelled } from "../data";
import { h } from "../dom";
import { amount, base, count, name, time } from "../format";
import { current, follow, isWhole } from "../range";
import { Column, table } from "../table";
import { onPart } from "../part";
import { section, Section } from "./section";
import { eventChoice, timedTable } from "./timed";

export function threads(data: Data): Section | null {
  const run = data.summary;
  if (run === null || run.threads.length === 0) return null;
  const samples = run.timeline?.samples ?? [];
  let chosen = samples[0];
  const place = h("div");
  const choice = eventChoice(samples, "Event of the threads", (timed) => {
    chosen = timed;
    fill();
  });
  function fill(): void {
    if (choice !== null) choice.hidden = isWhole();
    if (isWhole()) {
      place.replaceChildren(...tables(run as Summary));
    } else if (chosen !== undefined) {
      place.replaceChildren(timedTable(run, chosen, "threads", "Threads", "Process"));
    } else {
      const [from, to] = current();
      const note = `Threads have no rows by time here: the whole run is shown, not ${time(from, to)} to ${time(to)} alone.`;
      place.replaceChildren(h("p", { class: "muted" }, note), ...tables(run as Summary));
    }
  }
  follow(fill);
  onPart(fill);
  fill();
  return section(
    "threads",
    "Threads and processes",
    "Threads",
    {
      provenance: run.recording.machine !== null ? modelled(run) : run.counting !== null ? "counted" : "sampled",
      definition:
        "What each thread did. Ran: the time it ran on the recording's clock; waited: the time from its first to its last " +
        "event in which it did not. Events are summed over the thread, or estimated from its samples where nothing counted them.",
    },
    choice,
    place,
  );
}

type Row = ThreadRow | ProcessRow;

function tables(run: Summary): HTMLElement[] {
  const events = topEvents(run);
  const common: Column<Row>[] = [
    { title: "Ran", numeric: true, cell: (r) => (r.run_ns > 0 ? time(r.run_ns) : "–"), value: (r) => r.run_ns },
    ...(run.threads.some((t) => t.idle_ns !== undefined)
      ? [{ title: "Waited", numeric: true, cell: (r: Row) => (r.idle_ns === undefined ? "–" : time(r.idle_ns)), value: (r: Row) => r.idle_ns ?? null }]
      : []),
    ...events.map((event) => ({ title: name(event), numeric: true, cell: (r: Row) => (r.counts[event] === undefined ? "–" : amount(event, r.counts[event])), value: (r: Row) => r.counts[event] ?? null })),
    ...(run.threads.some((t) => t.samples > 0) ? [{ title: "Samples", numeric: true, cell: (r: Row) => count(r.samples), value: (r: Row) => r.samples }] : []),
  ];
  const program = (r: Row): HTMLElement => h("bdi", { title: name(r.program) }, r.program === "" ? "–" : name(base(r.program)));
  const threadTable = table<ThreadRow>({
    caption: "Threads",
    fileName: "threads",
    isSearched: true,
    rows: run.threads,
    columns: [
      { title: "Program", cell: program, value: (r) => r.program },
      { title: "Process", numeric: true, cell: (r) => String(r.pid), value: (r) => r.pid },
      { title: "Thread", numeric: true, cell: (r) => String(r.tid), value: (r) => r.tid },
      ...(common as Column<ThreadRow>[]),
    ],
  });
  if (run.processes.length < 2) return [threadTable];
  const processTable = table<ProcessRow>({
    caption: "Processes",
    fileName: "processes",
    rows: run.processes,
    columns: [
      { title: "Program", cell: program, value: (r) => r.program },
      { title: "Process", numeric: true, cell: (r) => String(r.pid), value: (r) => r.pid },
      { title: "Threads", numeric: true, cell: (r) => count(r.threads), value: (r) => r.threads },
      ...(common as Column<ProcessRow>[]),
    ],
  });
  return [processTable, threadTable];
}

/** The events that tell most, of those that threads have. */
function topEvents(run: Summary): string[] {
  const known = new Set<string>();
  for (const thread of run.threads) for (const event of Object.keys(thread.counts)) known.add(event);
  const wanted = ["instructions", "dram.read_bytes", "dram.write_bytes", "llc.miss"].filter((e) => known.has(e));
  return wanted.length > 0 ? wanted : [...known].sort().slice(0, 4);
}
