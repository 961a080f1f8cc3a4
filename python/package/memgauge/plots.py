"""Plots, with matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from .arguments import optional_text, refused, text
from .table import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes  # type: ignore[import-not-found, unused-ignore]

    from .curves import MissCurve
    from .recording import Recording

NS_PER_S = 1e9
BYTES_PER_GB = 1e9
TRAFFIC = [("dram.read_bytes", "read"), ("dram.write_bytes", "write")]


def axes_or_new(axes: Optional[Axes]) -> Any:
    """The axes, or those of a new figure."""
    if axes is not None:
        if not hasattr(axes, "plot"):
            raise refused("axes", axes, "axes of matplotlib")
        return axes
    return require("matplotlib.pyplot", "plot").subplots()[1]


class Plots:
    """Plots of a recording. Each takes the axes to draw on and returns them."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def bandwidth(self, axes: Optional[Axes] = None) -> Axes:
        """Memory traffic over time in GB/s (10**9 bytes per second).

        Raises:
            MissingPackageError: matplotlib is not installed.
            UsageError: The recording has no memory traffic.
        """
        axes = axes_or_new(axes)
        for event, label in TRAFFIC:
            self._series(event, label, BYTES_PER_GB, axes)
        provenance = self._recording.totals["dram.read_bytes"].provenance
        axes.set(xlabel="time (s)", ylabel=f"memory traffic (GB/s, {provenance})", ylim=(0, None))
        axes.legend()
        return axes

    def series(self, event: str, axes: Optional[Axes] = None) -> Axes:
        """An event over time, per second.

        Raises:
            MissingPackageError: matplotlib is not installed.
            UsageError: The recording does not have the event.
        """
        event = text(event, "event")
        axes = axes_or_new(axes)
        self._series(event, event, 1, axes)
        axes.set(xlabel="time (s)", ylabel=f"{event} per second", ylim=(0, None))
        return axes

    def _series(self, event: str, label: str, unit: float, axes: Any) -> None:
        columns = self._recording.series(event).to_pydict()
        bins = list(zip(columns["start_ns"], columns["length_ns"], columns["value"]))
        times = [start / NS_PER_S for start, length, _ in bins if length]
        rates = [value / length * NS_PER_S / unit for _, length, value in bins if length]
        axes.plot(times, rates, drawstyle="steps-post", label=label)

    def curve(
        self, block: int = 64, sample: Optional[float] = None, axes: Optional[Axes] = None
    ) -> Axes:
        """The miss-ratio curve of the sampled addresses.

        Raises:
            MissingPackageError: matplotlib is not installed.
            UsageError: As for `Recording.curve`.
        """
        return plot_curve(self._recording.curve(block, sample), axes)


def plot_curve(curve: MissCurve, axes: Optional[Axes] = None, label: Optional[str] = None) -> Axes:
    """Draw a miss-ratio curve, with the 95 % band of a sampled one.

    Raises:
        MissingPackageError: matplotlib is not installed.
        UsageError: It is not a curve.
    """
    if not hasattr(curve, "table"):
        raise refused("curve", curve, "a curve of `mrc` or `Recording.curve`")
    label = optional_text(label, "label")
    axes = axes_or_new(axes)
    points = [p for p in curve.table if p["miss_ratio"] is not None]
    sizes = [point["bytes"] for point in points]
    ratios = [point["miss_ratio"] for point in points]
    (line,) = axes.plot(sizes, ratios, label=label or curve.facts["title"])
    bands = [point["half_band_95"] or 0.0 for point in points]
    if any(bands):
        low = [max(ratio - band, 0.0) for ratio, band in zip(ratios, bands)]
        high = [min(ratio + band, 1.0) for ratio, band in zip(ratios, bands)]
        axes.fill_between(sizes, low, high, color=line.get_color(), alpha=0.2)
    axes.set(xlabel="memory (bytes)", ylabel="miss ratio", ylim=(0, None))
    axes.set_xscale("log", base=2)
    axes.legend()
    return axes
