"""Regions of interest that Python code marks."""

import os
import sys

import pytest

import memgauge as mg

PROGRAM = """
import memgauge as mg

with mg.roi("outer"):
    for n in range(3):
        with mg.roi("inner"):
            sum(range(1000))
        mg.value("turn", n)

@mg.roi("function")
def call():
    pass

call()
"""


@pytest.mark.parametrize("source", ["emulate", "clock"])
def test_each_source_sees_regions(tmp_path, source):
    (tmp_path / "prog.py").write_text(PROGRAM)
    program = [sys.executable, "-S", "-E", str(tmp_path / "prog.py")]
    # Without the site's packages the start of the interpreter is short; the package is beside it.
    (tmp_path / "memgauge").symlink_to(os.path.dirname(mg.__file__))
    recording = mg.record(program, source=source, output=tmp_path / "r.mg", check=True)
    entries = {row["name"]: row["entries"] for row in recording.regions_of_interest()}
    assert entries == {"outer": 1, "inner": 3, "function": 1}
    values = {row["name"]: row for row in recording.report()["code_values"]}
    assert (values["turn"]["n"], values["turn"]["max"]) == (3, 2)


def test_region_without_a_recording_does_nothing():
    with mg.roi("load"):
        pass
    with pytest.raises(mg.UsageError):
        with mg.roi("with \0 inside"):
            pass


def test_functions_whose_body_runs_later_are_refused():
    def generator():
        yield 1

    async def later():
        pass

    for function in (generator, later):
        with pytest.raises(mg.UsageError, match="returns before its body runs"):
            mg.roi("load")(function)
    assert mg.roi("load")(lambda: 3)() == 3
