"""Several recordings."""

from __future__ import annotations

import glob
import os
import re
from typing import Dict, Iterator, List, Optional, Sequence, Union, overload

from . import _memgauge
from ._memgauge import Error, NotARecordingError, UsageError
from .arguments import PathLike
from .arguments import paths as path_texts
from .recording import BUCKETS, Recording, is_in_bucket, local_path, open
from .table import Table


class Recordings(Sequence[Recording]):
    """Recordings in the order of their paths."""

    def __init__(self, recordings: List[Recording], unreadable: Dict[str, str]) -> None:
        self._recordings = recordings
        self._unreadable = unreadable

    @property
    def table(self) -> Table:
        """A row for each recording: path, labels, command, start, source, machine, and its totals.

        `service`, `host` and `commit` are these labels, as in a dataset of `memgauge fleet`: without them, `service` is the file name of
        the program and `host` the machine's name. `labels` has all labels as `NAME=VALUE`.
        `started_unix_ns` is in nanoseconds since 1970. A column for each event has its total; it is null
        if the recording does not count the event. `problems` lists missing and damaged parts.
        """
        return Table(_memgauge.recordings_table([own._inner for own in self._recordings]))

    @property
    def unreadable(self) -> Dict[str, str]:
        """Why a path could not be opened, by path."""
        return dict(self._unreadable)

    @overload
    def __getitem__(self, index: int) -> Recording: ...

    @overload
    def __getitem__(self, index: slice) -> Recordings: ...

    def __getitem__(self, index: Union[int, slice]) -> Union[Recording, Recordings]:
        """A recording, or some of them, as of a list.

        Raises:
            IndexError: There is no such recording.
            TypeError: The index is neither an integer nor a slice.
        """
        if isinstance(index, slice):
            return Recordings(self._recordings[index], self._unreadable)
        return self._recordings[index]

    def __iter__(self) -> Iterator[Recording]:
        return iter(self._recordings)

    def __len__(self) -> int:
        return len(self._recordings)

    def __repr__(self) -> str:
        unreadable = f", {len(self._unreadable)} unreadable" if self._unreadable else ""
        return f"<memgauge.Recordings: {len(self._recordings)}{unreadable}>"

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


def open_many(paths: Union[PathLike, Sequence[PathLike]]) -> Recordings:
    """Open the recordings that match a pattern, such as `runs/**/*.mg`, or several patterns.

    Patterns may be in a bucket: `s3://bucket/**/*.mg.tar`, `gs://bucket/**/*.mg.tar`.

    A path that cannot be opened is listed by `Recordings.unreadable`. Damaged recordings open; their
    good parts are read.

    Raises:
        NotARecordingError: Nothing matches a pattern.
        UsageError: The argument is not a path or a list of paths, or a URL cannot be used.
        Error: A bucket cannot be listed.
    """
    patterns = path_texts(paths, "paths")
    recordings: Dict[str, Recording] = {}
    unreadable: Dict[str, str] = {}
    for pattern in patterns:
        if is_in_bucket(pattern):
            _open_matching(pattern, recordings, unreadable)
            continue
        pattern = local_path(pattern)
        found = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
        if not found:
            raise NotARecordingError(f"failed to open recordings: nothing matches `{pattern}`")
        for path in found:
            try:
                recordings[path] = open(path)
            except Error as error:
                unreadable[path] = str(error)
    return Recordings([recordings[path] for path in sorted(recordings)], unreadable)


def _open_matching(
    pattern: str, recordings: Dict[str, Recording], unreadable: Dict[str, str]
) -> None:
    """Opens the recordings in a bucket that match a pattern."""
    folders = re.split(r"[*?\[]", pattern, maxsplit=1)[0].rpartition("/")[0]
    if not folders.startswith(BUCKETS):
        raise UsageError(f"failed to open recordings `{pattern}`: name the bucket without a pattern")
    bucket = _memgauge.Bucket(folders)
    try:
        matches = re.compile(_translated(pattern[len(folders) + 1 :])).fullmatch
    except re.error as error:
        raise UsageError(f"failed to open recordings `{pattern}`: {error} in the pattern") from error
    found = [path for path in bucket.objects() if matches(path)]
    if not found:
        raise NotARecordingError(f"failed to open recordings: nothing matches `{pattern}`")
    for path in found:
        url = f"{folders}/{path}"
        try:
            recordings[url] = Recording(bucket.recording(path))
        except Error as error:
            unreadable[url] = str(error)


def _translated(pattern: str) -> str:
    """The regular expression of a pattern, in which only `**` matches a slash."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^]]+\])", pattern)
    meanings = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return "".join(meanings.get(part) or _set(part) or re.escape(part) for part in parts)


def _set(part: str) -> Optional[str]:
    if not (part.startswith("[") and part.endswith("]") and len(part) > 2):
        return None
    inner = part[1:-1].replace("\\", r"\\")
    return f"[^{inner[1:]}]" if inner.startswith("!") else f"[{inner}]"
