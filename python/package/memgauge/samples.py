"""Samples: rows of a large table, read in batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator, List, Optional

from . import _memgauge
from .table import Table, require

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped, unused-ignore]
    import polars  # type: ignore[import-not-found, unused-ignore]
    import pyarrow  # type: ignore[import-untyped, unused-ignore]


class Batches:
    """Rows in batches of at most 65 536, which can be read once.

    Damaged parts are skipped and listed by `problems`, also by that of the recording.

    Iterate over it, or pass it to a library that takes Arrow streams, such as
    `pyarrow.RecordBatchReader.from_stream`. One batch is in memory at a time.

    Raises:
        DamagedError: While it is read: all parts with such rows are damaged.
        UsageError: Another library has taken the batches.
    """

    def __init__(self, inner: _memgauge.Batches) -> None:
        self._inner = inner

    @property
    def column_names(self) -> List[str]:
        """Names of the columns."""
        return self._inner.column_names

    @property
    def problems(self) -> List[str]:
        """Damaged parts that were skipped so far, in words."""
        return self._inner.problems

    def __iter__(self) -> Iterator[Table]:
        return map(Table, self._inner)

    def to_arrow(self) -> pyarrow.Table:
        """All remaining rows as a `pyarrow.Table`.

        Raises:
            MissingPackageError: pyarrow is not installed.
            DamagedError, UsageError: As for the iteration.
        """
        return require("pyarrow", "make an Arrow table").table(self)

    def to_pandas(self) -> pandas.DataFrame:
        """All remaining rows as a `pandas.DataFrame`.

        Raises:
            MissingPackageError: pandas or pyarrow is not installed.
            DamagedError, UsageError: As for the iteration.
        """
        require("pandas", "make a data frame")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> polars.DataFrame:
        """All remaining rows as a `polars.DataFrame`.

        Raises:
            MissingPackageError: polars is not installed.
            DamagedError, UsageError: As for the iteration.
        """
        frame: polars.DataFrame = require("polars", "make a data frame").DataFrame(self)
        return frame

    def __arrow_c_stream__(self, requested_schema: Optional[object] = None) -> object:
        return self._inner.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self._inner.__arrow_c_schema__()
