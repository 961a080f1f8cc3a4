"""Tables: results by row."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional

from . import _memgauge
from ._memgauge import Error, UsageError
from .arguments import integer

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped, unused-ignore]
    import polars  # type: ignore[import-not-found, unused-ignore]
    import pyarrow  # type: ignore[import-untyped, unused-ignore]

NOTEBOOK_ROWS = 20

PROJECTS = {"hatchet": "llnl-hatchet"}
"""Names of packages in the index, if they differ from those of the modules."""


class MissingPackageError(Error, ImportError):
    """An optional package is not installed."""


def require(package: str, purpose: str) -> Any:
    """Import an optional package."""
    import importlib

    try:
        return importlib.import_module(package)
    except ImportError as error:
        module = package.split(".")[0]
        name = PROJECTS.get(module, module)
        raise MissingPackageError(
            f"failed to {purpose}: {name} is not installed; run `pip install {name}`"
        ) from error


class Table:
    """An Arrow table with one row per function, line, region or another thing.

    Other libraries take it as it is, without a copy: `pyarrow.table(t)`, `polars.DataFrame(t)`.
    `metadata` has the units of the columns.
    """

    def __init__(self, inner: _memgauge.Table) -> None:
        self._inner = inner

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self._inner.num_rows

    @property
    def column_names(self) -> List[str]:
        """Names of the columns."""
        return self._inner.column_names

    @property
    def metadata(self) -> Dict[str, Dict[str, str]]:
        """Facts about the columns by name: `unit`, and `provenance` of event counts."""
        return self._inner.metadata()

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, column: str) -> List[Any]:
        """Values of a column, `None` where there is no number.

        Raises:
            KeyError: The table has no such column.
        """
        names = self.column_names
        if column not in names:
            raise KeyError(f"the table has no column {column!r}; it has {', '.join(names)}")
        return self._inner.column(column)

    def __iter__(self) -> Iterator[Dict[str, Any]]:
        """Rows as dictionaries."""
        columns = self.to_pydict()
        for row in range(self.num_rows):
            yield {name: values[row] for name, values in columns.items()}

    def row(self, index: int) -> Dict[str, Any]:
        """One row as a dictionary. The last row has the index -1.

        Raises:
            UsageError: The table has no such row.
        """
        rows = self.num_rows
        if rows == 0:
            raise UsageError(f"failed to read row {index!r}: the table has no rows")
        index = integer(index, "index", -rows, rows - 1)
        return {name: self._inner.column(name)[index] for name in self.column_names}

    def to_pydict(self) -> Dict[str, List[Any]]:
        """Columns as lists."""
        return {name: self._inner.column(name) for name in self.column_names}

    def to_arrow(self) -> pyarrow.Table:
        """A `pyarrow.Table`, without a copy.

        Raises:
            MissingPackageError: pyarrow is not installed.
        """
        return require("pyarrow", "make an Arrow table").table(self)

    def to_pandas(self) -> pandas.DataFrame:
        """A `pandas.DataFrame`.

        Raises:
            MissingPackageError: pandas is not installed.
        """
        pandas = require("pandas", "make a data frame")
        try:
            frame = self.to_arrow().to_pandas()
        except MissingPackageError:
            frame = pandas.DataFrame(self.to_pydict())
        return frame

    def to_polars(self) -> polars.DataFrame:
        """A `polars.DataFrame`, without a copy.

        Raises:
            MissingPackageError: polars is not installed.
        """
        frame: polars.DataFrame = require("polars", "make a data frame").DataFrame(self)
        return frame

    def __arrow_c_stream__(self, requested_schema: Optional[object] = None) -> object:
        return self._inner.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self._inner.__arrow_c_schema__()

    def __repr__(self) -> str:
        return f"<memgauge.Table: {self.num_rows} rows; {', '.join(self.column_names)}>"

    def _repr_html_(self) -> str:
        names = [name for name in self.column_names if any(v is not None for v in self[name])]
        columns = [self[name][:NOTEBOOK_ROWS] for name in names]
        head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
        rows = ["".join(f"<td>{cell(value)}</td>" for value in row) for row in zip(*columns)]
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        more = self.num_rows - NOTEBOOK_ROWS
        note = f"<p>{more} more rows</p>" if more > 0 else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"


def cell(value: object) -> str:
    """A value as HTML."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return html.escape(", ".join(map(str, value)))
    return html.escape(str(value))
