"""Several recordings at once."""

import shutil

import pytest

import memgauge as mg
from conftest import command


def test_recordings_of_a_pattern_are_rows(modelled, sampled, tmp_path):
    runs = tmp_path / "runs" / "today"
    runs.mkdir(parents=True)
    shutil.copytree(modelled.path, runs / "a.mg")
    command("pack", sampled.path, "-o", runs / "b.mg")
    shutil.copytree(modelled.path, runs / "c.mg")
    next((runs / "c.mg").glob("*/part-000000.parquet")).unlink()
    (runs / "d.mg").mkdir()
    recordings = mg.open_many(tmp_path / "**" / "*.mg")
    assert [path.rsplit("/", 1)[1] for path in recordings.table["path"]] == ["a.mg", "b.mg", "c.mg"]
    assert list(recordings.unreadable) == [str(runs / "d.mg")]
    assert "manifest.json" in recordings.unreadable[str(runs / "d.mg")]

    rows = list(recordings.table)
    assert [bool(row["problems"]) for row in rows] == [False, False, True]
    assert rows[0]["command"] == ["/bin/ls", "-l", "/usr/bin"]
    assert [row["source"] for row in rows] == ["emulate", "clock", "emulate"]
    assert rows[0]["machine"] == modelled.manifest["machine"]["name"] and rows[1]["machine"] is None
    assert rows[0]["host"] == modelled.manifest["host"]["name"]
    assert (rows[0]["service"], rows[0]["commit"], rows[0]["labels"]) == ("ls", None, [])
    assert rows[0]["started_unix_ns"] == modelled.manifest["started_unix_ns"]
    assert all(row["complete"] for row in rows)
    for row, recording in zip(rows, recordings):
        counted = {name: row[name] for name in recordings.table.column_names if "." in name}
        totals = {name: total.value for name, total in recording.totals.items()}
        assert counted == {name: totals.get(name) for name in counted}
    assert recordings.table.metadata["dram.read_bytes"]["unit"] == "bytes"
    assert len(recordings[1:]) == 2 and recordings[-1].path == rows[-1]["path"]


def test_labels_are_columns(tmp_path):
    labels = ["--label", "service=web", "--label", "host=h1", "--label", "commit=abc", "--label", "team=a"]
    command("record", *labels, "-o", tmp_path / "x.mg", "--", "true")
    (row,) = mg.open_many(tmp_path / "*.mg").table
    assert (row["service"], row["host"], row["commit"]) == ("web", "h1", "abc")
    assert row["labels"] == ["commit=abc", "host=h1", "service=web", "team=a"]


def test_pattern_without_matches_is_an_error(tmp_path):
    with pytest.raises(mg.NotARecordingError, match="nothing matches"):
        mg.open_many([tmp_path / "*.mg"])
