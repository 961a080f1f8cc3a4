"""Times in nanoseconds."""

from __future__ import annotations

import re
from typing import Union

from ._memgauge import UsageError

Time = Union[int, float, str]
"""A time: nanoseconds, or a text such as `10ms`."""

UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


def nanoseconds(time: Time) -> int:
    """The time in nanoseconds since the recording began."""
    if isinstance(time, (int, float)):
        return int(time)
    parsed = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ns|us|ms|s)\s*", time)
    if parsed is None:
        raise UsageError(f"failed to read time `{time}`: write it as in `10ms`, `1.5s` or `200us`")
    return round(float(parsed[1]) * UNITS[parsed[2]])
