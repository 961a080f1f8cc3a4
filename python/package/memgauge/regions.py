"""Regions of interest: parts of a run that the program marks (docs/regions.md)."""

from __future__ import annotations

import contextlib
import inspect
from types import TracebackType
from typing import Any, Callable, Optional, Type, TypeVar

from . import _memgauge
from .arguments import integer, refused, text

Called = TypeVar("Called", bound=Callable[..., Any])


class roi(contextlib.ContextDecorator):
    """A region of interest: `with roi("load"): ...`, or `@roi("load")` on a function.

    Every source that records the program sees it. It belongs to the thread. A mark takes about a
    microsecond, most of it for the call from Python; without a recording it does nothing.

    Raises:
        UsageError: The name is not a text, or the decorated function is a generator or `async`, whose call
            returns before its body runs.
    """

    def __init__(self, name: str) -> None:
        self.name = text(name, "name")

    def __call__(self, function: Called) -> Called:
        """Mark each call of a function.

        Raises:
            UsageError: It is not a function, or its call returns before its body runs.
        """
        if not callable(function):
            raise refused("function", function, "a function")
        kinds = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)
        if any(is_kind(function) for is_kind in kinds):
            raise _memgauge.UsageError(
                f"`{function.__name__}` returns before its body runs: use `with mg.roi(...)` in the body"
            )
        return super().__call__(function)

    def __enter__(self) -> roi:
        _memgauge.region_begin(self.name)
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        _memgauge.region_end(self.name)


def value(name: str, number: int) -> None:
    """Report a value, from 0 to 2**64 - 1. The report has its number, minimum, mean and maximum.

    Raises:
        UsageError: The name is not a text, or the number not an integer in this range.
    """
    _memgauge.value(text(name, "name"), integer(number, "number"))
