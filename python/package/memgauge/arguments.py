"""Checks of arguments. Each returns the argument in the form that the package works with.

All raise `UsageError` with the name of the argument, its value, and what is usable.
"""

from __future__ import annotations

import numbers
import operator
import os
from typing import Any, Iterable, List, Optional, Sequence, Union

from ._memgauge import UsageError

PathLike = Union[str, "os.PathLike[str]"]

MAX_INTEGER = 2**64 - 1

SHOWN_LENGTH = 60
"""Length of values in messages."""


def refused(name: str, value: object, usable: str) -> UsageError:
    """The exception for an argument that cannot be used."""
    try:
        shown = " ".join(repr(value).split())
    except Exception:
        shown = f"an object of type {type(value).__name__}"
    if len(shown) > SHOWN_LENGTH:
        shown = f"{shown[:SHOWN_LENGTH]}…"
    return UsageError(f"failed to use {name}={shown}: use {usable}")


def text(value: Any, name: str) -> str:
    """A text without NUL."""
    if not isinstance(value, str) or "\0" in value or not _is_encodable(value):
        raise refused(name, value, "a text")
    return value


def optional_text(value: Any, name: str) -> Optional[str]:
    """A text or `None`."""
    return None if value is None else text(value, name)


def one_of(value: Any, name: str, known: Sequence[str]) -> str:
    """One of some texts."""
    if not isinstance(value, str) or value not in known:
        raise refused(name, value, " or ".join(f'"{word}"' for word in known))
    return value


def integer(value: Any, name: str, low: int = 0, high: int = MAX_INTEGER) -> int:
    """An integer from `low` to `high`, also of numpy."""
    usable = f"an integer from {low} to {high}"
    if high == MAX_INTEGER:
        usable = f"an integer of at least {low}"
    if isinstance(value, bool):
        raise refused(name, value, usable)
    try:
        found = operator.index(value)
    except TypeError:
        raise refused(name, value, usable) from None
    if not low <= found <= high:
        raise refused(name, value, usable)
    return found


def share(value: Any, name: str) -> Optional[float]:
    """A part of a whole, above 0 and at most 1, or `None`."""
    if value is None:
        return None
    usable = "a number above 0 and at most 1"
    part = number(value, name, usable)
    if not 0 < part <= 1:
        raise refused(name, value, usable)
    return part


def number(value: Any, name: str, usable: str) -> float:
    """A number from 0 to the largest integer, also of numpy."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise refused(name, value, usable)
    real: float = value  # type: ignore[assignment]
    # False for what is not a number.
    if not 0 <= real <= MAX_INTEGER:
        raise refused(name, value, usable)
    return real


def path(value: Any, name: str = "path", usable: str = "a path") -> str:
    """A path or URL as text."""
    if isinstance(value, (str, bytes, os.PathLike)):
        written = os.fsdecode(value)
        if "\0" not in written and _is_file_name(written):
            return written
    raise refused(name, value, usable)


def paths(value: Any, name: str) -> List[str]:
    """A path, or several."""
    if isinstance(value, (str, bytes, os.PathLike)):
        return [path(value, name)]
    return [path(item, name) for item in items(value, name, "a path or a list of paths")]


def items(value: Any, name: str, usable: str) -> List[Any]:
    """The items of a list or another iterable, which is no text."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise refused(name, value, usable)
    try:
        return list(value)
    except TypeError:  # an array without dimensions
        raise refused(name, value, usable) from None


def texts(value: Any, name: str) -> List[str]:
    """A list of texts."""
    usable = "a list of texts"
    return [text(item, name) for item in items(value, name, usable)]


def is_url(name: str) -> bool:
    """Whether a path is a URL: `SCHEME://…`, or `file:/PATH`."""
    return "://" in name or name.startswith("file:/")


def _is_encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_file_name(value: str) -> bool:
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return False
    return True
