// Lines of Python by the cycles, or the samples, of them and the native code they called.

import type { Data, PythonRow } from "../data";
import { modelled } from "../data";
import { Child } from "../dom";
import { amount, count, name } from "../format";
import { shareBar, table } from "../table";
import { section, Section } from "./section";

/** With a smaller share of the cycles, a program merely starts Python at times. */
const LEAST_SHARE = 0.1;

export function python(data: Data): Section | null {
  const run = data.summary;
  const all = run?.python;
  if (run === null || all === undefined || (all.share ?? 0) < LEAST_SHARE) return null;
  const of = (event: string) => ({ numeric: true, event, cell: (r: PythonRow) => count(r.counts[event] ?? 0), value: (r: PythonRow) => r.counts[event] ?? 0 });
  const fileName = (path: string) => path.split("/").pop() ?? path;
  const place = (r: PythonRow) => name(r.line === undefined ? fileName(r.file) : `${fileName(r.file)}:${r.line}`);
  const isSampled = run.recording.machine === null;
  const ofModel = [
    { title: "Stalled", numeric: true, about: "Cycles in which a core waited for memory", cell: (r: PythonRow) => count(r.stalled_cycles), value: (r: PythonRow) => r.stalled_cycles },
    { title: "L1D miss", ...of("l1d.miss") },
    { title: "LLC miss", ...of("llc.miss") },
    { title: "Instructions", ...of("instructions") },
  ];
  const columns = (first: { title: string; cell: (r: PythonRow) => Child; value: (r: PythonRow) => string }[]) => [
    ...first,
    { title: "Share", cell: (r: PythonRow) => shareBar(r.share), value: (r: PythonRow) => r.share },
    { title: isSampled ? all.rank : "Cycles", ...of(all.rank), cell: (r: PythonRow) => amount(all.rank, r.counts[all.rank] ?? 0) },
    ...(isSampled ? [] : ofModel),
  ];
  const line = { title: "Line", cell: place, value: (r: PythonRow) => `${r.file}:${r.line ?? 0}` };
  const called = { title: "Function", cell: (r: PythonRow) => name(r.function), value: (r: PythonRow) => r.function };
  const file = { title: "File", cell: (r: PythonRow) => name(r.file), value: (r: PythonRow) => r.file };
  const others = all.other_lines > 0 ? `${count(all.other_lines)} more lines are not shown.` : "";
  return section(
    "python",
    `Python lines by ${all.rank}`,
    "Python",
    {
      provenance: isSampled ? "sampled" : modelled(run),
      definition:
        "Functions and lines of Python, with the native code that ran on their behalf; functions are without the functions of " +
        `Python that they call. ${isSampled ? "Events that the samples stand for." : "Every event is counted where it happened."} ` +
        `Share: ${all.rank} of the line / ${all.rank} of the run.`,
    },
    table<PythonRow>({ caption: "Python lines, whole run", fileName: "python-lines", isSearched: true, rows: all.lines, columns: columns([line, called]), foot: others }),
    table<PythonRow>({ caption: "Python functions, whole run", fileName: "python-functions", isSearched: true, rows: all.functions, columns: columns([called, file]) }),
  );
}
