"""The pytest plugin, in tests of its own."""

import json
import shutil
import subprocess
import sys

import pytest

TESTS = """
import memgauge as mg
import pytest

@pytest.mark.memgauge(max={"instructions": "+5%"}, machine="i5-6600k", region="work")
def test_loop():
    with mg.roi("work"):
        sum(range(1000))

@pytest.mark.memgauge(max={"instructions": "+5%"}, machine="i5-6600k", region="work")
def test_longer():
    with mg.roi("work"):
        sum(range(1500))
"""


def run(folder, *options):
    """Run pytest in the folder."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p",
               "memgauge.pytest_plugin", *options]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return run.returncode, run.stdout


@pytest.fixture()
def folder(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text("")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def test_gate_holds_and_fails_also_under_xdist(folder):
    code, said = run(folder)
    assert code == 1 and said.count("--memgauge-update") >= 2, said
    # Each recording of an interpreter takes seconds: the second test gets the first one's baseline.
    code, said = run(folder, "--memgauge-update", "-k", "test_loop")
    assert code == 0, said
    baseline = folder / "memgauge-baselines" / "test_it.py-test_loop.json"
    assert json.loads(baseline.read_text())["metrics"]["instructions"] > 0
    shutil.copy(baseline, baseline.with_name("test_it.py-test_longer.json"))
    code, said = run(folder, "-n", "2")
    assert code == 1 and "1 failed, 1 passed" in said, said
    assert "gate `instructions > +5%` failed: before" in said and "test_longer" in said, said
