// Elements. Names of a recording become text nodes and attribute values, never HTML.

export type Child = Node | string | null | undefined | false;

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Record<string, string | boolean | ((event: Event) => void)> = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(key, value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false) element.setAttribute(key, value);
  }
  add(element, ...children);
  return element;
}

export function add(element: Node, ...children: Child[]): void {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    element.appendChild(typeof child === "string" ? document.createTextNode(child) : child);
  }
}

/** Text whose commands between backquotes are set as code. */
export function withCode(text: string): (Node | string)[] {
  return text.split("`").map((part, i) => (i % 2 === 1 ? h("code", {}, part) : part));
}

/** Gives a canvas a size in CSS pixels; what draws on it, in such pixels too. */
export function sized(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D | null {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context?.scale(ratio, ratio);
  return context;
}

/** Offers text as a file. */
export function save(fileName: string, text: string, type = "text/csv"): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = h("a", { href: url, download: fileName });
  document.body.appendChild(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** Rows as CSV. A cell that a spreadsheet would take for a formula is kept text. */
export function csv(rows: (string | number | null)[][]): string {
  const cell = (value: string | number | null): string => {
    if (value === null) return "";
    if (typeof value === "number") return String(value);
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
    return /[",\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
}
