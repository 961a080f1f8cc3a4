// A stretch of time chosen by dragging over a canvas that shows the selected range.

import { current, select } from "./range";

/** Pixels that a pointer must move to select; less is a click. */
export const SHORTEST_DRAG = 3;

/** The time under a pointer, at most the ends of what the canvas shows. */
export function timeAt(canvas: HTMLCanvasElement, event: PointerEvent): number {
  const box = canvas.getBoundingClientRect();
  const [from, to] = current();
  const share = (event.clientX - box.left) / box.width;
  return from + Math.max(0, Math.min(1, share)) * (to - from);
}

/** What is dragged over now. */
export class Drag {
  private from: number | null = null;
  private to: number | null = null;
  private startX = 0;

  /** `moved` is called while a pointer is on the canvas, and when what is dragged changes. */
  constructor(canvas: HTMLCanvasElement, moved: (event: PointerEvent) => void) {
    const drop = (): void => {
      this.from = this.to = null;
    };
    canvas.addEventListener("pointermove", (event) => {
      if (this.from !== null) this.to = timeAt(canvas, event);
      moved(event);
    });
    canvas.addEventListener("pointerdown", (event) => {
      // A finger scrolls the page.
      if (event.pointerType !== "touch" && event.button === 0) {
        this.from = timeAt(canvas, event);
        this.startX = event.clientX;
        // A drag may leave the canvas, and end outside it.
        canvas.setPointerCapture(event.pointerId);
      }
      moved(event);
    });
    canvas.addEventListener("pointerup", (event) => {
      const { from } = this;
      drop();
      if (from === null) return;
      if (Math.abs(event.clientX - this.startX) >= SHORTEST_DRAG) select([from, timeAt(canvas, event)]);
      moved(event);
    });
    canvas.addEventListener("pointercancel", drop);
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
