"""The pytest plugin, in tests of its own."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from memgauge import pytest_plugin

TESTS = """
import pytest

@pytest.mark.memgauge(max={"instructions": "+5%"}, machine="i5-6600k")
def test_loop():
    for number in range(NUMBERS):
        pass

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


def write_tests(folder, numbers):
    (folder / "test_it.py").write_text(TESTS.replace("NUMBERS", str(numbers)))


@pytest.fixture()
def folder(tmp_path):
    write_tests(tmp_path, 1000)
    (tmp_path / "conftest.py").write_text("")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


# A recording of an interpreter that runs pytest takes half a minute of processor time, so there are only two.
def test_baseline_of_the_tests_own_work_is_written_and_then_gates_under_xdist(folder):
    numbers = random.randrange(20_000, 50_000)
    print(f"numbers {numbers}")
    write_tests(folder, numbers)
    code, said = run(folder)
    assert code == 1 and said.count("--memgauge-update") >= 2, said

    code, said = run(folder, "--memgauge-update", "-k", "test_loop")
    assert code == 0 and "1 passed" in said, said
    [written] = (folder / "memgauge-baselines").iterdir()
    assert written.name == "test_it.py-test_loop.json"
    count = json.loads(written.read_text())["metrics"]["instructions"]
    # A turn of the loop takes tens of instructions. The start of pytest takes hundreds of millions.
    assert 10 * numbers < count < 200 * numbers + 2_000_000, count

    write_tests(folder, 2 * numbers)
    code, said = run(folder, "-n", "2", "-k", "test_loop")
    assert code == 1 and "1 failed" in said, said
    gate = re.search(r"gate `instructions > \+5%` failed: .*", said)
    assert gate is not None, said
    found = [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*", gate[0])]
    assert count in found and 15 * numbers + count < max(found) < 200 * numbers + count, gate[0]


def test_options_reach_the_recorder_also_when_baselines_are_written(folder):
    code, said = run(folder, "-n", "2", "--memgauge-update", "-k", "test_other")
    assert code == 1 and "1/3" in said and "RecordError" in said, said
    assert not (folder / "memgauge-baselines").exists()


def test_baseline_is_written_and_then_compared(tmp_path, monkeypatch, modelled):
    monkeypatch.setattr(pytest_plugin, "record", lambda *words, **options: modelled)

    def check(limit, update=False, region=None):
        plugins = SimpleNamespace(get_name=lambda plugin: "memgauge")
        config = SimpleNamespace(getoption=lambda name: update, pluginmanager=plugins)
        nodeid = "sub/test_it.py::test_loop[a/b]"
        item = SimpleNamespace(nodeid=nodeid, path=tmp_path / "test_it.py", config=config)
        pytest_plugin.check(item, max={"instructions": limit}, region=region)

    with pytest.raises(pytest.fail.Exception, match="--memgauge-update"):
        check("+5%")
    with pytest.raises(pytest.fail.Exception, match="region `load` was not entered"):
        check("+5%", update=True, region="load")
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


def test_baselines_of_parameters_have_files_of_their_own():
    parameters = ["x/b", "y/b", "x-b", "x b", "b[x]"]
    items = [SimpleNamespace(nodeid=f"tests/test_it.py::test_p[{k}]", path=Path("tests/test_it.py")) for k in parameters]
    paths = {pytest_plugin.baseline_path(item) for item in items}
    assert len(paths) == len(parameters), paths
    assert all(path.name.startswith("test_it.py-test_p-") for path in paths)
    plain = SimpleNamespace(nodeid="tests/test_it.py::test_p", path=Path("tests/test_it.py"))
    assert pytest_plugin.baseline_path(plain) == Path("tests/memgauge-baselines/test_it.py-test_p.json")


def test_mark_with_unusable_arguments_fails_its_test_with_one_line(folder):
    (folder / "test_it.py").write_text("import pytest\n\n@pytest.mark.memgauge\ndef test_it():\n    pass\n")
    code, said = run(folder)
    assert code == 1 and "mark `memgauge`: missing a required argument: 'max'" in said, said
    assert "Traceback" not in said and "pytest_plugin.py" not in said, said
