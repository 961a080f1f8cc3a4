// The page: reads its data, builds the sections that the recording has something for.

import type { Data } from "./data";
import { drawCurves, keys } from "./curves";
import { add, h } from "./dom";
import { name, time } from "./format";
import { watchParts } from "./part";
import { current, follow, isWhole, select, setWhole } from "./range";
import { nextTheme, watchTheme } from "./theme";
import { advice, header } from "./sections/head";
import { overviewOf } from "./sections/first";
import { searchBox } from "./search";
import { keep, keepSection, kept, keptSection, startKeeping } from "./state";
import { Section } from "./sections/section";
import { overTime } from "./sections/over_time";
import { codeRegions } from "./sections/code_regions";
import { fleetHeader, fleetSections } from "./sections/fleet";
import { datesBetween } from "./dates";
import { calls } from "./sections/calls";
import { hot } from "./sections/hot";
import { python } from "./sections/python";
import { data as regions } from "./sections/regions";
import { threads } from "./sections/threads";
import { io } from "./sections/io";
import { curves } from "./sections/curves";
import { memory } from "./sections/memory";
import { levels } from "./sections/levels";
import { trust } from "./sections/trust";

const VERSION = 2;

function read(): Data {
  const text = document.getElementById("data")?.textContent ?? "";
  const data = JSON.parse(text) as Data;
  if (data.page_version !== VERSION) throw new Error(`data of version ${data.page_version}`);
  return data;
}

function chip(between: (from: number, to: number) => string): HTMLElement {
  const text = h("span", { role: "status", "aria-live": "polite" });
  const reset = h("button", { class: "small", click: () => select(null) }, "Show all");
  const element = h("div", { class: "chip", hidden: true }, text, reset);
  follow(() => {
    const [from, to] = current();
    element.hidden = isWhole();
    text.textContent = isWhole() ? "" : `Selected: ${between(from, to)}`;
  });
  return element;
}

/** The sections of a recording, of curves, or of running processes. */
function sectionsOf(data: Data): Section[] {
  const timeline = data.summary?.timeline;
  const ends = [timeline?.duration_ns, data.summary?.run.duration_ns, data.summary?.io?.over_time?.duration_ns];
  setWhole(Math.max(1, ...ends.map((end) => end ?? 0)));
  const screen = overviewOf(data);
  return [
    screen,
    advice(data, screen === null),
    python(data),
    hot(data),
    calls(data),
    regions(data),
    levels(data),
    ...overTime(data),
    codeRegions(data),
    io(data),
    curves(data),
    memory(data),
    threads(data),
    trust(data),
  ].filter((section): section is Section => section !== null);
}

function build(data: Data): void {
  const sections = data.fleet ? fleetSections(data, data.fleet) : sectionsOf(data);
  const between = data.fleet ? datesBetween : (from: number, to: number) => `${time(from, to)} to ${time(to)}`;
  const links = sections.map((s) => h("a", { href: `#${s.id}` }, s.short));
  const box = searchBox();
  const jump = h("select", { class: "jump", "aria-label": "Go to a section" }, ...sections.map((s) => h("option", { value: s.id }, s.short)));
  jump.addEventListener("change", () => (goTo(jump.value), keepSection(jump.value)));
  const theme = h("button", { class: "small theme", title: "Colours: auto, light or dark" }, "◐ auto");
  theme.addEventListener("click", () => (theme.textContent = `◐ ${nextTheme()}`));
  const nav = h("nav", { "aria-label": "Sections" }, h("div", { class: "links" }, ...links), jump, box, theme, chip(between));
  const main = h("main", { id: "top" });
  for (const section of sections) add(main, section.element);
  add(
    document.body,
    h("a", { class: "skip", href: `#${sections[0]?.id ?? "top"}` }, "Skip to the overview"),
    data.fleet ? fleetHeader(data, data.fleet) : header(data),
    nav,
    main,
    h("footer", {}, `Made by memgauge ${name(data.memgauge)}.${data.served === null ? " This file needs no network." : ""}`),
  );
  watchTheme();
  watchParts(data);
  drawCurves();
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && event.target === document.body) keys(event);
  });
  follow((chosen) => keep("range", chosen === null ? null : chosen.map(Math.round).join("-")));
  // A link within the page keeps what else its address says.
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element ? event.target.closest("a") : null;
    const id = link?.getAttribute("href")?.match(/^#([\w-]+)$/)?.[1];
    if (id === undefined || goTo(id) === null) return;
    event.preventDefault();
    keepSection(id);
  });
  const range = kept("range")?.split("-").map(Number);
  if (range?.length === 2 && range.every(Number.isFinite)) select([range[0], range[1]]);
  startKeeping();
  if (keptSection() !== "") {
    jump.value = keptSection();
    // Graphs take their room with the next frame.
    requestAnimationFrame(() => requestAnimationFrame(() => goTo(keptSection())));
  }
  document.documentElement.setAttribute("data-ready", "");
}

function goTo(id: string): HTMLElement | null {
  const target = document.getElementById(id);
  target?.scrollIntoView();
  return target;
}

try {
  build(read());
} catch (error) {
  const text = `This report cannot be shown: ${String(error)}. Write it again with \`memgauge report --html\`.`;
  add(document.body, h("p", { class: "failed", role: "alert" }, text));
  throw error;
}
