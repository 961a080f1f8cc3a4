"""Memory profiles in Python.

>>> import memgauge as mg
>>> rec = mg.record(["ls"])
>>> rec.totals["llc.miss"].provenance
'modelled'

A recording comes from `memgauge record` or from `record`. Its results are those of
`memgauge report --json`, computed by the same code. Tables support Arrow's PyCapsule interface:
pyarrow, polars and DuckDB read them without a copy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ._memgauge import (
    DamagedError,
    Error,
    NewerVersionError,
    NotARecordingError,
    UsageError,
    __version__,
)
from .comparison import Diff, GateFailed, baseline, diff
from .curves import MissCurve, mrc
from .plots import plot_curve
from .program import RecordError, record
from .recording import Recording, Total, Totals, open
from .recordings import Recordings, open_many
from .regions import roi, value
from .table import MissingPackageError, Table


if TYPE_CHECKING:
    from . import dask as dask
else:
    # A type checker would take every name for one of the module.
    def __getattr__(name):
        """`memgauge.dask` is imported when it is first used."""
        if name == "dask":
            return importlib.import_module(".dask", __name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "DamagedError",
    "Diff",
    "Error",
    "GateFailed",
    "MissCurve",
    "MissingPackageError",
    "NewerVersionError",
    "NotARecordingError",
    "RecordError",
    "Recording",
    "Recordings",
    "Table",
    "Total",
    "Totals",
    "UsageError",
    "__version__",
    "baseline",
    "diff",
    "mrc",
    "open",
    "open_many",
    "plot_curve",
    "record",
    "roi",
    "value",
]
