"""Times in nanoseconds."""

from __future__ import annotations

import re
from typing import Any, Tuple, Union

from .arguments import number, refused

Time = Union[int, float, str]
"""A time: nanoseconds, or a text such as `10ms`."""

UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


USABLE = "nanoseconds, or a text such as `10ms`, `1.5s` or `200us`"


def span(times: Any) -> Tuple[int, int]:
    """The first and second time in nanoseconds since the recording began."""
    if not isinstance(times, (tuple, list)) or len(times) != 2:
        raise refused("time", times, 'two times, as in ("10ms", "20ms")')
    first, second = nanoseconds(times[0]), nanoseconds(times[1])
    if first > second:
        raise refused("time", times, "the earlier time first")
    return first, second


def nanoseconds(time: Any) -> int:
    """The time in nanoseconds since the recording began."""
    if not isinstance(time, str):
        return int(number(time, "time", USABLE))
    parsed = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ns|us|ms|s)\s*", time, re.ASCII)
    if parsed is None:
        raise refused("time", time, USABLE)
    return round(number(float(parsed[1]) * UNITS[parsed[2]], "time", USABLE))
