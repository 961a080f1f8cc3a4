"""The pytest plugin, in tests of its own."""

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

import memgauge as mg
from memgauge import pytest_plugin

TESTS = """
import memgauge as mg
import pytest

@pytest.mark.memgauge(max={"instructions": "+5%"}, machine="i5-6600k", region="work")
def test_loop():
    with mg.roi("work"):
        sum(range(1000))

@pytest.mark.memgauge(max={"instructions": "+5%"}, machine="i5-6600k", options=["--sets", "1/3"])
def test_other():
    pass
"""


def run(folder, *options):
    """Run pytest in the folder."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p",
               "memgauge.pytest_plugin", *options]
    # These tests may run under xdist themselves.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return run.returncode, run.stdout


@pytest.fixture()
def folder(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text("")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def test_gate_fails_under_xdist(folder, modelled):
    code, said = run(folder)
    assert code == 1 and said.count("--memgauge-update") >= 2, said
    baseline = folder / "memgauge-baselines" / "test_it.py-test_loop.json"
    baseline.parent.mkdir()
    # The recording of an interpreter that runs pytest takes seconds, so there is only one.
    mg.baseline(modelled, baseline)
    facts = json.loads(baseline.read_text())
    facts["metrics"]["instructions"] = 1000
    baseline.write_text(json.dumps(facts))
    code, said = run(folder, "-n", "2", "-k", "test_loop")
    assert code == 1 and "1 failed" in said, said
    gate = re.search(r"gate `instructions > \+5%` failed: .*", said)
    assert gate is not None, said
    # Of the region alone: pytest's start has hundreds of millions.
    after = max(int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", gate[0]))
    assert 1000 < after < 10_000_000, gate[0]


def test_options_reach_the_recorder_also_when_baselines_are_written(folder):
    code, said = run(folder, "-n", "2", "--memgauge-update", "-k", "test_other")
    assert code == 1 and "1/3" in said and "RecordError" in said, said
    assert not (folder / "memgauge-baselines").exists()


def test_baseline_is_written_and_then_compared(tmp_path, monkeypatch, modelled):
    monkeypatch.setattr(pytest_plugin, "record", lambda *words, **options: modelled)

    def check(limit, update=False):
        config = SimpleNamespace(getoption=lambda name: update)
        nodeid = "sub/test_it.py::test_loop[a/b]"
        item = SimpleNamespace(nodeid=nodeid, path=tmp_path / "test_it.py", config=config)
        pytest_plugin.check(item, max={"instructions": limit})

    with pytest.raises(pytest.fail.Exception, match="--memgauge-update"):
        check("+5%")
    check("+5%", update=True)
    [written] = (tmp_path / "memgauge-baselines").iterdir()
    facts = json.loads(written.read_text())
    value = modelled.totals["instructions"].value
    assert facts["metrics"]["instructions"] == value
    check("+5%")
    for part, limit, fails in [
        (0.97, "+5%", False), (0.94, "+5%", True), (1, "+1", False), (1, str(value - 1), True),
    ]:
        facts["metrics"]["instructions"] = int(value * part)
        written.write_text(json.dumps(facts))
        if not fails:
            check(limit)
            continue
        with pytest.raises(pytest.fail.Exception, match="gate `instructions > "):
            check(limit)
