"""pytest plugin: gates a test's memory behaviour against a committed baseline.

    @pytest.mark.memgauge(max={"llc.miss": "+5%"})
    def test_load():
        ...

The test runs a second time in a process of its own under `memgauge record`, and its totals are
compared with `memgauge-baselines/<test>.json` beside the test file. A limit is a relative difference
(`+5%`), a difference (`+1k`) or a value (`1M`). `pytest --memgauge-update` writes the baselines.

The test's call is a region of interest, and only events in this region are counted: those of the interpreter,
imports, fixtures and pytest are not. `heap.*` and `duration_ns` are of the whole process. `region="NAME"` counts a region that the test marks, `region=None` the whole process with
its threads and children.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest

from .comparison import GateFailed, baseline, diff
from .program import record
from .regions import roi

CALL = "test"
"""Region of interest of a test's call."""

INSIDE = "MEMGAUGE_PYTEST"
"""Environment variable of the process that runs a test under memgauge."""

FOLDER = "memgauge-baselines"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that writes baselines."""
    group = parser.getgroup("memgauge")
    group.addoption(
        "--memgauge-update", action="store_true", help="write the baselines of tests marked `memgauge`"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line(
        "markers",
        f"memgauge(max, machine='zen4', region='{CALL}', options=[]): compare the test's memory behaviour "
        "with its baseline",
    )


# The last wrapper is the innermost: the work of other plugins is outside of the region.
@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """Run the test, then again under memgauge."""
    mark = item.get_closest_marker("memgauge")
    if mark is None:
        return (yield)
    if INSIDE in os.environ:
        with roi(CALL):
            return (yield)
    result = yield
    try:
        asked = inspect.signature(check).bind(item, *mark.args, **mark.kwargs)
    except TypeError as wrong:
        pytest.fail(f"mark `memgauge`: {wrong}", pytrace=False)
    check(*asked.args, **asked.kwargs)
    return result


def check(
    item: pytest.Item,
    max: Dict[str, str],
    machine: str = "zen4",
    region: Optional[str] = CALL,
    options: Optional[List[str]] = None,
) -> None:
    """Compare a recording of the test with its baseline."""
    if not isinstance(max, dict) or not max:
        pytest.fail(f"mark `memgauge`: max={max!r} must be a dictionary such as {{'llc.miss': '+5%'}}", pytrace=False)
    limits = [f"{metric} > {limit}" for metric, limit in max.items()]
    path = baseline_path(item)
    words = [*(options or []), *(["--region", region] if region else [])]
    updates = item.config.getoption("--memgauge-update")
    if not updates and not path.exists():
        pytest.fail(f"no baseline {path}: run pytest --memgauge-update and commit it", pytrace=False)
    with tempfile.TemporaryDirectory(prefix="memgauge-pytest-") as folder:
        recording = record(
            command(item), machine=machine, output=Path(folder) / "test.mg", options=words,
            environment=environment(), check=True,
        )
        if region and not recording.regions_of_interest().num_rows:
            pytest.fail(f"region `{region}` was not entered: mark it in the test", pytrace=False)
        if updates:
            path.parent.mkdir(exist_ok=True)
            baseline(recording, path)
            return
        failure = None
        try:
            diff(path, recording).gate(*limits)
        except GateFailed as failed:
            failure = str(failed)
        # Outside of the handler, so that the report has it once.
        if failure is not None:
            pytest.fail(failure, pytrace=False)


def baseline_path(item: pytest.Item) -> Path:
    """File of the test's baseline."""
    within = item.nodeid.split("::")[1:]
    name = "-".join([item.path.name, *within])
    safe = re.sub(r"[^\w.-]+", "-", name).strip("-")
    if safe != name:
        # Other parameters may differ in these characters alone.
        safe += "-" + hashlib.sha256(name.encode()).hexdigest()[:8]
    return item.path.parent / FOLDER / f"{safe}.json"


def command(item: pytest.Item) -> List[str]:
    """Command that runs the test alone."""
    # By the name that it has here, also where plugins are not loaded by themselves.
    own = item.config.pluginmanager.get_name(sys.modules[__name__]) or __name__
    options = ["-p", own, "-p", "no:xdist", "-p", "no:cacheprovider", "-q"]
    return [sys.executable, "-m", "pytest", *options, f"{item.path}::{item.nodeid.split('::', 1)[1]}"]


def environment() -> Dict[str, str]:
    """Environment of that command: equal for equal counts, and without the variables of xdist."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))}
    return {**kept, INSIDE: "1", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
