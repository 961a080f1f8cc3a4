"""The programs that overflow traces are tried on, and inputs that are the same each time."""

import os
import random
import sys

PYTHON = """
import random
random.seed(1)
d = {random.random(): i for i in range(150000)}
s = sum(d[k] for k in d)
l = sorted(d)
"""
SQL = """
create table t(a integer primary key, b integer, c text);
with recursive n(x) as (select 1 union all select x + 1 from n where x < 60000)
  insert into t select x, (x * 7919) % 100003, hex(x * 104729) from n;
create index i on t(b);
select count(*), sum(b) from t where b between 1000 and 50000;
select c from t order by c limit 3;
"""
AWK = "{ seen[$1 * 7919 % 100003] += $1 } END { for (k in seen) s += seen[k]; print s }"
PERL = "my %h; $h{$_ * 7919 % 1000003} = $_ for 1..120000; my $s = 0; $s += $h{$_} for keys %h; print $s"


def jobs(folder, workloads, pieces=1500, numbers=300_000):
    """Name and command of every run, on inputs of so many pieces of 4000 bytes and numbers."""
    mixed = random.Random(1)
    path = lambda name: os.path.join(folder, name)
    with open(path("data"), "wb") as out:
        for _ in range(pieces):
            out.write(mixed.randbytes(1000) + bytes(mixed.choices(b"memory ", k=3000)))
    with open(path("lines"), "w") as out:
        order = list(range(numbers))
        mixed.shuffle(order)
        out.writelines(f"{n}\n" for n in order)
    for name, text in [("p.py", PYTHON), ("q.sql", SQL)]:
        with open(path(name), "w") as out:
            out.write(text)
    yield "linear (worst case)", [workloads, "linear", "--bytes", "64MiB", "--stride", "64"]
    yield "xz", ["xz", "-3", "-kc", path("data")]
    yield "gzip", ["gzip", "-1", "-c", path("data")]
    yield "sort", ["sort", "--parallel=1", "-n", path("lines")]
    yield "sqlite3", ["sqlite3", ":memory:", f".read {path('q.sql')}"]
    yield "python3", [sys.executable, path("p.py")]
    yield "perl", ["perl", "-e", PERL]
    with open(path("data"), "rb") as data, open(path("small"), "wb") as out:
        out.write(data.read(1_500_000))
    yield "bzip2", ["bzip2", "-1", "-kc", path("small")]
    yield "awk", ["awk", AWK, path("lines")]
