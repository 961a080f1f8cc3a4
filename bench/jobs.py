"""The programs the benchmarks run, and the inputs they run on.

Inputs are made once into target/bench/inputs, from fixed seeds. Only
Random.random() is used: Python promises the same sequence from it in every
version, so the same files on every machine.
"""

import os
import random
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
TARGET = ROOT / "target" / "bench"
ENGINE = ROOT / "target" / "engine" / "memgauge-engine"
INPUTS = TARGET / "inputs"

TEXT_BYTES = 12_000_000
VOCABULARY = 20_000
NUMBERS = 2_000_000
FUNCTIONS = 400
AWK = "{ seen[$1 * 7919 % 100003] += $1 } END { for (k in seen) s += seen[k]; print s }"
PERL = "$n{lc $_}++ for /\\w+/g; END { print scalar(keys %n), qq(\\n) }"
# A server and its client, which both tools follow.
REDIS = """
folder=$(mktemp -d)
redis-server --port 0 --unixsocket $folder/socket --save '' --dir $folder >/dev/null &
until redis-cli -s $folder/socket ping >/dev/null 2>&1; do sleep 0.2; done
redis-benchmark -s $folder/socket -q -c 4 -n $1 -r 100000 -t set,get,lpush >/dev/null
redis-cli -s $folder/socket shutdown nosave
wait
rm -r $folder
"""
NUMPY = ROOT / "target" / "test-packages" / "python" / "bin" / "python3"
LETTERS = "etaoinshrdlucmfwypvbgkjqxz"


@dataclass(frozen=True)
class Job:
    """One program: its command line, its input, and the most memgauge may take
    as a multiple of cachegrind's wall time; no goal is set for programs that nobody
    tuned memgauge for."""

    name: str
    argv: list
    goal: float | None
    stdin: Path = Path(os.devnull)
    # Other programs that it starts.
    starts: tuple = ()


def folder_of(scale):
    return INPUTS if scale == 1 else INPUTS.with_name(f"inputs-{scale}")


def all_jobs(scale=1):
    inputs = folder_of(scale)
    text, numbers = str(inputs / "text"), str(inputs / "numbers")
    return [
        Job("xz", ["xz", "-3", "-T1", "-k", "-c", text], 0.6),
        Job("sort", ["sort", "-n", "--parallel=1", numbers], 0.6),
        Job("sqlite3", ["sqlite3", ":memory:"], 0.6, BENCH / "join.sql"),
        Job("python3", ["/usr/bin/python3", str(BENCH / "records.py")], 0.6),
        Job("xz-T2", ["xz", "-3", "-T2", f"--block-size={int(TEXT_BYTES * scale / 4)}", "-c", text], 0.4),
        Job("gzip", ["gzip", "-9", "-c", text], None),
        Job("zstd", ["zstd", "-10", "-q", "-c", text], None),
        Job("bzip2", ["bzip2", "-c", text], None),
        Job("mawk", ["mawk", AWK, numbers], None),
        Job("gawk", ["gawk", AWK, numbers], None),
        Job("perl", ["perl", "-ne", PERL, text], None),
        Job("openssl", ["openssl", "enc", "-aes-256-cbc", "-pbkdf2", "-k", "key", "-in", text], None),
        Job("numpy", [str(NUMPY), str(BENCH / "arrays.py"), str(scale)], None),
        Job("ffmpeg", ["ffmpeg", "-v", "error", "-f", "lavfi", "-i", f"testsrc=duration={6 * scale}:size=320x240",
                       "-threads", "1", "-c:v", "mpeg4", "-f", "null", "-"], None),
        Job("redis", ["sh", "-c", REDIS, "sh", str(int(160_000 * scale))], None,
            starts=("redis-server", "redis-benchmark", "redis-cli")),
        Job("cc1", [cc1(), "-quiet", "-O2", str(inputs / "functions.c"), "-o", "/dev/null"], None),
    ]


def cc1():
    """gcc's compiler proper; its name alone where gcc is not here."""
    try:
        found = subprocess.run(["gcc", "-print-prog-name=cc1"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "cc1"
    return found.stdout.strip() or "cc1"


def chosen_jobs(names, scale=1):
    """The jobs of those names (all where there are none) whose program is here."""
    jobs = [job for job in all_jobs(scale) if not names or job.name in names]
    unknown = set(names or []) - {job.name for job in jobs}
    if unknown:
        raise SystemExit(f"unknown job `{', '.join(sorted(unknown))}`")
    here = []
    for job in jobs:
        missing = [program for program in (job.argv[0], *job.starts) if not shutil.which(program)]
        if missing:
            print(f"{job.name}: skipped, `{missing[0]}` is not installed")
        else:
            here.append(job)
    return here


def make_inputs(scale=1):
    """The inputs, or so much of each; those of sqlite3 and python3 have one size."""
    inputs = folder_of(scale)
    inputs.mkdir(parents=True, exist_ok=True)
    for name, make in (("text", text), ("numbers", numbers), ("functions.c", functions)):
        if not (inputs / name).exists():
            unfinished = inputs / f"{name}.part"
            with open(unfinished, "w", encoding="ascii") as file:
                file.writelines(make(scale))
            unfinished.rename(inputs / name)


def text(scale):
    """Words in lines of about ten, TEXT_BYTES in all. The rank of a word follows a
    Pareto distribution of shape 0.7: few words are most of the text."""
    source = random.Random(1)
    words = [word(source) for _ in range(VOCABULARY)]
    left = int(TEXT_BYTES * scale)
    while left:
        rank = int((1 - source.random()) ** (-1 / 0.7))
        separator = " \n " if source.random() < 0.1 else " "
        chunk = (words[min(rank, VOCABULARY - 1)] + separator)[:left]
        left -= len(chunk)
        yield chunk


def word(source):
    length = 2 + int(source.random() * 8)
    return "".join(LETTERS[int(source.random() * len(LETTERS))] for _ in range(length))


def numbers(scale):
    source = random.Random(2)
    return (f"{int(source.random() * 10**9)}\n" for _ in range(int(NUMBERS * scale)))


def functions(scale):
    """C that a compiler has work with: loops and branches over arrays."""
    source = random.Random(3)
    for number in range(int(FUNCTIONS * scale)):
        yield f"long f{number}(long *a, long n) {{ long s = {number};\n"
        for _ in range(12):
            k, m = (1 + int(source.random() * 99) for _ in range(2))
            yield (f" for (long i = 0; i < n; i++) {{ if (a[i] % {k} > {m % k}) s += a[(i * {m}) % n];"
                   f" else a[i] ^= s >> {m % 13}; }}\n")
        yield " return s; }\n"
