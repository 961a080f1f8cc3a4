// Types by the cycles that were spent waiting for their objects, with their members.

import type { Counts, MemberRow, TypeRow, TypeTable } from "../data";
import { h } from "../dom";
import { bytes, count, name, percent } from "../format";
import { stalled } from "../level_colours";
import { shareBar, table } from "../table";
import { dataName } from "./allocations";

export function typeTable(types: TypeTable): HTMLElement {
  const of = (event: string) => ({ numeric: true, event, cell: (r: TypeRow) => count(get(r.counts, event)), value: (r: TypeRow) => get(r.counts, event) });
  const reasons = types.untyped.filter((row) => row.share !== null && row.share >= 0.001).map((row) => `${row.reason.replace(/_/g, " ")} ${percent(row.share ?? 0)}`);
  const unknown = reasons.length > 0 ? `Stalled cycles without a type: ${reasons.join(", ")}.` : "";
  const others = types.other_rows > 0 ? `${count(types.other_rows)} more types are not shown. ` : "";
  return table<TypeRow>({
    caption: "Types by stalled cycles, whole run",
    fileName: "types",
    isSearched: true,
    rows: types.rows,
    columns: [
      { title: "Type", cell: (r) => dataName(r, 40), value: (r) => r.name },
      { title: "Size", numeric: true, cell: (r) => bytes(r.bytes), value: (r) => r.bytes },
      { title: "Share", cell: (r) => shareBar(r.share), value: (r) => r.share },
      { title: "Stalled", numeric: true, event: "cycles", about: "Cycles in which a core waited for its objects", cell: (r) => count(stalled(r.counts)), value: (r) => stalled(r.counts) },
      { title: "L1D miss", ...of("l1d.miss") },
      { title: "LLC miss", ...of("llc.miss") },
      { title: "Loads", ...of("loads") },
      { title: "Stores", ...of("stores") },
    ],
    detail: (row) => (row.members.length === 0 ? null : members(row)),
    opens: "Members",
    foot: others + unknown,
  });
}

function get(counts: Counts, event: string): number {
  return counts[event] ?? 0;
}

/** Members by offset, and the holes between them. */
function members(row: TypeRow): HTMLElement {
  const ofMember = (member: MemberRow) => ({
    offset: member.offset,
    cells: [
      `${name(member.name)}: ${name(member.type_name)}`,
      bytes(member.bytes),
      member.share === null ? "–" : percent(member.share),
      count(get(member.counts, "l1d.miss")),
      count(get(member.counts, "loads")),
      count(get(member.counts, "stores")),
    ],
  });
  const holes = row.holes.map((hole) => ({ offset: hole.offset, cells: ["unused", bytes(hole.bytes), "", "", "", ""] }));
  const rows = [...row.members.map(ofMember), ...holes].sort((a, b) => a.offset - b.offset);
  const titles = ["Offset", "Member", "Size", "Share of the type's stalls", "L1D miss", "Loads", "Stores"];
  return h(
    "table",
    {},
    h("thead", {}, h("tr", {}, ...titles.map((title) => h("th", {}, title)))),
    h("tbody", {}, ...rows.map((of) => h("tr", {}, h("td", {}, String(of.offset)), ...of.cells.map((text) => h("td", {}, text))))),
  );
}
