"""Recordings: what `memgauge report` says about them."""

from __future__ import annotations

import contextlib
import html
import os
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple
from urllib.parse import unquote, urlsplit

from . import _memgauge
from ._memgauge import UsageError
from .arguments import PathLike, integer, is_url, one_of, optional_text, share, text, texts
from .arguments import path as path_text
from .curves import MissCurve
from .plots import Plots
from .samples import Batches
from .stacks import Stacks
from .table import Table, cell
from .times import Time, span

BUCKETS = ("s3://", "gs://")
"""What URLs of objects in buckets begin with."""

REPORT_ROWS = 10

MAX_ROWS = 2**32
"""More than any table has."""

MAX_BINS = 1_000_000

SERIES_BINS = 480
"""Bins of a curve over time, as in the report."""

PROVENANCES = ["counted", "sampled", "estimated", "modelled"]
"""Ways to obtain a number, from the most to the least direct."""


def open(path: PathLike) -> Recording:
    """Open a recording: a directory, a file of `memgauge pack`, or a URL `file://`, `s3://` or `gs://`.

    A recording in a bucket is copied to a private temporary file, which is removed with the recording.

    Only the manifest and the footers of the parts are read. Damaged parts are skipped and listed by
    `Recording.problems`. A recording that is still being written can be opened; it has the parts
    written so far.

    Raises:
        NotARecordingError: There is no recording at the path.
        NewerVersionError: A newer memgauge wrote it.
        DamagedError: It cannot be read, not even in part.
        UsageError: The argument is not a path, or the URL cannot be used.
        Error: The file system or the bucket fails.
    """
    name = path_text(path)
    if is_in_bucket(name):
        folder, _, object_name = name.rpartition("/")
        if not object_name or folder.endswith("/"):
            raise UsageError(
                f"failed to open recording `{name}`: it names no object; write "
                f"`{name[:5]}BUCKET/NAME.mg.tar`"
            )
        return Recording(_memgauge.Bucket(folder).recording(object_name))
    return Recording(_memgauge.Recording(local_path(name)))


def is_in_bucket(path: str) -> bool:
    """Whether a path is a URL of a bucket."""
    return path.startswith(BUCKETS)


def local_path(name: str) -> str:
    """The path of a recording that may be given as a URL: `file:///PATH`, or `file:/PATH`."""
    if not is_url(name):
        return name
    with contextlib.suppress(ValueError):  # such as a broken host
        url = urlsplit(name)
        if url.scheme == "file" and url.netloc in ("", "localhost"):
            return unquote(url.path)
    raise UsageError(
        f"failed to open recording `{name}`: use a path, `file:///PATH`, `s3://BUCKET/NAME.mg.tar` or "
        "`gs://BUCKET/NAME.mg.tar`"
    )


@dataclass(frozen=True)
class Total:
    """An event's sum over the run."""

    name: str
    """The event."""
    value: int
    """The sum in `unit`."""
    unit: str
    """`count`, `bytes` or `cycles`."""
    provenance: str
    """`counted`, `sampled`, `estimated` or `modelled`."""
    interval: Optional[Tuple[int, int]]
    """95 % interval if the value is an estimate, else `None`."""
    description: str
    """Definition of the event."""

    def __int__(self) -> int:
        return self.value

    def __float__(self) -> float:
        return float(self.value)


class Totals(Mapping[str, Total]):
    """Sums over the run by event name."""

    def __init__(self, totals: Dict[str, Total]) -> None:
        self._totals = totals

    def __getitem__(self, event: str) -> Total:
        """The sum of an event.

        Raises:
            KeyError: The recording does not count the event.
        """
        if event not in self._totals:
            known = ", ".join(self._totals)
            raise KeyError(f"the recording has no event `{event}`; it has {known}")
        return self._totals[event]

    def __iter__(self) -> Iterator[str]:
        return iter(self._totals)

    def __len__(self) -> int:
        return len(self._totals)

    def __repr__(self) -> str:
        return repr({name: total.value for name, total in self._totals.items()})

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{h}</th>" for h in ("event", "value", "unit", "95 %", "provenance"))
        rows = "".join(
            "<tr>" + "".join(f"<td>{cell(value)}</td>" for value in _cells(total)) + "</tr>"
            for total in self.values()
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cells(total: Total) -> List[object]:
    interval = total.interval and f"{total.interval[0]:,} to {total.interval[1]:,}"
    return [total.name, total.value, total.unit, interval, total.provenance]


class Recording:
    """A recording. Its tables are computed when they are first asked for, and have all rows.

    Damaged parts are skipped by each method and then listed by `problems`. Every method and property raises
    `Error` if the file system fails while it reads the recording.
    """

    def __init__(self, inner: _memgauge.Recording, sums: Optional[bytes] = None) -> None:
        self._inner = inner
        # Of its samples and series, if other processes have read them.
        self._sums = sums
        self._summaries: Dict[Optional[str], _memgauge.Summary] = {}
        self._export: Optional[_memgauge.Summary] = None

    @property
    def path(self) -> str:
        """Path of the recording, or its URL in a bucket."""
        return self._inner.url or os.fspath(self._inner.path)

    @property
    def manifest(self) -> Dict[str, Any]:
        """Facts about the run: command, machine, source, events (docs/format.md)."""
        manifest: Dict[str, Any] = self._inner.manifest
        return manifest

    @property
    def command(self) -> List[str]:
        """The recorded command line."""
        return list(self.manifest["command"])

    @property
    def complete(self) -> bool:
        """Whether the recorder has finished; false while it writes and if it was killed."""
        return bool(self.manifest["complete"])

    @property
    def problems(self) -> List[str]:
        """Missing and damaged parts, in words.

        Opening a recording verifies the ends of its files. Damage within them is found and listed when a method
        reads them.
        """
        problems = list(self._inner.problems)
        summaries = [*self._summaries.values(), *([self._export] if self._export else [])]
        for summary in summaries:
            problems += [problem for problem in summary.problems if problem not in problems]
        return problems

    @property
    def is_damaged(self) -> bool:
        """Whether a part is missing or damaged, as far as parts have been read."""
        return self._inner.is_damaged

    @property
    def totals(self) -> Totals:
        """Sums over the run by event name, with unit, provenance and interval."""
        manifest = self.manifest
        events = {event["name"]: event for event in manifest["events"]}
        sets = manifest.get("sets") or {"one_in": 1, "estimates": {}}

        # A total without a definition is at most as certain as the other numbers.
        provenances = [event["provenance"] for event in manifest["events"]]
        weakest = max(provenances, key=PROVENANCES.index, default=PROVENANCES[0])

        def total(name: str, value: int, unit: str) -> Total:
            event = events.get(name, {})
            estimate = sets["estimates"].get(name)
            return Total(
                name=name,
                value=value,
                unit=unit,
                provenance=event.get("provenance", weakest),
                interval=(estimate["low"], estimate["high"]) if estimate else None,
                description=event.get("description", ""),
            )

        return Totals({name: total(name, *value) for name, value in self._inner.totals().items()})

    @property
    def losses(self) -> Table:
        """Data that should be in the recording and is not: `kind`, `meaning`, `detail`, `count`."""
        return Table(self._inner.losses())

    def report(self, event: Optional[str] = None, rows: int = REPORT_ROWS) -> Dict[str, Any]:
        """What `memgauge report --json` prints, as a dictionary (docs/metrics.md).

        `event` ranks functions and lines, `rows` limits the tables.

        Raises:
            UsageError: No code location has counts of the event, or `rows` is not an integer of at least 0.
        """
        event = optional_text(event, "event")
        rows = integer(rows, "rows", 0, MAX_ROWS)
        report: Dict[str, Any] = self._new_summary(event, rows).report()
        return report

    def _summary(self, event: Optional[str] = None) -> _memgauge.Summary:
        if event not in self._summaries:
            self._summaries[event] = self._new_summary(event)
        return self._summaries[event]

    def _new_summary(
        self, event: Optional[str] = None, rows: Optional[int] = None
    ) -> _memgauge.Summary:
        if self._sums is None:
            return self._inner.summary(event, rows)
        return self._inner.summary_of_sums(self._sums, event, rows)

    def _export_summary(self) -> _memgauge.Summary:
        if self._export is None:
            self._export = self._inner.export_summary()
        return self._export

    def functions(self, by: Optional[str] = None) -> Table:
        """Functions by the events they caused, most first.

        `by` is an event of `totals`, or `dram_bytes`. By default it is the event that ranks code
        best. `value` is the count of that event in its unit, `share` its part of the total (0 to 1),
        with 95 % intervals where numbers are estimates. A column for each event has its count.

        Raises:
            UsageError: The recording does not have the event, or no counts of it by code location.
        """
        return Table(self._ranked(by).functions())

    def lines(self, by: Optional[str] = None) -> Table:
        """Source lines, with the columns of `functions` and `file` and `line`.

        Raises:
            UsageError: As for `functions`.
        """
        return Table(self._ranked(by).lines())

    def instructions(self, by: Optional[str] = None) -> Table:
        """Instructions, with the columns of `lines`; `offset` is the place in the module's file.

        Raises:
            UsageError: As for `functions`.
        """
        return Table(self._ranked(by).instructions())

    def _ranked(self, by: Any) -> _memgauge.Summary:
        return self._summary(optional_text(by, "by"))

    def regions(self, event: Optional[str] = None) -> Table:
        """Regions of memory by sampled event: name, start, size in bytes, samples, share.

        Raises:
            UsageError: The recording has no samples of the event with addresses.
        """
        return Table(self._summary().regions(optional_text(event, "event")))

    def data(self) -> Table:
        """Allocations, variables and mappings by the cycles that accesses to them stalled, most first.

        `kind` is `allocated` or `mapped`, `share` the part of all stalled cycles (0 to 1). A column for
        each event has its count; `cycles` are stalled cycles. Empty if the source does not see every access.

        Raises:
            Error: The recording cannot be read.
        """
        return Table(self._summary().data())

    def python_lines(self) -> Table:
        """Lines of Python by their cycles, with those of the native code that they ran, most first.

        `function`, `file` and `line` name the line; `share` is its part of the run's cycles (0 to 1),
        `stalled_cycles` are those in which a core waited for memory. A column for each event has its
        count. Empty if no Python ran, or if the source does not see it.

        Raises:
            Error: The recording cannot be read.
        """
        return Table(self._summary().python_lines())

    def types(self) -> Table:
        """Members of types by the cycles that accesses to them stalled: types with most first.

        `type` and `type_bytes` name the type, `member`, `type_name`, `offset`, `bytes` and `count` the
        member; `share` and `miss_share` are its parts of the type's stalled cycles and misses (0 to 1). A
        type without members is one row without a name of a member. A column for each event has its
        count; `cycles` are stalled cycles. Empty if the program has no debug information, or if the
        source does not see every access.

        Raises:
            Error: The recording cannot be read.
        """
        return Table(self._summary().types())

    def heap(self) -> Table:
        """Allocation sites by the bytes in use at the process's peak, most first.

        Allocations and frees, bytes requested, at the peak and never freed, mean lifetime in nanoseconds.
        The report has the call path of each site.

        Raises:
            Error: The recording cannot be read.
        """
        return Table(self._summary().heap())

    def heap_over_time(self) -> Table:
        """Allocated bytes over time, in at most 512 bins.

        `time_ns` is the start of the bin. Rows without a `name` have the maximum of all sites in the bin;
        those of a site have its bytes at the end of the bin. The eight sites with most bytes at some time
        have rows, and `other sites` has the rest. Empty if the source does not record allocations.

        Raises:
            Error: The recording cannot be read.
        """
        return Table(self._summary().heap_over_time())

    def sharing(self, by: str = "line") -> Table:
        """Cache lines that threads share, those that cost most first.

        `by="access"` has a row for each piece of code that accesses such a line: `loaded` and `stored`
        are its bytes of the line, such as `0-7, 16`. `hitm` are misses whose line another core had
        modified, `stall_cycles` the cycles that cores waited. Empty if no lines are shared, or if the
        source does not see every access.

        Raises:
            UsageError: `by` is neither `line` nor `access`.
        """
        if one_of(by, "by", ["line", "access"]) == "line":
            return Table(self._summary().shared_lines())
        return Table(self._summary().shared_accesses())

    def what_if(self) -> Table:
        """The run with the changes of `memgauge record --what-if`.

        `changes` is what one concerns: `program` or `machine`. `busy_ns` is the time in which threads executed, summed; `relative` compares it with the recorded
        machine (-0.2 is 20 % less). A column for each event has its count. All are modelled.

        Raises:
            Error: The recording cannot be read.
        """
        return Table(self._summary().what_if())

    def regions_of_interest(self) -> Table:
        """Regions of interest that the program marked: entries, time, count of each event.

        Raises:
            Error: The recording cannot be read.
        """
        return Table(self._summary().regions_of_interest())

    def threads(self) -> Table:
        """Threads: run time and idle time in nanoseconds, count of each event.

        Raises:
            Error: The recording cannot be read.
        """
        return Table(self._summary().threads())

    def processes(self) -> Table:
        """Processes, with the sums over their threads.

        Raises:
            Error: The recording cannot be read.
        """
        return Table(self._summary().processes())

    def levels(self) -> Table:
        """Cache and TLB levels: lookups, hits, misses, miss ratio (0 to 1) and MPKI.

        Raises:
            Error: The recording cannot be read.
        """
        return Table(self._summary().levels())

    def samples(
        self,
        event: Optional[str] = None,
        time: Optional[Tuple[Time, Time]] = None,
        columns: Optional[Sequence[str]] = None,
    ) -> Batches:
        """Samples in batches, of one event or all, from the first time up to the second.

        Times are nanoseconds since the recording began, or texts such as `10ms`. Columns are those of
        docs/format.md: `time_ns`, `pid`, `tid`, `event` (its number), `ip`, `addr`, `period` and others.

        Raises:
            UsageError: The recording does not have the event, or samples do not have the column; a time is
                neither a number of at least 0 nor such a text.
            DamagedError: All parts with samples are damaged. If they are found to be while they are read, the
                batches raise it.
        """
        times = span(time) if time is not None else None
        names = texts(columns, "columns") if columns is not None else None
        return Batches(self._inner.samples(optional_text(event, "event"), times, names))

    def series(self, event: str, by: Optional[str] = None, bins: int = SERIES_BINS) -> Table:
        """An event over time: `start_ns`, `length_ns`, and `value` in the event's unit.

        `by="tid"` has a curve for each thread. There are at most `bins` bins.

        Raises:
            UsageError: The recording does not have the event; `by` is not `tid`; `bins` is not an integer of at
                least 1 and at most a million.
        """
        if by is not None:
            one_of(by, "by", ["tid"])
        bins = integer(bins, "bins", 1, MAX_BINS)
        return Table(self._inner.series(text(event, "event"), by == "tid", bins))

    def curve(self, block: int = 64, sample: Optional[float] = None) -> MissCurve:
        """The miss-ratio curve of the sampled addresses, as of `memgauge mrc RECORDING`.

        `block` is in bytes. A recording of all accesses gives the exact curve; of samples, misses
        are scaled to all events, and distances are too small. `facts["note"]` says which.

        Raises:
            UsageError: The recording has no addresses; `block` is not a power of two; `sample` is not above 0
                and at most 1.
            Error: The blocks need too much memory.
        """
        block, sample = integer(block, "block", 1), share(sample, "sample")
        return MissCurve(_memgauge.curve_of_recording(self._inner, block, sample))

    def stacks(self, event: Optional[str] = None) -> Stacks:
        """Call stacks of an event, by default of the one with most samples.

        Raises:
            UsageError: The recording does not have the event.
        """
        event = optional_text(event, "event")
        if event is not None:
            self._inner.check_event(event, "show stacks")
        return Stacks(self, event)

    @property
    def plot(self) -> Plots:
        """Plots, with matplotlib."""
        return Plots(self)

    def __repr__(self) -> str:
        return f"<memgauge.Recording {self.path!r}: {' '.join(self.command)}>"

    def _repr_html_(self) -> str:
        command = html.escape(" ".join(self.command))
        problems = "".join(f"<li>{html.escape(problem)}</li>" for problem in self.problems)
        note = f"<p>Not all of it could be read:</p><ul>{problems}</ul>" if problems else ""
        return f"<p><code>{command}</code></p>{self.totals._repr_html_()}{note}"
