// Miss-rate curves, where the page has some.

import type { Data, MissCurve } from "../data";
import { caches } from "../data";
import { missRate } from "../missrate";
import { section, Section } from "./section";

export function curves(data: Data): Section | null {
  if (data.curves.length === 0) return null;
  const machine = data.summary?.recording.machine;
  const modelled = machine ? caches(machine) : [];
  const marks = (curve: MissCurve): { name: string; bytes: number }[] => {
    const told = curve.marks ?? [];
    return told.length > 0 ? told : modelled;
  };
  const sampled = data.curves.some((c) => c.provenance !== "exact");
  return section(
    "misses",
    "How much cache it needs",
    "Miss rates",
    {
      provenance: sampled ? "sampled" : "exact",
      definition:
        "Misses that a fully associative memory of each size would have with the least recently used block replaced, as a " +
        "share of the references (or per 1000 instructions); of a cache trace, with each eviction policy. Dashed lines are this machine's caches (for pages its memory). " +
        "The band of a sampled curve holds the exact one with 95 % confidence, size by size.",
    },
    ...data.curves.map((curve) => missRate(curve, marks(curve))),
  );
}
