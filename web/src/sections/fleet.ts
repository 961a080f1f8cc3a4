// The page of a dataset: a metric of whole runs over time by version, the worst functions, hosts that
// differ from their peers, and recordings, each of which has a page of its own.

import type { Data, Ends, Fleet, FleetFunction, FleetOutlier, FleetRecording, FleetVersion } from "../data";
import { between, minute, setStart, toRange, toUnixS } from "../dates";
import { h } from "../dom";
import { fleetPlot, isChanged, Palette, signed, versionName } from "../fleet_plot";
import { base, bytes, count, middle, name, percent, rate, readable, time } from "../format";
import { current, follow, isWhole, setWhole } from "../range";
import { shareBar, table } from "../table";
import { section, Section } from "./section";

/** Which recordings are listed. */
interface Chosen {
  service: string;
  commit?: string | null;
  host?: string;
  /** Starts of the first and the last one. */
  times?: [number, number];
}

/** The address of another view of what is served. */
export function address(data: Data, parameters: Record<string, string | null>): string {
  const all = Object.entries({ token: data.served?.token ?? null, ...parameters });
  return `/?${all.flatMap(([key, value]) => (value === null ? [] : [`${key}=${encodeURIComponent(value)}`])).join("&")}`;
}

type Show = (value: number, digits?: number) => string;

/** How values of a metric read, with three digits or more. As `MetricUnit` of `report`. */
export function shower(metric: string): Show {
  const of = (value: number, digits?: number): string => {
    if (metric.endsWith("_ns") || metric === "task-clock" || metric === "cpu-clock") return time(value);
    if (metric.endsWith("bytes")) return bytes(value, digits);
    if (metric.endsWith(".miss_ratio")) return percent(value);
    if (metric.endsWith(".mpki")) return rate(value);
    return value < 1000 && value % 1 !== 0 ? rate(value) : count(value, digits);
  };
  return (value, digits) => (value < 0 ? `−${of(-value, digits)}` : of(value, digits));
}

function spoken(metric: string): string {
  return metric === "stalled_cycles" ? "stalled cycles" : name(metric);
}

/** Digits that show an interval's width with two of its own. */
function digitsOf(interval: Ends): number {
  if (interval === null || interval[0] === interval[1]) return 3;
  const size = Math.max(Math.abs(interval[0]), Math.abs(interval[1]));
  return Math.max(3, Math.min(6, Math.ceil(Math.log10(size / (interval[1] - interval[0]))) + 2));
}

function ends(interval: Ends, show: Show, least = -Infinity): string {
  if (interval === null) return "–";
  const [low, high] = [Math.max(least, interval[0]), interval[1]].map((end) => show(end, digitsOf(interval)));
  return `${low} ${interval[0] < 0 ? "to" : "–"} ${high}`;
}

/** A mean with as many digits as its interval. */
function meanOf(mean: number, interval: Ends, show: Show): string {
  return show(mean, digitsOf(interval));
}

export function fleetHeader(data: Data, fleet: Fleet): HTMLElement {
  const { facts } = fleet;
  const plural = (n: number, word: string): string => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
  const days = facts.first_day === facts.last_day ? name(facts.first_day) : `${name(facts.first_day)} to ${name(facts.last_day)}`;
  const losses = facts.with_losses === 0 ? "no losses" : `${plural(facts.with_losses, "recording")} with losses`;
  const machines = facts.machines.length > 1 ? [`modelled on ${facts.machines.map(name).join(", ")}`] : [];
  const parts = [plural(facts.recordings, "recording"), plural(facts.services, "service"), plural(facts.hosts, "host"), days, ...machines, losses];
  const go = (parameters: Record<string, string | null>): void => location.assign(address(data, { service: fleet.service, metric: fleet.metric, ...parameters }));
  const choice = (label: string, options: HTMLElement[], change: (value: string) => void): HTMLElement => {
    const choices = h("select", { "aria-label": label }, ...options);
    choices.addEventListener("change", () => change(choices.value));
    return h("label", {}, `${label} `, choices);
  };
  const option = (value: string, text: string, selected: boolean): HTMLElement => h("option", { value, selected }, text);
  const services = [
    option("", `all ${fleet.services.length}`, fleet.service === null),
    ...fleet.services.map((each) => option(each.name, `${middle(name(each.name), 40)} (${count(each.recordings)})`, each.name === fleet.service)),
  ];
  const metrics = fleet.metrics.map((metric) => option(metric, spoken(metric), metric === fleet.metric));
  return h(
    "header",
    {},
    h("h1", {}, h("span", { class: "brand" }, "memgauge fleet "), h("bdi", { title: name(data.title) }, middle(name(data.title), 120))),
    h("p", { class: "facts-line" }, ...parts.map((part) => h("span", {}, part))),
    h(
      "div",
      { class: "choices" },
      // Another service has metrics of its own.
      choice("Service", services, (value) => go({ service: value === "" ? null : value, metric: null })),
      choice("Metric", metrics, (value) => go({ metric: value })),
    ),
  );
}

export function fleetSections(data: Data, fleet: Fleet): Section[] {
  const times = [...fleet.histories.flatMap((each) => each.versions.flatMap((version) => [version.first_unix_s, version.last_unix_s])), ...fleet.recordings.map((each) => each.started_unix_s)];
  const [first, last] = times.reduce(([low, high], at) => [Math.min(low, at), Math.max(high, at)], [Infinity, -Infinity]);
  // Points at the ends are whole.
  const room = Math.max(60, (last - first) * 0.03);
  setStart(first - room);
  setWhole(toRange(last + room));
  const palette = new Palette(fleet.histories);
  const list = recordings(data, fleet, palette);
  return [versions(data, fleet, palette, list.choose), functions(fleet), hosts(fleet, list.choose), list.section].filter((each): each is Section => each !== null);
}

type Row = { service: string; version: FleetVersion; before: FleetVersion | null };

function versions(data: Data, fleet: Fleet, palette: Palette, choose: (chosen: Chosen) => void): Section {
  const { metric, histories } = fleet;
  const show = shower(metric);
  const provenance = fleet.provenances.join(", ");
  const isOne = histories.length === 1;
  const dots = fleet.other_recordings > 0 ? `A dot is one of the newest ${count(fleet.recordings.length)} recordings.` : "A dot is one recording.";
  const plots = histories.map((history) => {
    const { service } = history;
    const link = h("a", { href: address(data, { service, metric }) }, h("bdi", {}, middle(name(service), 40)));
    return fleetPlot({
      history,
      palette,
      show,
      provenance,
      metric,
      unit: `${spoken(metric)} of a run`,
      recordings: fleet.recordings.filter((each) => each.service === service),
      title: isOne ? h("bdi", {}, name(service)) : link,
      choose: (version, point) => choose({ service, commit: version.commit, times: [point.first_unix_s, point.last_unix_s] }),
    });
  });
  const rows: Row[] = histories.flatMap(({ service, versions }) => versions.map((version, i) => ({ service, version, before: versions[i - 1] ?? null })));
  rows.sort((a, b) => b.version.first_unix_s - a.version.first_unix_s || a.service.localeCompare(b.service));
  const hidden = fleet.other_services > 0 ? h("p", { class: "hint" }, `${count(fleet.other_services)} more services have fewer recordings; choose one above.`) : null;
  const older = histories.reduce((sum, each) => sum + each.older_versions, 0);
  return section(
    "versions",
    "Versions over time",
    "Versions",
    {
      provenance,
      definition:
        `The mean of ${spoken(metric)} over the runs of a version that started within one step of time, with its 95 % interval (Student's t). ${dots} ` +
        "A version is the label commit. The change is the difference to the version before it; intervals of all changes hold together at 95 % (Welch, Bonferroni). There is none between versions that were modelled on several machines or have several sources. Times are in UTC, by the clocks of the hosts.",
    },
    h("div", { class: isOne ? "" : "plots" }, ...plots),
    hidden,
    table<Row>({
      caption: `Versions by first recording, ${spoken(metric)} of a run`,
      fileName: "versions",
      rows,
      isSearched: true,
      foot: older > 0 ? `${count(older)} older versions are left out.` : "",
      columns: [
        {
          title: "Version",
          cell: (r) => h("span", {}, palette.swatch(r.version.commit), choice(middle(versionName(r.version.commit), 40), "Lists its recordings", () => choose({ service: r.service, commit: r.version.commit }))),
          value: (r) => versionName(r.version.commit),
        },
        ...(isOne ? [] : [{ title: "Service", cell: (r: Row) => h("bdi", {}, middle(name(r.service), 30)), value: (r: Row) => r.service }]),
        { title: "First recording", cell: (r) => minute(r.version.first_unix_s), value: (r) => minute(r.version.first_unix_s) },
        { title: "Recordings", numeric: true, cell: (r) => count(r.version.recordings), value: (r) => r.version.recordings },
        { title: "Mean", numeric: true, cell: (r) => meanOf(r.version.mean, r.version.interval, show), value: (r) => r.version.mean },
        { title: "95 % interval", numeric: true, about: "Of the mean", cell: (r) => ends(r.version.interval, show), value: (r) => r.version.interval?.[0] ?? null },
        { title: "Change", numeric: true, about: "Difference to the version before it, in per cent of that", cell: (r) => changeCell(r, show), value: (r) => r.version.change?.relative ?? null },
        { title: "95 % interval of the change", numeric: true, cell: (r) => changeEnds(r), value: (r) => changeShares(r)?.[0] ?? null },
      ],
    }),
  );
}

function choice(text: string, title: string, click: () => void): HTMLElement {
  return h("button", { class: "as-link", title, click }, h("bdi", {}, text));
}

function changeCell({ version, before }: Row, show: Show): HTMLElement | string {
  if (version.change === null || before === null) return "–";
  const { relative, difference } = version.change;
  const text = relative === null ? show(difference) : signed(relative);
  const isSure = isChanged(version);
  const what = isSure ? `from ${versionName(before.commit)}` : `from ${versionName(before.commit)}; this may be chance`;
  return h("span", { class: isSure ? "sure" : "muted", title: what }, isSure ? `${difference > 0 ? "▲" : "▼"} ${text}` : text);
}

/** The interval as shares of the mean before. */
function changeShares({ version, before }: Row): Ends {
  const interval = version.change?.interval;
  if (interval === null || interval === undefined || before === null || before.mean === 0) return null;
  return [interval[0] / before.mean, interval[1] / before.mean];
}

function changeEnds(row: Row): string {
  const shares = changeShares(row);
  return shares === null ? "–" : `${signed(shares[0])} to ${signed(shares[1])}`;
}

function functions(fleet: Fleet): Section | null {
  const { top } = fleet;
  if (top === null) return null;
  const show = shower(top.metric);
  const instead = top.metric === fleet.metric ? "" : ` Functions have no ${spoken(fleet.metric)}, so they are ranked by ${spoken(top.metric)}.`;
  const without = top.without_metric > 0 ? ` ${count(top.without_metric)} recordings without it are left out.` : "";
  return section(
    "functions",
    "Worst functions",
    "Functions",
    {
      provenance: top.provenances.join(", "),
      definition:
        `Functions by the sum of ${spoken(top.metric)} over ${count(top.facts.recordings)} recordings.${instead}${without} Mean and 95 % interval (Student's t) are over all these recordings, also those without the function; it is an interval of the fleet's mean if they are a random sample of its runs.`,
    },
    table<FleetFunction>({
      caption: `Functions by ${spoken(top.metric)}`,
      fileName: "functions",
      rows: top.rows,
      isSearched: true,
      foot: top.other_rows > 0 ? `${count(top.other_rows)} more functions have less.` : "",
      columns: [
        { title: "Function", cell: (r) => h("bdi", { class: "name", title: name(r.name ?? "") }, middle(name(readable(r.name ?? r.module ?? "?")), 44)), value: (r) => r.name },
        { title: "Module", cell: (r) => h("bdi", { class: "name" }, middle(name(r.module ?? "–"), 30)), value: (r) => r.module },
        { title: "Share", numeric: true, about: "Part of the sum over all functions", cell: (r) => shareBar(r.share), value: (r) => r.share },
        { title: "Sum", numeric: true, cell: (r) => show(r.value), value: (r) => r.value },
        { title: "Mean", numeric: true, about: "Of a recording", cell: (r) => meanOf(r.mean, r.interval, show), value: (r) => r.mean },
        { title: "95 % interval", numeric: true, about: "Of the mean", cell: (r) => ends(r.interval, show, 0), value: (r) => r.interval?.[0] ?? null },
        { title: "Recordings", numeric: true, about: "In which it has a value", cell: (r) => count(r.recordings), value: (r) => r.recordings },
      ],
    }),
  );
}

function hosts(fleet: Fleet, choose: (chosen: Chosen) => void): Section {
  const { outliers } = fleet;
  const alone = outliers.not_compared > 0 ? ` ${count(outliers.not_compared)} hosts without peers, or with fewer than two recordings, are not compared.` : "";
  const most = Math.max(...outliers.rows.map((r) => Math.abs(r.relative ?? 0)), 1e-9);
  return section(
    "hosts",
    "Hosts that differ from their peers",
    "Hosts",
    {
      provenance: `${count(outliers.comparisons)} comparisons`,
      definition: `A host's mean of each metric of whole runs, against all other hosts of its service. The interval is of the difference of the means; all ${count(outliers.comparisons)} hold together at 95 % (Welch, Bonferroni), and only hosts whose interval leaves out 0 are listed.${alone}`,
    },
    outliers.rows.length === 0
      ? h("p", { class: "state good" }, `No host differs by more than chance in ${count(outliers.comparisons)} comparisons.${alone}`)
      : table<FleetOutlier>({
          caption: "Hosts by relative difference",
          fileName: "hosts",
          rows: outliers.rows,
          isSearched: true,
          columns: [
            { title: "Host", cell: (r) => choice(middle(name(r.host), 30), "Lists its recordings", () => choose({ service: r.service, host: r.host })), value: (r) => r.host },
            { title: "Service", cell: (r) => h("bdi", { class: "name" }, middle(name(r.service), 30)), value: (r) => r.service },
            { title: "Metric", cell: (r) => spoken(r.metric), value: (r) => r.metric },
            { title: "Difference", numeric: true, about: "To the mean of its peers, in per cent of that", cell: (r) => differenceBar(r.relative, most), value: (r) => r.relative },
            { title: "Mean", numeric: true, cell: (r) => shower(r.metric)(r.mean), value: (r) => r.mean },
            { title: "Peers", numeric: true, about: "Mean over the recordings of the other hosts", cell: (r) => shower(r.metric)(r.peer_mean), value: (r) => r.peer_mean },
            { title: "95 % interval", numeric: true, about: "Of the difference", cell: (r) => ends(r.interval, shower(r.metric)), value: (r) => r.interval[0] },
            { title: "Recordings", numeric: true, about: "Of the host", cell: (r) => count(r.recordings), value: (r) => r.recordings },
          ],
        }),
  );
}

/** A bar from the middle to the left or right. */
function differenceBar(relative: number | null, most: number): HTMLElement | string {
  if (relative === null) return "–";
  const bar = h("span", { class: "bar", "aria-hidden": "true" });
  const fill = h("span", { class: "bar-fill" });
  const width = (50 * Math.abs(relative)) / most;
  fill.style.width = `${width}%`;
  fill.style.left = `${relative < 0 ? 50 - width : 50}%`;
  fill.style.background = `var(--${relative < 0 ? "series-1" : "series-2"})`;
  bar.appendChild(fill);
  return h("span", { class: "share" }, bar, h("span", { class: "share-number" }, signed(relative)));
}

function recordings(data: Data, fleet: Fleet, palette: Palette): { section: Section; choose: (chosen: Chosen) => void } {
  const show = shower(fleet.metric);
  const place = h("div");
  let chosen: Chosen | null = null;

  function isListed(each: FleetRecording): boolean {
    if (!isWhole()) {
      const [from, to] = current().map(toUnixS);
      if (each.started_unix_s < from || each.started_unix_s > to) return false;
    }
    if (chosen === null) return true;
    const { service, commit, host, times } = chosen;
    return (
      each.service === service &&
      (commit === undefined || each.commit === commit) &&
      (host === undefined || each.host === host) &&
      (times === undefined || (each.started_unix_s >= times[0] && each.started_unix_s <= times[1]))
    );
  }

  function fill(): void {
    const rows = fleet.recordings.filter(isListed);
    const all = h("button", { class: "small", click: () => ((chosen = null), fill()) }, "Show all");
    const filter = chosen === null ? null : h("p", { class: "filter", role: "status" }, h("span", {}, described(chosen)), all);
    const isPart = fleet.other_recordings > 0 && (chosen !== null || !isWhole());
    const lacking = `Only the newest ${count(fleet.recordings.length)} recordings are on this page.${fleet.service === null ? " Choose a service above for more of its own." : ""}`;
    place.replaceChildren(...[filter, isPart ? h("p", { class: "hint" }, lacking) : null, list(rows)].filter((each): each is HTMLElement => each !== null));
  }

  function list(rows: FleetRecording[]): HTMLElement {
    const older = fleet.other_recordings > 0 ? ` The newest ${count(fleet.recordings.length)}; ${count(fleet.other_recordings)} older ones are in the dataset.` : "";
    const isOne = fleet.facts.services === 1;
    return table<FleetRecording>({
      caption: `${count(rows.length)} recording${rows.length === 1 ? "" : "s"}, the newest first`,
      fileName: "recordings",
      rows,
      shown: 20,
      foot: `A click on one opens its page.${older}`,
      columns: [
        {
          title: "Start (UTC)",
          cell: (r) => h("a", { href: address(data, { recording: r.recording }), title: name(r.path) }, `${minute(r.started_unix_s)}:${String(Math.floor(r.started_unix_s) % 60).padStart(2, "0")}`),
          value: (r) => new Date(r.started_unix_s * 1000).toISOString(),
        },
        ...(isOne ? [] : [{ title: "Service", cell: (r: FleetRecording) => h("bdi", { class: "name" }, middle(name(r.service), 30)), value: (r: FleetRecording) => r.service }]),
        { title: "Version", cell: (r) => h("span", {}, palette.swatch(r.commit), h("bdi", {}, middle(versionName(r.commit), 24))), value: (r) => r.commit },
        { title: "Host", cell: (r) => h("bdi", { class: "name" }, middle(name(r.host), 30)), value: (r) => r.host },
        { title: spoken(fleet.metric), numeric: true, cell: (r) => (r.value === null ? "–" : show(r.value)), value: (r) => r.value },
        { title: "Length", numeric: true, cell: (r) => time(r.duration_ns), value: (r) => r.duration_ns },
        { title: "Losses", numeric: true, about: "Kinds of losses that its recorder counted", cell: (r) => (r.kinds_of_losses === 0 ? "none" : `${r.kinds_of_losses} kind${r.kinds_of_losses === 1 ? "" : "s"}`), value: (r) => r.kinds_of_losses },
        { title: "File", cell: (r) => h("bdi", { class: "name", title: name(r.path) }, middle(name(base(r.path)), 30)), value: (r) => r.path },
      ],
    });
  }

  follow(fill);
  fill();
  const made = section(
    "recordings",
    "Recordings",
    "Recordings",
    { provenance: fleet.provenances.join(", "), definition: `Each recording with its ${spoken(fleet.metric)}. A stretch of time that is selected in a plot, a point, a version or a host that is clicked on choose which are listed.` },
    place,
  );
  const choose = (next: Chosen): void => {
    chosen = next;
    fill();
    made.element.scrollIntoView({ block: "start" });
    place.querySelector<HTMLElement>(".filter button")?.focus({ preventScroll: true });
  };
  return { section: made, choose };
}

function described({ service, commit, host, times }: Chosen): string {
  const parts = [name(service), commit === undefined ? null : versionName(commit), host === undefined ? null : name(host), times === undefined ? null : between(times[0], times[1])];
  return `Only ${parts.filter((part) => part !== null).join(", ")}`;
}
