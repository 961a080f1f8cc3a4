// A section of the page: heading, provenance, definition.

import { Child, h } from "../dom";

export interface Section {
  id: string;
  short: string;
  element: HTMLElement;
}

export interface About {
  /** What it shows, with units. */
  definition: string;
  /** How the numbers came to be. */
  provenance: string;
}

export function section(id: string, title: string, short: string, about: About, ...children: Child[]): Section {
  const heading = `${id}-title`;
  const element = h(
    "section",
    { id, "aria-labelledby": heading },
    h("h2", { id: heading }, title, " ", h("span", { class: "badge" }, about.provenance)),
    h("details", { class: "about" }, h("summary", {}, "What this is"), h("p", {}, about.definition)),
    ...children,
  );
  return { id, short, element };
}

/** A list of names and values, to be read as pairs. */
export function facts(pairs: [string, string | null | undefined][]): HTMLElement {
  const items = pairs
    .filter((pair): pair is [string, string] => pair[1] !== null && pair[1] !== undefined && pair[1] !== "")
    .map(([label, value]) => h("div", {}, h("dt", {}, label), h("dd", {}, value)));
  return h("dl", { class: "facts" }, ...items);
}
