"""Comparisons of runs, and gates on them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Union

from . import _memgauge
from ._memgauge import Error, UsageError
from .arguments import PathLike, items, optional_text, texts
from .arguments import path as path_text
from .recording import Recording, is_in_bucket, local_path, open
from .table import Table

Run = Union[Recording, PathLike]
"""A recording, its path, or the path of a baseline file (`memgauge report --baseline FILE`)."""


RUNS = "a recording, its path, a baseline file, or a list of these"


class GateFailed(Error, AssertionError):
    """A gate failed. The message has both values."""


class Diff:
    """Two runs, or two groups of runs, compared."""

    def __init__(self, inner: _memgauge.Comparison) -> None:
        self._inner = inner

    @property
    def report(self) -> Dict[str, Any]:
        """What `memgauge diff --json` prints (docs/diff.md)."""
        report: Dict[str, Any] = self._inner.json()
        return report

    @property
    def changed(self) -> bool:
        """Whether any number differs; of groups, by more than chance."""
        return bool(self.report["changed"])

    @property
    def metrics(self) -> Table:
        """Numbers of the whole runs: before, after, difference, relative difference.

        `difference_low` and `difference_high` are its 95 % interval, if groups or estimates are
        compared.
        """
        return Table(self._inner.metrics())

    @property
    def functions(self) -> Table:
        """Functions that changed, with their share (0 to 1) of the change."""
        return Table(self._inner.functions())

    @property
    def lines(self) -> Table:
        """Lines that changed."""
        return Table(self._inner.lines())

    def failed(self, *gates: str) -> List[str]:
        """A sentence for each gate that fails, and one about what kind of change it is.

        Raises:
            UsageError: It is not the text of a gate, or the runs have no such number.
            Error: One of the runs lacks the number.
        """
        return self._inner.failed_gates(texts(gates, "gates"))

    def gate(self, *gates: str) -> Diff:
        """Raise `GateFailed` if one of the gates fails, such as `cycles > +2%` (docs/diff.md).

        Raises:
            GateFailed: A gate fails.
            UsageError, Error: As for `failed`.
        """
        failed = self.failed(*gates)
        if failed:
            raise GateFailed("\n".join(failed))
        return self

    def __repr__(self) -> str:
        return f"<memgauge.Diff: {'changed' if self.changed else 'unchanged'}>"

    def _repr_html_(self) -> str:
        return self.metrics._repr_html_()


def diff(
    before: Union[Run, Sequence[Run]], after: Union[Run, Sequence[Run]], event: Optional[str] = None
) -> Diff:
    """Compare two runs, or two lists of at least two repeated runs each.

    Differences of lists have 95 % confidence intervals. `event` ranks functions and lines.

    Raises:
        UsageError: An argument is not a run or a list of runs; a list has only one run, has a run twice, or its
            runs were not recorded alike; not all runs have counts of the event.
        Error: A run cannot be read, as for `open`.
    """
    event = optional_text(event, "event")
    groups = [_group(before, "before"), _group(after, "after")]
    sizes = [len(group) for group in groups]
    if min(sizes) == 0 or (max(sizes) > 1 and min(sizes) == 1):
        raise UsageError(
            "failed to compare groups: one has no or only one run, which has no spread: name two or more"
        )
    _check_distinct([run for group in groups if len(group) > 1 for run in group])
    measured = [[_measure(run, event) for run in group] for group in groups]
    return Diff(_memgauge.Comparison(measured[0], measured[1], event))


def baseline(run: Run, path: PathLike) -> None:
    """Write the numbers of a run as a baseline file, as `memgauge report --baseline` does.

    Raises:
        UsageError: An argument is not a run or a path.
        Error: The run cannot be read, as for `open`, or the file cannot be written.
    """
    file = path_text(path)
    text = _measure(_run(run, "run"), None).baseline()
    try:
        Path(file).write_text(text)
    except OSError as error:
        raise Error(f"failed to write `{file}`: {error.strerror}") from error


def _group(runs: Any, name: str) -> List[Union[Recording, str]]:
    if isinstance(runs, (Recording, str, bytes, os.PathLike)):
        return [_run(runs, name)]
    return [_run(run, name) for run in items(runs, name, RUNS)]


def _run(run: Any, name: str) -> Union[Recording, str]:
    return run if isinstance(run, Recording) else path_text(run, name, RUNS)


def _path(run: Union[Recording, str]) -> str:
    if isinstance(run, Recording):
        return run.path
    return run if is_in_bucket(run) else local_path(run)


def _check_distinct(runs: Sequence[Union[Recording, str]]) -> None:
    seen = set()
    for path in map(_path, runs):
        real = os.path.realpath(path)
        if real in seen:
            raise UsageError(
                f"failed to compare groups: `{path}` is named twice: name each run once, in one group"
            )
        seen.add(real)


def _measure(run: Union[Recording, str], event: Optional[str]) -> _memgauge.Run:
    if not isinstance(run, Recording) and is_in_bucket(run):
        run = open(run)
    if isinstance(run, Recording):
        return _memgauge.Run.of_recording(run._inner, event)
    path = local_path(run)
    if os.path.isfile(path) and not _memgauge.is_recording(path):
        try:
            text = Path(path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise Error(f"failed to read `{path}`: {error}") from error
        return _memgauge.Run.of_baseline(text, path)
    return _memgauge.Run.of_recording(_memgauge.Recording(path), event)
