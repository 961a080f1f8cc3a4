"""Plots draw the numbers of the tables."""

import sys

import pytest

import memgauge as mg

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")


def test_bandwidth_is_drawn_in_gigabytes_per_second(modelled):
    axes = modelled.plot.bandwidth()
    read = axes.get_lines()[0]
    series = modelled.series("dram.read_bytes")
    # A byte per nanosecond is a gigabyte per second.
    expected = [v / ns for v, ns in zip(series["value"], series["length_ns"])]
    assert list(read.get_ydata()) == pytest.approx(expected)
    assert "modelled" in axes.get_ylabel()


def test_curve_is_drawn_with_its_band(modelled):
    axes = modelled.plot.curve()
    assert list(axes.get_lines()[0].get_ydata()) == modelled.curve().table["miss_ratio"]
    curve = mg.mrc(list(range(0, 1 << 20, 64)) * 2, sample=0.5)
    assert mg.plot_curve(curve, axes) is axes


def test_missing_matplotlib_is_named(modelled, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(mg.MissingPackageError, match="pip install matplotlib"):
        modelled.plot.bandwidth()
