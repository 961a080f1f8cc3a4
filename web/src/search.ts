// Search over everything that the page names: functions, lines, regions, threads, events and
// frames of the flame graph. Tables and graphs register what they have.

import { add, h } from "./dom";
import { count, middle, name } from "./format";
import { keep, kept } from "./state";

export interface Found {
  text: string;
  /** Shows it. */
  go: () => void;
}

interface Source {
  kind: string;
  find: (text: string) => Found[];
}

const sources = new Map<string, Source>();
const SHOWN = 6;

/** Offers what a part of the page names. A later part of the same kind replaces it. */
export function offer(kind: string, find: (text: string) => Found[]): void {
  sources.set(kind, { kind, find });
}

export function searchBox(): HTMLElement {
  const input = h("input", {
    type: "search",
    class: "search",
    placeholder: "Search  /",
    "aria-label": "Search functions, lines, data, threads and events",
    autocomplete: "off",
    spellcheck: "false",
  });
  const list = h("div", { class: "found", hidden: true, role: "region", "aria-label": "What was found", "aria-live": "polite" });
  const box = h("div", { class: "search-box" }, input, list);
  const fill = (): void => {
    const text = input.value.trim();
    keep("find", text);
    list.replaceChildren();
    list.hidden = text === "";
    if (text === "") return;
    let found = 0;
    for (const source of sources.values()) {
      const all = source.find(text.toLowerCase());
      if (all.length === 0) continue;
      found += all.length;
      add(list, h("p", { class: "found-kind" }, `${source.kind}${all.length > SHOWN ? ` (${count(all.length)})` : ""}`));
      for (const item of all.slice(0, SHOWN)) {
        const go = (): void => {
          list.hidden = true;
          item.go();
        };
        add(list, h("button", { class: "found-item", title: name(item.text), click: go }, h("bdi", {}, middle(name(item.text), 60))));
      }
    }
    if (found === 0) add(list, h("p", { class: "found-kind" }, "Nothing has this name."));
  };
  input.addEventListener("input", fill);
  input.addEventListener("focus", fill);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") list.querySelector("button")?.click();
    if (event.key === "ArrowDown") list.querySelector("button")?.focus();
    if (event.key === "Escape") {
      input.value = "";
      fill();
      input.blur();
    }
  });
  list.addEventListener("keydown", (event) => {
    const next = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key] as "nextElementSibling" | undefined;
    if (event.key === "Escape") {
      list.hidden = true;
      input.focus();
    }
    if (next === undefined) return;
    event.preventDefault();
    let at = document.activeElement?.[next] ?? null;
    while (at !== null && at.tagName !== "BUTTON") at = at[next];
    if (at instanceof HTMLElement) at.focus();
    else input.focus();
  });
  document.addEventListener("pointerdown", (event) => {
    if (event.target instanceof Node && !box.contains(event.target)) list.hidden = true;
  });
  document.addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    if (event.key !== "/" || event.ctrlKey || event.metaKey || /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) return;
    event.preventDefault();
    input.focus();
  });
  const before = kept("find");
  if (before !== null) {
    input.value = before;
    // The searched entries are built after the box.
    requestAnimationFrame(fill);
  }
  return box;
}
