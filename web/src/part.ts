// The selected stretch in full, where `memgauge view` serves the page: it is asked for
// when a range is selected, and replaces the coarser bins of the page.

import type { Data, TimedSamples, Timeline } from "./data";
import { current, follow, isWhole, Range } from "./range";

let part: { range: Range; timeline: Timeline } | null = null;
const listeners: (() => void)[] = [];

/** The selected stretch, once it has come. */
export function selectedPart(): Timeline | null {
  const [from, to] = current();
  return part !== null && part.range[0] === from && part.range[1] === to ? part.timeline : null;
}

/** The samples of the selected stretch alone, of the same event. */
export function samplesOfPart(event: string): TimedSamples | null {
  return selectedPart()?.samples.find((s) => s.event === event) ?? null;
}

export function onPart(listener: () => void): void {
  listeners.push(listener);
}

/** Asks for each stretch that stays selected for a moment. */
export function watchParts(data: Data): void {
  const served = data.served;
  if (served === null) return;
  if (served.is_growing) {
    setInterval(() => {
      if (isWhole() && document.visibilityState === "visible") location.reload();
    }, 5000);
  }
  if (data.summary === null) return;
  let waiting = 0;
  follow(() => {
    window.clearTimeout(waiting);
    part = null;
    if (isWhole()) return;
    const [from, to] = [Math.floor(current()[0]), Math.ceil(current()[1])];
    const range = current();
    waiting = window.setTimeout(() => {
      const recording = served.in_dataset ? `&recording=${encodeURIComponent(served.in_dataset.recording)}` : "";
      fetch(`/part?from=${from}&to=${to}&token=${encodeURIComponent(served.token)}${recording}`)
        .then((answer) => (answer.ok ? (answer.json() as Promise<Timeline>) : null))
        .then((timeline) => {
          if (timeline === null || current() !== range) return;
          part = { range, timeline };
          document.documentElement.setAttribute("data-part", `${from}-${to}`);
          for (const listener of listeners) listener();
        })
        .catch(() => undefined);
    }, 200);
  });
}
