"""Curves of traces that no single machine holds, on a cluster of `dask.distributed`.

Each part of a trace becomes a state on a worker. States of neighbours are merged in a tree, and the last
one is the whole curve, equal to that of `memgauge.mrc` for any division, number of workers and order.
"""

from __future__ import annotations

from typing import Any, Iterable, Optional

from . import _memgauge
from ._memgauge import UsageError
from .curves import MissCurve, batches, chunks
from .table import require


def mrc(
    parts: Any, block: int = 64, client: Optional[Any] = None, title: str = "parts"
) -> MissCurve:
    """The exact miss-ratio curve of a trace that is divided by time into parts.

    `parts` are in order of time. A part is what `memgauge.mrc` takes, a future of it, or a function without
    arguments that returns it, which a worker calls. `parts` can also be a Dask array, whose chunks are the
    parts. `block` is the size of a block in bytes. `client` is a `distributed.Client`, by default the current
    one.

    A worker needs memory for one batch of a part and 32 bytes for each distinct block. A lost worker's
    parts are computed again, and parts that were passed as functions are read again.
    """
    distributed = require("distributed", "make a curve on a cluster")
    if client is None:
        try:
            client = distributed.get_client()
        except ValueError as error:
            raise UsageError(
                "failed to find a cluster: make one with `distributed.Client()`, or pass client="
            ) from error
    states = [client.submit(observe, part, block, pure=False) for part in _on_cluster(parts, client)]
    if not states:
        raise UsageError("failed to make a curve: there are no parts")
    while len(states) > 1:
        last = states[len(states) // 2 * 2 :]
        pairs = zip(states[::2], states[1::2])
        states = [client.submit(merge, left, right, pure=False) for left, right in pairs] + last
    return MissCurve(_memgauge.curve_of_trace_part(states[0].result(), title))


def observe(part: Any, block: int) -> bytes:
    """The state of one part (versioned bytes)."""
    builder = _memgauge.TracePartBuilder(block)
    for batch in batches(part() if callable(part) else part):
        for chunk in chunks(batch):
            builder.feed(chunk)
    return builder.finish()


def merge(left: bytes, right: bytes) -> bytes:
    """The state of two consecutive parts. Associative."""
    return _memgauge.merge_trace_parts(left, right)


def _on_cluster(parts: Any, client: Any) -> Iterable[Any]:
    """The parts as functions and futures."""
    if hasattr(parts, "to_delayed"):
        futures: Iterable[Any] = client.compute(list(parts.to_delayed().ravel()))
        return futures
    return [_shared(part, client) for part in parts]


def _shared(part: Any, client: Any) -> Any:
    """A part that can be an argument of a task: large data would make the graph of tasks large."""
    distributed = require("distributed", "make a curve on a cluster")
    if callable(part) or isinstance(part, distributed.Future):
        return part
    # A list would be divided among the workers.
    return client.scatter([part], hash=False)[0]
