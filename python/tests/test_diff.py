"""Comparisons are those of `memgauge diff`."""

import json
import shutil

import pytest

import memgauge as mg
from conftest import command


def test_comparison_is_that_of_the_command(modelled, longer):
    found = mg.diff(modelled, longer)
    expected = json.loads(command("diff", modelled.path, longer.path, "--json").stdout)
    assert found.report == expected
    assert found.changed
    metrics = {row["name"]: row["after"] for row in found.metrics}
    assert metrics["instructions"] == longer.totals["instructions"].value
    assert found.functions["function"] == [row["function"] for row in expected["functions"]]
    assert not mg.diff(modelled, modelled.path).changed


def test_groups_have_intervals(tmp_path, modelled, longer):
    copies = [shutil.copytree(run.path, tmp_path / f"{n}.mg") for n, run in enumerate((modelled, longer))]
    found = mg.diff([modelled, longer], copies)
    options = ["--before", modelled.path, longer.path, "--after", *copies]
    assert found.report == json.loads(command("diff", *options, "--json").stdout)
    metrics = {row["name"]: row for row in found.metrics}
    assert metrics["cycles"]["difference_low"] < 0 < metrics["cycles"]["difference_high"]
    with pytest.raises(mg.UsageError, match="no spread"):
        mg.diff([modelled], [modelled, longer])
    with pytest.raises(mg.UsageError) as raised:
        mg.diff([modelled, longer], [modelled, copies[1]])
    options = ["--before", modelled.path, longer.path, "--after", modelled.path, copies[1]]
    said = command("diff", *options, check=False).stderr
    assert said == f"memgauge: {raised.value}\n"


def test_gates_fail_with_the_commands_message(modelled, longer):
    comparison = mg.diff(modelled, longer)
    assert comparison.gate("instructions > +1000%") is comparison
    with pytest.raises(mg.GateFailed) as raised:
        comparison.gate("instructions < +1000%")
    said = command("diff", modelled.path, longer.path, "--fail-if", "instructions < +1000%", check=False)
    assert said.returncode == 1
    lines = str(raised.value).splitlines()
    assert said.stderr.splitlines()[-len(lines):] == [f"memgauge: {line}" for line in lines]
    with pytest.raises(mg.UsageError, match="near names are cycles"):
        comparison.gate("cycle > 5")
    with pytest.raises(mg.UsageError, match="write it as in"):
        comparison.gate("cycles")


def test_baseline_file_is_that_of_the_command(tmp_path, modelled, longer):
    mg.baseline(modelled, tmp_path / "own.json")
    command("report", modelled.path, "--baseline", tmp_path / "commands.json")
    assert (tmp_path / "own.json").read_text() == (tmp_path / "commands.json").read_text()
    assert not mg.diff(tmp_path / "own.json", modelled).changed
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(mg.Error, match="other.json"):
        mg.diff(tmp_path / "other.json", modelled)
