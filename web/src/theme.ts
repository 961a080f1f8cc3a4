// Light and dark. Canvases are drawn with the colours that the style sheet has, so they
// are drawn again when it changes.

type Listener = () => void;

const listeners: Listener[] = [];

export function onTheme(listener: Listener): void {
  listeners.push(listener);
}

function changed(): void {
  for (const listener of listeners) listener();
}

/** A colour of the style sheet. */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

const CHOICES = ["auto", "light", "dark"] as const;
let choice = 0;

/** The next of auto, light and dark; its name. */
export function nextTheme(): string {
  choice = (choice + 1) % CHOICES.length;
  setTheme(CHOICES[choice]);
  return CHOICES[choice];
}

const systemIsDark = matchMedia("(prefers-color-scheme: dark)");

function setTheme(theme: string): void {
  const dark = theme === "dark" || (theme === "auto" && systemIsDark.matches);
  document.documentElement.setAttribute("data-theme", dark ? "dark" : "light");
  changed();
}

/** Follows the system, and prints in light colours. */
export function watchTheme(): void {
  setTheme(CHOICES[choice]);
  systemIsDark.addEventListener("change", () => setTheme(CHOICES[choice]));
  window.addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details.about")) {
      details.setAttribute("open", "");
    }
    setTheme("light");
  });
  window.addEventListener("afterprint", () => setTheme(CHOICES[choice]));
}
