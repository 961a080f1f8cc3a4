// A stretch of time chosen by dragging over a canvas that shows the selected range.

import { current, select } from "./range";

/** The time under a pointer. */
export function timeAt(canvas: HTMLCanvasElement, event: PointerEvent): number {
  const box = canvas.getBoundingClientRect();
  const [from, to] = current();
  return from + ((event.clientX - box.left) / box.width) * (to - from);
}

/** What is dragged over now. */
export class Drag {
  private from: number | null = null;
  private to: number | null = null;

  /** `moved` is called while a pointer is on the canvas, and when what is dragged changes. */
  constructor(canvas: HTMLCanvasElement, moved: (event: PointerEvent) => void) {
    canvas.addEventListener("pointermove", (event) => {
      if (this.from !== null) this.to = timeAt(canvas, event);
      moved(event);
    });
    canvas.addEventListener("pointerdown", (event) => {
      // A finger scrolls the page.
      if (event.pointerType !== "touch") this.from = timeAt(canvas, event);
      moved(event);
    });
    canvas.addEventListener("pointerup", () => {
      const [from, to] = [this.from, this.to];
      this.from = this.to = null;
      if (from !== null && to !== null && from !== to) select([from, to]);
    });
    canvas.addEventListener("pointerleave", () => (this.from = this.to = null));
    canvas.addEventListener("dblclick", () => select(null));
  }

  /** Draws it over a canvas of this size. */
  draw(context: CanvasRenderingContext2D, width: number, height: number, colour: string): void {
    if (this.from === null || this.to === null) return;
    const [start, end] = current();
    const x = [this.from, this.to].map((t) => ((t - start) / (end - start)) * width);
    context.fillStyle = `${colour}40`;
    context.fillRect(Math.min(...x), 0, Math.abs(x[1] - x[0]), height);
  }
}
