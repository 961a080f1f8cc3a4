"""Miss-ratio curves: how many misses a least-recently-used memory of any size has."""

from __future__ import annotations

import array
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Union

from . import _memgauge
from ._memgauge import UsageError
from .table import Table, require

CHUNK = 1 << 20
"""Addresses that are passed on at once: 8 MiB."""


class MissCurve:
    """A miss-ratio curve."""

    def __init__(self, inner: _memgauge.MissCurve) -> None:
        self._inner = inner

    @property
    def table(self) -> Table:
        """Points: `bytes` of memory, `misses`, `miss_ratio` (0 to 1), `half_band_95`.

        `half_band_95` is half the width of the miss ratio's 95 % interval, `None` where the curve is
        exact.
        """
        return Table(self._inner.points())

    def at(self, sizes: Sequence[int]) -> Table:
        """The same at sizes in bytes."""
        return Table(self._inner.points([int(size) for size in sizes]))

    def miss_ratio(self, size: int) -> Optional[float]:
        """Miss ratio (0 to 1) of a memory of `size` bytes; `None` where a sample does not tell."""
        ratio: Optional[float] = self.at([size])["miss_ratio"][0]
        return ratio

    @property
    def facts(self) -> Dict[str, Any]:
        """What `memgauge mrc --json` says about the curve (docs/mrc.md)."""
        facts: Dict[str, Any] = self._inner.json()
        return facts

    @property
    def knees(self) -> List[Dict[str, Any]]:
        """Sizes in bytes from which on more memory helps little, with their benefit (0 to 1)."""
        return list(self.facts["knees"])

    def __repr__(self) -> str:
        facts = self.facts
        return f"<memgauge.MissCurve {facts['title']!r}: {facts['references']:.0f} references>"

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


def mrc(
    addresses: Any, block: int = 64, sample: Optional[float] = None, title: str = "addresses"
) -> MissCurve:
    """The miss-ratio curve of addresses in order.

    `addresses` is a numpy array, an Arrow or polars column, another sequence of integers, or an
    iterator of these, of which one is in memory at a time. `block` is the size of a block in bytes, a
    power of two: 64 for cache lines, 4096 for pages, 1 if the addresses are numbers of blocks.
    `sample` is the share of the blocks to use (0 to 1); without it the curve is exact.
    """
    builder = _memgauge.CurveBuilder(block, sample)
    for batch in batches(addresses):
        for chunk in chunks(batch):
            builder.feed(chunk)
    return MissCurve(builder.finish(title))


def batches(addresses: Any) -> Iterable[Any]:
    """Addresses in batches."""
    if isinstance(addresses, Iterator):
        return addresses
    # A pyarrow.ChunkedArray.
    chunks = getattr(addresses, "chunks", None)
    return chunks if isinstance(chunks, list) else [addresses]


def chunks(batch: Any) -> Iterator[bytes]:
    """Addresses of a batch as bytes."""
    view = memoryview(_integers(batch)).cast("B")
    for start in range(0, len(view), 8 * CHUNK):
        yield view[start : start + 8 * CHUNK].tobytes()


def _integers(batch: Any) -> Union[memoryview, array.array[int]]:
    """The batch as a contiguous buffer of integers of 64 bits."""
    if hasattr(batch, "to_numpy"):
        nulls = getattr(batch, "null_count", 0)
        if (nulls() if callable(nulls) else nulls) > 0:
            raise UsageError("failed to read addresses: some are null; drop them first")
        try:
            batch = batch.to_numpy(zero_copy_only=False)
        except TypeError:
            batch = batch.to_numpy()
    if hasattr(batch, "dtype"):
        if batch.dtype.kind not in "ui":
            raise UsageError(f"failed to read addresses of type {batch.dtype}: use integers")
        numpy = require("numpy", "read addresses")
        return memoryview(numpy.ascontiguousarray(batch, dtype=f"{batch.dtype.kind}8"))
    try:
        view = memoryview(batch)
    except TypeError:
        return array.array("Q", batch)
    if view.itemsize != 8 or view.format not in ("Q", "q", "L", "l", "N", "n"):
        raise UsageError(f"failed to read addresses of format `{view.format}`: use 64-bit integers")
    return view
