// I/O: devices over time, and which process moved what through which device.

import type { Data, Io } from "../data";
import { curve } from "../curves";
import { h } from "../dom";
import { bytes, count, name, rate, time } from "../format";
import { gained } from "../levels";
import { current, follow, isWhole } from "../range";
import { shareBar, table } from "../table";
import { section, Section } from "./section";

/** Devices with a plot. */
const PLOTS = 6;
/** Rows and columns of the matrix. */
const CROSSED = 12;

interface Line {
  pid: number;
  command: string;
  user: string;
  device: string;
  in: number;
  out: number;
}

export function io(data: Data): Section | null {
  const found = data.summary?.io;
  if (found === undefined) return null;
  const moved = found.devices.filter((d) => d.counted.in.bytes + d.counted.out.bytes + d.attributed.in.bytes + d.attributed.out.bytes > 0);
  const time_ = found.over_time;
  const plots = moved.slice(0, PLOTS).map((device) => {
    const over = time_?.devices.find((d) => found.devices[d.index] === device);
    if (time_ === undefined || over === undefined) return null;
    return curve({
      title: name(device.name),
      unit: "MB/s",
      show: (x) => rate(x / 1e6),
      lines: [
        { label: "in", colour: "series-1", values: over.in_bytes },
        { label: "out", colour: "series-2", values: over.out_bytes },
      ],
      binNs: time_.bin_ns,
      durationNs: time_.duration_ns,
      height: 130,
      total: bytes,
      fileName: `io-${device.name.replace(/[^\w.-]+/g, "_")}`,
    });
  });
  const place = h("div");
  const fill = (): void => place.replaceChildren(...tables(found));
  follow(fill);
  fill();
  return section(
    "io",
    "I/O: processes and devices",
    "I/O",
    {
      provenance: "counted",
      definition:
        "Bytes that each process moved through each device: in is read or received, out is written or sent; what is written " +
        "back later belongs to the process that wrote it. 1 MB/s = 10⁶ bytes per second. Unattributed: what the device " +
        "counted beyond what processes have.",
    },
    h("div", { class: "plots" }, ...plots),
    place,
    deviceTable(found),
    ...found.missing.map((text) => h("p", { class: "muted" }, `Not measurable on that kernel: ${name(text)}`)),
  );
}

function lines(io: Io): Line[] {
  const [from, to] = current();
  const over = io.over_time;
  const part = (values: number[]): number => (over === undefined ? 0 : gained(values, over.bin_ns, over.duration_ns, from, to));
  const made: Line[] = [];
  io.lines.forEach((line, i) => {
    const { pid, command, user, device } = line;
    const timed = over?.lines.find((l) => l.index === i);
    const both = isWhole()
      ? [line.in.bytes, line.out.bytes]
      : timed === undefined
        ? [0, 0]
        : [part(timed.in_bytes), part(timed.out_bytes)];
    if (both[0] + both[1] > 0) made.push({ pid, command, user, device, in: both[0], out: both[1] });
  });
  return made.sort((a, b) => b.in + b.out - a.in - a.out);
}

function tables(io: Io): HTMLElement[] {
  const all = lines(io);
  const total = Math.max(1, all.reduce((sum, l) => sum + l.in + l.out, 0));
  const [from, to] = current();
  const when = isWhole() ? "" : ` from ${time(from, to)} to ${time(to)}`;
  const unseen = !isWhole() && io.over_time !== undefined && io.over_time.lines.length < io.lines.length;
  return [
    table<Line>({
      caption: `Bytes by process and device${when}`,
      fileName: "io",
      rows: all,
      columns: [
        { title: "Process", cell: (l) => h("bdi", {}, name(l.command)), value: (l) => l.command },
        { title: "PID", numeric: true, cell: (l) => String(l.pid), value: (l) => l.pid },
        { title: "Device", cell: (l) => h("bdi", {}, name(l.device)), value: (l) => l.device },
        { title: "Share", cell: (l) => shareBar((l.in + l.out) / total), value: (l) => (l.in + l.out) / total },
        { title: "In", numeric: true, cell: (l) => bytes(l.in), value: (l) => Math.round(l.in) },
        { title: "Out", numeric: true, cell: (l) => bytes(l.out), value: (l) => Math.round(l.out) },
        { title: "User", cell: (l) => h("bdi", {}, name(l.user)), value: (l) => l.user },
      ],
      foot: unseen ? `Over time the ${io.over_time?.lines.length ?? 0} lines with the most bytes are known.` : "",
    }),
    ...matrix(all),
  ];
}

/** Processes × devices, where there are several of both. */
function matrix(all: Line[]): HTMLElement[] {
  const top = (key: (l: Line) => string): string[] => {
    const sums = new Map<string, number>();
    for (const line of all) sums.set(key(line), (sums.get(key(line)) ?? 0) + line.in + line.out);
    return [...sums].sort((a, b) => b[1] - a[1]).slice(0, CROSSED).map(([k]) => k);
  };
  const who = (l: Line): string => `${name(l.command)} ${l.pid}`;
  const rows = top(who);
  const columns = top((l) => l.device);
  if (rows.length < 2 || columns.length < 2) return [];
  const sum = (row: string, column: string): number =>
    all.filter((l) => who(l) === row && l.device === column).reduce((n, l) => n + l.in + l.out, 0);
  const most = Math.max(1, ...rows.map((r) => Math.max(...columns.map((c) => sum(r, c)))));
  const cell = (value: number): HTMLElement => {
    const td = h("td", { class: "number" }, value > 0 ? bytes(value) : "");
    const strength = Math.round((40 * Math.log1p(value)) / Math.log1p(most));
    if (value > 0) td.style.background = `color-mix(in srgb, var(--series-1) ${strength}%, transparent)`;
    return td;
  };
  const head = h("tr", {}, h("th", { scope: "col" }, "Process"), ...columns.map((c) => h("th", { scope: "col", class: "number" }, h("bdi", {}, name(c)))));
  const body = rows.map((r) => h("tr", {}, h("th", { scope: "row" }, h("bdi", {}, r)), ...columns.map((c) => cell(sum(r, c)))));
  return [
    h("p", { class: "caption" }, "Bytes in and out together, by process and device"),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Bytes by process and device, crossed" },
      h("table", { "aria-label": "Bytes in and out together, by process and device" }, h("thead", {}, head), h("tbody", {}, ...body))),
  ];
}

function deviceTable(io: Io): HTMLElement {
  type Row = Io["devices"][number];
  return table<Row>({
    caption: "Devices, over the whole recording",
    fileName: "devices",
    rows: io.devices,
    columns: [
      { title: "Device", cell: (d) => h("bdi", {}, name(d.name)), value: (d) => d.name },
      { title: "Kind", cell: (d) => name(d.kind), value: (d) => d.kind },
      { title: "In", numeric: true, cell: (d) => bytes(d.counted.in.bytes), value: (d) => d.counted.in.bytes },
      { title: "Out", numeric: true, cell: (d) => bytes(d.counted.out.bytes), value: (d) => d.counted.out.bytes },
      { title: "Operations", numeric: true, cell: (d) => count(d.counted.in.operations + d.counted.out.operations), value: (d) => d.counted.in.operations + d.counted.out.operations },
      { title: "Unattributed in", numeric: true, cell: (d) => bytes(d.unattributed_in_bytes), value: (d) => d.unattributed_in_bytes },
      { title: "Unattributed out", numeric: true, cell: (d) => bytes(d.unattributed_out_bytes), value: (d) => d.unattributed_out_bytes },
    ],
    foot: io.filtered ? "Only some processes were observed: what others moved is unattributed." : "",
  });
}
