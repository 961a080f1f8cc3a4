"""The pytest plugin, in tests of its own."""

import json
import os
import subprocess
import sys

import pytest

TESTS = """
import os
import pytest

@pytest.mark.memgauge(max={"instructions": "+5%"}, machine="i5-6600k")
def test_loop():
    sum(range(int(os.environ.get("LOOPS", "1000"))))
"""


def run(folder, *options, **variables):
    """Run pytest in the folder."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p",
               "memgauge.pytest_plugin", *options]
    environment = {**os.environ, **variables}
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return run.returncode, run.stdout


@pytest.fixture()
def folder(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text("")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def test_gate_holds_and_fails_also_under_xdist(folder):
    code, said = run(folder)
    assert code == 1 and "--memgauge-update" in said, said
    code, said = run(folder, "--memgauge-update")
    assert code == 0, said
    file = folder / "memgauge-baselines" / "test_it.py-test_loop.json"
    assert json.loads(file.read_text())["metrics"]["instructions"] > 0
    code, said = run(folder, "-n", "2")
    assert code == 0, said
    code, said = run(folder, "-n", "2", LOOPS="10000000")
    assert code == 1 and "gate `instructions > +5%` failed: before" in said, said
