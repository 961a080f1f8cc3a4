"""Fresh recordings, made with the program under test (`MEMGAUGE`)."""

import functools
import json
import subprocess

import pytest

import memgauge as mg
from memgauge import program


@pytest.fixture(scope="session")
def modelled(tmp_path_factory):
    """An emulated run: exact counts of a modelled machine."""
    output = tmp_path_factory.mktemp("modelled") / "ls.mg"
    return mg.record(["/bin/ls", "-l", "/usr/bin"], machine="i5-6600k", output=output)


@pytest.fixture(scope="session")
def longer(tmp_path_factory):
    """The same program with more to do."""
    output = tmp_path_factory.mktemp("longer") / "ls.mg"
    return mg.record(["/bin/ls", "-lR", "/usr/bin"], machine="i5-6600k", output=output)


@pytest.fixture(scope="session")
def estimated(tmp_path_factory):
    """A run of which an eighth of the cache sets was modelled: totals have intervals."""
    output = tmp_path_factory.mktemp("estimated") / "ls.mg"
    command = ["/bin/ls", "-l", "/usr/bin"]
    return mg.record(command, machine="i5-6600k", output=output, options=["--sets", "1/8"])


@pytest.fixture(scope="session")
def sampled(tmp_path_factory):
    """A run sampled by the timer."""
    output = tmp_path_factory.mktemp("sampled") / "sh.mg"
    loop = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"
    return mg.record(["/bin/sh", "-c", loop], source="clock", output=output)


@pytest.fixture(params=["modelled", "estimated", "sampled"])
def recording(request):
    """Each kind of recording in turn."""
    return request.getfixturevalue(request.param)


def command(*words, check=True):
    """Output of memgauge."""
    run = subprocess.run([program.path(), *map(str, words)], capture_output=True, text=True)
    assert run.returncode == 0 or not check, run.stderr
    return run


@functools.cache
def printed(path, *options):
    """The JSON report, which many tests compare with."""
    return command("report", path, "--json", *options).stdout


def report(recording, *options):
    """What the command reports of a recording that no longer changes."""
    return json.loads(printed(recording.path, *options))
