"""The programs the benchmarks run, and the inputs they run on.

Inputs are made once into target/bench/inputs, from fixed seeds. Only
Random.random() is used: Python promises the same sequence from it in every
version, so the same files on every machine.
"""

import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
TARGET = ROOT / "target" / "bench"
INPUTS = TARGET / "inputs"

TEXT_BYTES = 12_000_000
VOCABULARY = 20_000
NUMBERS = 2_000_000
LETTERS = "etaoinshrdlucmfwypvbgkjqxz"


@dataclass(frozen=True)
class Job:
    """One program: its command line, its input, and the most memgauge may take
    as a multiple of cachegrind's wall time."""

    name: str
    argv: list
    goal: float
    stdin: Path = Path(os.devnull)


def all_jobs():
    text, numbers = str(INPUTS / "text"), str(INPUTS / "numbers")
    return [
        Job("xz", ["xz", "-3", "-T1", "-k", "-c", text], 0.6),
        Job("sort", ["sort", "-n", "--parallel=1", numbers], 0.6),
        Job("sqlite3", ["sqlite3", ":memory:"], 0.6, BENCH / "join.sql"),
        Job("python3", ["/usr/bin/python3", str(BENCH / "records.py")], 0.6),
        Job("xz-T2", ["xz", "-3", "-T2", "--block-size=3MiB", "-c", text], 0.4),
    ]


def chosen_jobs(names):
    """The jobs of those names (all where there are none) whose program is here."""
    jobs = [job for job in all_jobs() if not names or job.name in names]
    unknown = set(names or []) - {job.name for job in jobs}
    if unknown:
        raise SystemExit(f"unknown job `{', '.join(sorted(unknown))}`")
    missing = [job for job in jobs if not shutil.which(job.argv[0])]
    for job in missing:
        print(f"{job.name}: skipped, `{job.argv[0]}` is not installed")
    return [job for job in jobs if job not in missing]


def make_inputs():
    INPUTS.mkdir(parents=True, exist_ok=True)
    for name, chunks in (("text", text()), ("numbers", numbers())):
        if not (INPUTS / name).exists():
            unfinished = INPUTS / f"{name}.part"
            with open(unfinished, "w", encoding="ascii") as file:
                file.writelines(chunks)
            unfinished.rename(INPUTS / name)


def text():
    """Words in lines of about ten, TEXT_BYTES in all. The rank of a word follows a
    Pareto distribution of shape 0.7: few words are most of the text."""
    source = random.Random(1)
    words = [word(source) for _ in range(VOCABULARY)]
    left = TEXT_BYTES
    while left:
        rank = int((1 - source.random()) ** (-1 / 0.7))
        separator = " \n " if source.random() < 0.1 else " "
        chunk = (words[min(rank, VOCABULARY - 1)] + separator)[:left]
        left -= len(chunk)
        yield chunk


def word(source):
    length = 2 + int(source.random() * 8)
    return "".join(LETTERS[int(source.random() * len(LETTERS))] for _ in range(length))


def numbers():
    source = random.Random(2)
    return (f"{int(source.random() * 10**9)}\n" for _ in range(NUMBERS))
