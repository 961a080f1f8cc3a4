// The page: reads its data, builds the sections that the recording has something for.

import type { Data } from "./data";
import { drawCurves, keys } from "./curves";
import { add, h } from "./dom";
import { name, time } from "./format";
import { watchParts } from "./part";
import { current, follow, isWhole, select, setWhole } from "./range";
import { nextTheme, watchTheme } from "./theme";
import { header, overview } from "./sections/head";
import { Section } from "./sections/section";
import { overTime } from "./sections/over_time";
import { codeRegions } from "./sections/code_regions";
import { calls } from "./sections/calls";
import { hot } from "./sections/hot";
import { data as regions } from "./sections/regions";
import { threads } from "./sections/threads";
import { io } from "./sections/io";
import { curves } from "./sections/curves";
import { levels } from "./sections/levels";
import { trust } from "./sections/trust";

const VERSION = 1;

function read(): Data {
  const text = document.getElementById("data")?.textContent ?? "";
  const data = JSON.parse(text) as Data;
  if (data.page_version !== VERSION) throw new Error(`data of version ${data.page_version}`);
  return data;
}

function chip(): HTMLElement {
  const text = h("span", { role: "status", "aria-live": "polite" });
  const reset = h("button", { class: "small", click: () => select(null) }, "Show all");
  const element = h("div", { class: "chip", hidden: true }, text, reset);
  follow(() => {
    const [from, to] = current();
    element.hidden = isWhole();
    text.textContent = isWhole() ? "" : `Selected: ${time(from, to)} to ${time(to)}`;
  });
  return element;
}

function build(data: Data): void {
  const timeline = data.summary?.timeline;
  const ends = [timeline?.duration_ns, data.summary?.run.duration_ns, data.io?.over_time?.duration_ns];
  setWhole(Math.max(1, ...ends.map((end) => end ?? 0)));
  const sections: Section[] = [
    overview(data),
    levels(data),
    ...overTime(data),
    codeRegions(data),
    io(data),
    curves(data),
    hot(data),
    calls(data),
    regions(data),
    threads(data),
    trust(data),
  ].filter((section): section is Section => section !== null);
  const links = sections.map((s) => h("a", { href: `#${s.id}` }, s.short));
  const theme = h("button", { class: "small", title: "Colours: auto, light or dark" }, "Colours: auto");
  theme.addEventListener("click", () => (theme.textContent = `Colours: ${nextTheme()}`));
  const nav = h("nav", { "aria-label": "Sections" }, h("div", { class: "links" }, ...links), chip(), theme);
  const main = h("main", { id: "top" });
  for (const section of sections) add(main, section.element);
  add(
    document.body,
    h("a", { class: "skip", href: "#overview" }, "Skip to the overview"),
    header(data),
    nav,
    main,
    h("footer", {}, `Made by memgauge ${name(data.memgauge)}. This file needs no network.`),
  );
  watchTheme();
  watchParts(data);
  drawCurves();
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && event.target === document.body) keys(event);
  });
  document.documentElement.setAttribute("data-ready", "");
}

try {
  build(read());
} catch (error) {
  const text = `This report cannot be shown: ${String(error)}. Write it again with \`memgauge report --html\`.`;
  add(document.body, h("p", { class: "failed", role: "alert" }, text));
  throw error;
}
