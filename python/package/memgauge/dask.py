"""Curves of traces and summaries of recordings that are too large for one machine, and datasets of many
recordings, on a cluster of `dask.distributed`.

Each part becomes a state on a worker, the states are merged in a tree, and the last one is the result. It is
equal to that of a single process for any division, number of workers and order.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Union

from . import _memgauge
from ._memgauge import Error, UsageError
from .arguments import PathLike, integer, is_url, items, refused, text
from .arguments import path as path_text
from .arguments import paths as path_texts
from .arguments import share as sample_share
from .curves import MissCurve, batches, chunks
from .recording import Recording
from .recording import open as open_recording
from .table import require

__all__ = ["Indexed", "index", "mrc", "open"]

Inputs = Union[PathLike, Sequence[PathLike]]

MAX_SHARES = 1_000_000

SHARES_PER_THREAD = 4
"""Shares of a recording for each thread of the cluster, so that all are busy to the end."""


def mrc(
    parts: Any,
    block: int = 64,
    client: Optional[Any] = None,
    title: str = "parts",
    sample: Optional[float] = None,
) -> MissCurve:
    """The miss-ratio curve of a trace that is divided by time into parts.

    `parts` are in order of time. A part is what `memgauge.mrc` takes, a future of it, or a function without
    arguments that returns it, which a worker calls. `parts` can also be a Dask array, whose chunks are the
    parts. `block` is the size of a block in bytes. `client` is a `distributed.Client`, by default the current
    one.

    The curve is exact. With `sample`, it is estimated from this share of the blocks (0 to 1), which are chosen by
    their hashes, with 95 % bands from eight disjoint classes of them. It has no estimate for memories of fewer than 16
    sampled blocks. States are then smaller by the same share.

    A worker needs memory for one batch of a part and, while it merges two states, up to 450 bytes for each distinct block (sampled
    block with `sample`). A lost worker's parts are computed again, and parts that were passed as functions are read again.

    Raises:
        UsageError: There are no parts or addresses, there is no cluster, or as for `memgauge.mrc`.
        MissingPackageError: dask.distributed is not installed.
        Error: The blocks need too much memory.
    """
    block, sample, title = integer(block, "block", 1), sample_share(sample, "sample"), text(title, "title")
    client = _client(client, "make a curve on a cluster")
    states = [client.submit(observe, part, block, sample, pure=False) for part in _on_cluster(parts, client)]
    if not states:
        raise UsageError("failed to make a curve: there are no parts")
    whole = _merged(states, merge, client)
    return MissCurve(_memgauge.curve_of_trace_part(whole, title))


def open(
    path: PathLike, client: Optional[Any] = None, shares: Optional[int] = None
) -> Recording:
    """Open a recording whose samples and series the workers of a cluster read.

    The tables and the report of the recording equal those of `memgauge.open`. `path` is one that all
    workers can read: on a shared file system, or a URL in a bucket, of which each worker copies the whole
    recording. `shares` is the number of tasks, by default four for each thread of the cluster. All processes
    need the same version of memgauge.

    A worker needs memory for the sums of its shares, about 100 bytes for each instruction, region of memory
    and call path that has samples, and for the recording's mappings. A lost worker's shares are read
    again. Names of functions and lines are looked up by the calling process. `samples`, `series`, `stacks`
    and plots read the recording there, too.

    Raises:
        UsageError: The recording grows meanwhile, there is no cluster, or `shares` is not an integer of at least 1.
        MissingPackageError: dask.distributed is not installed.
        Error: As for `memgauge.open`.
    """
    if shares is not None:
        shares = integer(shares, "shares", 1, MAX_SHARES)
    client = _client(client, "open a recording on a cluster")
    recording = open_recording(path)
    if shares is None:
        shares = SHARES_PER_THREAD * max(1, sum(client.nthreads().values()))
    states = [
        client.submit(observe_share, recording.path, index, shares, pure=False)
        for index in range(shares)
    ]
    sums = _merged(states, _memgauge.merge_sums, client)
    return Recording(recording._inner, sums)


class Indexed(NamedTuple):
    """What became of the recordings that were found."""

    added: int
    """Recordings that were added. Those that a lost worker had added count as known."""
    known: int
    """Recordings that the dataset had, or that were found several times."""
    unfinished: List[str]
    """Messages about recordings that are still being written, or whose recorder was killed."""
    unreadable: List[str]
    """Messages about damaged recordings and those of a newer format."""


def index(
    inputs: Inputs,
    to: PathLike,
    labels: Optional[Mapping[str, str]] = None,
    client: Optional[Any] = None,
    shares: Optional[int] = None,
) -> Indexed:
    """Add recordings to a dataset, as `memgauge fleet index` does, with the workers of a cluster.

    `inputs` is a folder or URL below which recordings are, or several, and `to` is the dataset: a folder, which
    is made if it does not exist, or a URL. All workers must be able to read and write these. `labels` are those
    of recordings that have none of the name. `shares` is the number of tasks, by default four for each thread
    of the cluster.

    A task adds the recordings whose names' hashes are in its share, and commits them by put-if-absent. So
    a lost worker's share can be done again, copies of a recording count once, and other indexes may run
    at the same time. The dataset's rows are the same for any number of shares and workers; their
    division into files is not, and `memgauge fleet compact` makes few files of them.

    Raises:
        UsageError: There are no inputs or there is no cluster; an argument has another type, or `shares` is not
            an integer of at least 1.
        MissingPackageError: dask.distributed is not installed.
        Error: The inputs cannot be listed, or the dataset cannot be written.
    """
    names = path_texts(inputs, "inputs")
    dataset = _absolute(path_text(to, "to"))
    known = _labels(labels)
    if shares is not None:
        shares = integer(shares, "shares", 1, MAX_SHARES)
    client = _client(client, "index recordings on a cluster")
    if not names:
        raise UsageError("failed to index recordings: there are no inputs")
    if shares is None:
        shares = SHARES_PER_THREAD * max(1, sum(client.nthreads().values()))
    places = [_absolute(name) for name in names]
    if not is_url(dataset):
        try:
            os.makedirs(dataset, mode=0o700, exist_ok=True)
        except OSError as error:
            raise Error(f"failed to make dataset `{dataset}`: {error.strerror}") from error
    tasks = [
        client.submit(index_share, places, dataset, known, share, shares, pure=False)
        for share in range(shares)
    ]
    done = client.gather(tasks)
    return Indexed(
        sum(each["added"] for each in done),
        sum(each["known"] for each in done),
        sorted(message for each in done for message in each["unfinished"]),
        sorted(message for each in done for message in each["unreadable"]),
    )


def index_share(
    inputs: List[str], to: str, labels: Dict[str, str], share: int, shares: int
) -> Dict[str, Any]:
    """Add one share of the recordings to a dataset."""
    indexed: Dict[str, Any] = _memgauge.index_share(inputs, to, labels, share, shares)
    return indexed


def _labels(labels: Any) -> Dict[str, str]:
    if labels is None:
        return {}
    if not isinstance(labels, Mapping):
        raise refused("labels", labels, "a dictionary of texts")
    return {text(name, "labels"): text(value, "labels") for name, value in labels.items()}


def _absolute(name: str) -> str:
    """A name that means the same in the workers' folders."""
    return name if is_url(name) else os.path.abspath(name)


def observe_share(path: str, index: int, shares: int) -> bytes:
    """The state of one share of a recording (versioned bytes)."""
    return open_recording(path)._inner.share_sums(index, shares)


def observe(part: Any, block: int, sample: Optional[float] = None) -> bytes:
    """The state of one part (versioned bytes)."""
    builder = _memgauge.TracePartBuilder(block, sample)
    for batch in batches(part() if callable(part) else part):
        for chunk in chunks(batch):
            builder.feed(chunk)
    return builder.finish()


def merge(left: bytes, right: bytes) -> bytes:
    """The state of two consecutive parts. Associative."""
    return _memgauge.merge_trace_parts(left, right)


def _client(client: Optional[Any], purpose: str) -> Any:
    """The cluster to use."""
    distributed = require("distributed", purpose)
    if client is not None:
        if not hasattr(client, "submit"):
            raise refused("client", client, "a client of dask.distributed")
        return client
    try:
        return distributed.get_client()
    except ValueError as error:
        raise UsageError(
            "failed to find a cluster: make one with `distributed.Client()`, or pass client="
        ) from error


def _merged(states: List[Any], merge: Callable[[bytes, bytes], bytes], client: Any) -> bytes:
    """The state of all, merged in a tree that keeps neighbours together."""
    level = 0
    while len(states) > 1:
        level += 1
        last = states[len(states) // 2 * 2 :]
        pairs = zip(states[::2], states[1::2])
        # Merges come before parts that are not read yet. Otherwise the states of all parts would wait in memory.
        states = [
            client.submit(merge, left, right, pure=False, priority=level) for left, right in pairs
        ] + last
    whole: bytes = states[0].result()
    return whole


def _on_cluster(parts: Any, client: Any) -> Iterable[Any]:
    """The parts as functions and futures."""
    if hasattr(parts, "to_delayed"):
        futures: Iterable[Any] = client.compute(list(parts.to_delayed().ravel()))
        return futures
    return [_shared(part, client) for part in items(parts, "parts", "a list of parts, or a Dask array")]


def _shared(part: Any, client: Any) -> Any:
    """A part that can be an argument of a task: large data would make the graph of tasks large."""
    distributed = require("distributed", "make a curve on a cluster")
    if callable(part) or isinstance(part, distributed.Future):
        return part
    # A list would be divided among the workers.
    return client.scatter([part], hash=False)[0]
