"""Miss-ratio curves: how many misses a least-recently-used memory of any size has."""

from __future__ import annotations

import array
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence

from . import _memgauge
from ._memgauge import UsageError
from .arguments import integer, items, refused, share, text
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
        """The same at sizes in bytes.

        Raises:
            UsageError: The sizes are not a list of integers of at least 0.
        """
        wanted = items(sizes, "sizes", "a list of sizes in bytes")
        return Table(self._inner.points([integer(size, "sizes") for size in wanted]))

    def miss_ratio(self, size: int) -> Optional[float]:
        """Miss ratio (0 to 1) of a memory of `size` bytes; `None` where a sample does not tell.

        Raises:
            UsageError: The size is not an integer of at least 0.
        """
        size = integer(size, "size")
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
    """The miss-ratio curve of addresses in order, integers from 0 to 2**64 - 1.

    `addresses` is a numpy array, an Arrow or polars column, another sequence of integers, or an
    iterator of integers or of these, of which one is in memory at a time. `block` is the size of a block in bytes, a
    power of two: 64 for cache lines, 4096 for pages, 1 if the addresses are numbers of blocks.
    `sample` is the share of the blocks to use (0 to 1); without it the curve is exact.

    Raises:
        UsageError: There are no addresses, or one is null, masked, negative or no integer; the array has
            several dimensions; the collection has no order; `block` is not a power of two; `sample` is not above
            0 and at most 1.
        MissingPackageError: numpy is not installed, and the addresses are in an array or column.
        Error: The blocks need too much memory: use `sample`.
    """
    title = text(title, "title")
    builder = _memgauge.CurveBuilder(integer(block, "block", 1), share(sample, "sample"))
    for batch in batches(addresses):
        for chunk in chunks(batch):
            builder.feed(chunk)
    return MissCurve(builder.finish(title))


def batches(addresses: Any) -> Iterable[Any]:
    """Addresses in batches."""
    if isinstance(addresses, Iterator):
        return _grouped(addresses)
    # A pyarrow.ChunkedArray.
    chunks = getattr(addresses, "chunks", None)
    return chunks if isinstance(chunks, list) else [addresses]


def _grouped(batches: Iterator[Any]) -> Iterator[Any]:
    """The batches of an iterator, with single integers collected in lists."""
    integers: List[int] = []
    for batch in batches:
        if isinstance(batch, int):
            integers.append(batch)
            if len(integers) < CHUNK:
                continue
        if integers:
            yield integers
            integers = []
        if not isinstance(batch, int):
            yield batch
    if integers:
        yield integers


def chunks(batch: Any) -> Iterator[bytes]:
    """Addresses of a batch as bytes."""
    view = _integers(batch)
    is_signed = view.format in ("q", "l", "n")
    view = view.cast("B")
    for start in range(0, len(view), 8 * CHUNK):
        chunk = view[start : start + 8 * CHUNK].tobytes()
        if is_signed:
            _memgauge.check_not_negative(chunk)
        yield chunk


def _integers(batch: Any) -> memoryview:
    """The batch as a contiguous buffer of integers of 64 bits."""
    if hasattr(batch, "to_numpy"):
        batch = _column(batch)
    if hasattr(batch, "dtype"):
        return _array(batch)
    try:
        view = memoryview(batch)
    except TypeError:
        return _sequence(batch)
    if view.itemsize != 8 or view.format not in ("Q", "q", "L", "l", "N", "n"):
        raise UsageError(f"failed to read addresses of format `{view.format}`: use 64-bit integers")
    if view.ndim != 1:
        raise _of_dimensions(view.ndim)
    return view if view.contiguous else memoryview(array.array(view.format, view.tolist()))


def _column(column: Any) -> Any:
    """A column of Arrow, polars or pandas as an array of numpy."""
    nulls = getattr(column, "null_count", 0)
    if (nulls() if callable(nulls) else nulls) > 0:
        raise UsageError("failed to read addresses: some are null; drop them first")
    require("numpy", "read addresses")
    try:
        try:
            return column.to_numpy(zero_copy_only=False)
        except TypeError:
            return column.to_numpy()
    except Exception as error:
        raise UsageError(
            f"failed to read addresses of a {type(column).__name__}: {error}; use a column of integers"
        ) from error


def _array(batch: Any) -> memoryview:
    numpy = require("numpy", "read addresses")
    kind = getattr(batch.dtype, "kind", "")
    if kind not in ("u", "i"):
        raise UsageError(f"failed to read addresses of type {batch.dtype}: use integers")
    if numpy.ma.is_masked(batch):
        raise UsageError("failed to read addresses: some are masked; drop them with `.compressed()` first")
    if batch.ndim > 1:
        raise _of_dimensions(batch.ndim)
    return memoryview(numpy.ascontiguousarray(batch, dtype=f"{kind}8"))


def _sequence(batch: Any) -> memoryview:
    """A sequence of Python's integers. Sets and dictionaries have no order of references."""
    if isinstance(batch, str) or not isinstance(batch, Sequence):
        raise refused("addresses", batch, "an array, a column, or a list of integers, or an iterator of them")
    for address in batch:
        # Most are plain integers. `True` is one, too.
        if type(address) is not int or address < 0:
            integer(address, "addresses")
    try:
        return memoryview(array.array("Q", batch))
    except OverflowError:
        raise refused("addresses", max(batch), "integers of at most 64 bits") from None


def _of_dimensions(dimensions: int) -> UsageError:
    return UsageError(
        f"failed to read addresses of an array with {dimensions} dimensions: pass one dimension, "
        "such as `.ravel()` or a column"
    )
