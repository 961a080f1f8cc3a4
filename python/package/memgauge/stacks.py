"""Call stacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Optional

from ._memgauge import UsageError
from .table import require

if TYPE_CHECKING:
    import hatchet  # type: ignore[import-not-found, import-untyped, unused-ignore]

    from .recording import Recording


class Stacks:
    """Call stacks by the events that they led to.

    Without recorded stacks (`memgauge record -g`), `folded` has functions with the functions that they
    are inlined into.
    """

    def __init__(self, recording: Recording, event: Optional[str]) -> None:
        self._recording = recording
        self._event = event

    def folded(self) -> str:
        """Folded stacks, a line each: `outer;inner COUNT`, as `memgauge export -f folded` has them.

        Raises:
            UsageError: The recording has no stacks and no functions of the event.
        """
        return self._recording._export_summary().folded(self._event)

    def tree(self) -> List[Dict[str, Any]]:
        """Nodes of the call tree: function, module, index of the caller, events with and without callees.

        Callers come before what they call. Empty if no stacks were recorded, or none of the event.

        Raises:
            Error: The recording cannot be read.
        """
        trees = [t for t in self._recording._summary().calls() if self._event in (None, t["event"])]
        return list(trees[0]["nodes"]) if trees else []

    def to_hatchet(self) -> hatchet.GraphFrame:
        """A `hatchet.GraphFrame`: metric `events` of the function, `events (inc)` with its callees.

        Raises:
            MissingPackageError: hatchet is not installed.
            UsageError: No stacks were recorded.
        """
        package = require("hatchet", "make a GraphFrame")
        return package.GraphFrame.from_literal(self.literal())

    def literal(self) -> List[Dict[str, Any]]:
        """The call tree in the form of `hatchet.GraphFrame.from_literal`.

        Raises:
            UsageError: No stacks were recorded.
        """
        nodes = self.tree()
        if not nodes:
            raise UsageError(
                "failed to make a call tree: no stacks were recorded; record them with -g"
            )
        made: List[Dict[str, Any]] = []
        roots: List[Dict[str, Any]] = []
        for node in nodes:
            frame = {"name": node["function"], "type": "function", "module": node["module"]}
            metrics = {"events": node["own_events"], "events (inc)": node["events"]}
            made.append({"frame": frame, "metrics": metrics, "children": []})
            siblings = roots if node["caller"] is None else made[node["caller"]]["children"]
            siblings.append(made[-1])
        return roots
