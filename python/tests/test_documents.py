"""The examples of docs/python.md run."""

import re
from pathlib import Path

import pytest

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

DOCUMENT = Path(__file__).parents[2] / "docs" / "python.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.M | re.S)


def run(block, names):
    exec(compile(block, str(DOCUMENT), "exec"), names)


def test_first_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    run(BLOCKS[0], names)
    assert names["rec"].totals["llc.miss"].value > 0


def test_notebook_runs_and_is_short(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = (f"word{n * 7919 % 5000}" for n in range(5000))
    (tmp_path / "words.txt").write_text("\n".join(words))
    names = {}
    run(BLOCKS[1], names)
    assert len(BLOCKS[1].splitlines()) <= 25
    assert "of the misses to memory" in capsys.readouterr().out
    assert len(names["axes"].get_lines()) == 3
    comparison = names["comparison"].set_index("name")
    change = comparison.loc["l1d.miss"]
    assert change["difference_low"] <= change["after"] - change["before"] <= change["difference_high"]
