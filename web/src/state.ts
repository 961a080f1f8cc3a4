// State of the page, kept in the address's fragment: a link to the page as it is now.
//
// `#hot&range=1000-2000&sort-functions=Cycles,desc`: the section, then keys and values.

let section = "";
const values = new Map<string, string>();
let isReady = false;

function read(): void {
  const [first, ...pairs] = location.hash.slice(1).split("&");
  const parts = first.includes("=") ? [first, ...pairs] : pairs;
  section = first.includes("=") ? "" : decode(first);
  for (const pair of parts) {
    const at = pair.indexOf("=");
    if (at > 0) values.set(decode(pair.slice(0, at)), decode(pair.slice(at + 1)));
  }
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

read();

export function kept(key: string): string | null {
  return values.get(key) ?? null;
}

/** The section that the link leads to. */
export function keptSection(): string {
  return section;
}

/** Keeps a value; null forgets it. */
export function keep(key: string, value: string | null): void {
  if (value === null || value === "") values.delete(key);
  else values.set(key, value);
  write();
}

export function keepSection(id: string): void {
  section = id;
  write();
}

/** From here on the address follows what is kept. */
export function startKeeping(): void {
  isReady = true;
}

function write(): void {
  if (!isReady) return;
  const pairs = [...values].map(([key, value]) => `${encodeURIComponent(key)}=${encodeURIComponent(value)}`);
  const fragment = [encodeURIComponent(section), ...pairs].join("&");
  try {
    history.replaceState(null, "", fragment === "" ? location.pathname + location.search : `#${fragment}`);
  } catch {
    // A browser may refuse too many changes in a short time; the next one takes this along.
  }
}
