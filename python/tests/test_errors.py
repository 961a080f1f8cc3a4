"""Errors have the command's messages; damaged recordings give what is good of them."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

import memgauge as mg
from memgauge import _memgauge
from conftest import command, report


def message_of_command(path):
    return command("report", path, check=False).stderr.splitlines()[-1]


def check_same(path, kind):
    with pytest.raises(kind) as raised:
        mg.open(path)
    assert f"memgauge: {raised.value}" == message_of_command(path)


def copied(recording, folder):
    return shutil.copytree(recording.path, folder / "copy.mg")


def test_messages_are_those_of_the_command(tmp_path, modelled):
    check_same(tmp_path / "nothing.mg", mg.NotARecordingError)
    check_same(tmp_path, mg.NotARecordingError)
    newer = copied(modelled, tmp_path)
    manifest = json.loads((newer / "manifest.json").read_text())
    (newer / "manifest.json").write_text(json.dumps({**manifest, "format_version": 99}))
    check_same(newer, mg.NewerVersionError)


def test_unknown_event_is_refused_with_the_known_ones(modelled):
    with pytest.raises(mg.UsageError) as raised:
        modelled.functions(by="nonsense")
    said = command("report", modelled.path, "--event", "nonsense", check=False).stderr
    assert said == f"memgauge: {raised.value}\n"
    with pytest.raises(KeyError, match="llc.miss"):
        modelled.totals["nonsense"]


def test_damaged_part_is_listed_and_the_others_are_read(tmp_path, modelled):
    path = copied(modelled, tmp_path)
    part = next((path / "sites").glob("part-*.parquet"))
    part.write_bytes(part.read_bytes()[:-100])
    damaged = mg.open(path)
    assert damaged.is_damaged and part.name in damaged.problems[0]
    assert damaged.report() == report_of_damaged(damaged)
    assert damaged.totals["llc.miss"] == modelled.totals["llc.miss"]
    assert "Not all of it could be read" in damaged._repr_html_()


def damage(path):
    """Change bytes in the middle of a part, whose footer stays intact."""
    data = bytearray(path.read_bytes())
    at = random.randrange(4, len(data) // 3)
    data[at : at + 16] = bytes(255 - byte for byte in data[at : at + 16])
    path.write_bytes(data)
    print(f"bytes from {at} of {path.name} changed")


READERS = {
    "samples": lambda recording: list(recording.samples()),
    "pyarrow": lambda recording: recording.samples().to_arrow(),
    "functions": lambda recording: recording.functions(),
    "curve": lambda recording: recording.curve(),
    "report": lambda recording: recording.report(),
    "tree": lambda recording: recording.stacks().tree(),
}


@pytest.mark.parametrize("reader", READERS)
def test_problems_list_a_damaged_part_whichever_method_read_it(tmp_path, sampled, reader):
    path = copied(sampled, tmp_path)
    [part] = (path / "samples").glob("part-*.parquet")
    good = part.read_bytes()
    part.with_name("part-000001.parquet").write_bytes(good)
    damage(part)
    damaged = mg.open(path)
    assert not damaged.problems
    try:
        READERS[reader](damaged)
    except mg.UsageError:
        assert reader == "curve"  # the timer's samples have no addresses
    assert any(part.name in problem for problem in damaged.problems), damaged.problems
    assert damaged.is_damaged


def test_samples_are_those_of_intact_parts_and_an_error_without_any(tmp_path, sampled):
    path = copied(sampled, tmp_path)
    [part] = (path / "samples").glob("part-*.parquet")
    rows = sum(batch.num_rows for batch in sampled.samples())
    part.with_name("part-000001.parquet").write_bytes(part.read_bytes())
    damage(part)
    damaged = mg.open(path)
    batches = damaged.samples()
    assert sum(batch.num_rows for batch in batches) == rows > 0
    assert len(batches.problems) == 1 and batches.problems[0] in damaged.problems
    assert mg.open(path).samples().to_arrow().num_rows == rows

    part.with_name("part-000001.parquet").unlink()
    lost = mg.open(path)
    for read in (list, lambda batches: batches.to_arrow(), lambda batches: batches.to_polars()):
        with pytest.raises(mg.DamagedError, match=f"all parts.*{part.name}"):
            read(lost.samples())
    assert part.name in lost.problems[0]

    part.write_bytes(part.read_bytes()[:-50])
    with pytest.raises(mg.DamagedError, match=f"all parts.*{part.name}"):
        mg.open(path).samples()
    part.unlink()
    with pytest.raises(mg.DamagedError, match="missing"):
        mg.open(path).samples()


def test_totals_of_a_killed_recorder_are_summed_from_the_tables(tmp_path, modelled):
    path = copied(modelled, tmp_path)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "totals": {}, "complete": False}))
    killed = mg.open(path)
    totals = {name: total.value for name, total in killed.totals.items()}
    assert totals == report_of_damaged(killed)["totals"] and totals["llc.miss"] > 0
    assert not killed.complete


def report_of_damaged(recording):
    return json.loads(command("report", recording.path, "--json", check=False).stdout)


def test_recording_still_being_written_has_the_parts_so_far(tmp_path):
    output = tmp_path / "live.mg"
    words = [os.environ["MEMGAUGE"], "record", "-q", "--source", "clock", "-o", str(output), "--"]
    loop = "while :; do :; done"
    recorder = subprocess.Popen([*words, "sh", "-c", loop], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not list(output.glob("samples/part-*.parquet")):
            assert time.monotonic() < deadline and recorder.poll() is None
            time.sleep(0.05)
        live = mg.open(output)
        assert not live.complete and not live.problems
        assert live.functions()["samples"]
    finally:
        recorder.send_signal(signal.SIGINT)
        recorder.wait()


def test_path_may_be_a_file_url(modelled):
    for form in ("file://", "file:", "file://localhost"):
        assert mg.open(f"{form}{modelled.path}").totals == modelled.totals
    with pytest.raises(mg.UsageError, match="use a path, `file:///PATH`, .* `gs://BUCKET/NAME.mg.tar`"):
        mg.open("ftp://bucket/x.mg")


def functions_of(path):
    return mg.open(path).functions()["function"]


def test_forked_process_reads_recordings(modelled):
    expected = modelled.functions()["function"]
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(functions_of, [modelled.path]) == expected


def test_threads_share_a_recording(modelled):
    expected = modelled.report()
    found = []
    workers = [threading.Thread(target=lambda: found.append(modelled.report())) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert found == [expected] * 4


def test_failed_recording_has_the_commands_message(tmp_path):
    with pytest.raises(mg.RecordError) as raised:
        mg.record(["/nonexistent/program"], output=tmp_path / "a.mg")
    words = ["record", "-o", tmp_path / "b.mg", "--", "/nonexistent/program"]
    assert command(*words, check=False).stderr.splitlines()[-1] == f"memgauge: {raised.value}"
    with pytest.raises(mg.RecordError, match="unknown-machine"):
        mg.record(["ls"], machine="unknown-machine", output=tmp_path / "c.mg")
    failing = mg.record(["/bin/sh", "-c", "exit 3"], output=tmp_path / "d.mg")
    assert failing.manifest["end"] == {"exited": 3}


# A shell starts a background job with Ctrl-C ignored, and these tests may be in one.
RECORD_FOREVER = """
import memgauge as mg, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    mg.record(["/bin/sh", "-c", "while :; do :; done"], source="clock", output=sys.argv[1])
except KeyboardInterrupt:
    print("interrupted", mg.open(sys.argv[1]).manifest["end"], flush=True)
"""


def test_ctrl_c_ends_a_recording_in_order(tmp_path):
    output = tmp_path / "interrupted.mg"
    process = subprocess.Popen(
        [sys.executable, "-c", RECORD_FOREVER, str(output)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not list(output.glob("*/part-*.parquet")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    # As a terminal does: to all processes of the group.
    os.killpg(process.pid, signal.SIGINT)
    said, errors = process.communicate(timeout=60)
    assert said.startswith("interrupted"), said + errors


def test_interrupt_of_python_alone_is_passed_on_at_once(tmp_path):
    output = tmp_path / "interrupted.mg"
    # Had Python waited before it passes the interrupt on, this recording would not end.
    patient = "import memgauge.program\nmemgauge.program.INTERRUPT_SECONDS = 1000\n"
    process = subprocess.Popen(
        [sys.executable, "-c", patient + RECORD_FOREVER, str(output)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not list(output.glob("*/part-*.parquet")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=60)
    assert said.startswith("interrupted"), said + errors


# It counts the signals that reach it, and ends after a second without one.
COUNT_INTERRUPTS = """
import signal, sys, time
seen = []
signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
open(sys.argv[1], "w").close()
while not seen:
    time.sleep(0.01)
time.sleep(1)
open(sys.argv[1], "w").write(" ".join(map(str, map(int, seen))))
"""

RECORD_COUNTING = """
import memgauge as mg, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    mg.record([sys.executable, "-c", sys.argv[3], sys.argv[2]], source="clock", output=sys.argv[1])
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_interrupt_of_the_whole_group_reaches_the_recorder_once(tmp_path):
    output, seen = tmp_path / "interrupted.mg", tmp_path / "seen"
    process = subprocess.Popen(
        [sys.executable, "-c", RECORD_COUNTING, str(output), str(seen), COUNT_INTERRUPTS],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not seen.exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    said, errors = process.communicate(timeout=60)
    assert said == "interrupted\n", said + errors
    # A second interrupt would have been passed on as SIGTERM.
    assert set(seen.read_text().split()) == {str(int(signal.SIGINT))}


# It lists the signals that reach it, and ends with 7 when the file `stop` exists.
LIST_SIGNALS = """
import os, signal, sys, time
def note(number, frame):
    os.write(1, b"%d\\n" % number)
signal.signal(signal.SIGINT, note)
signal.signal(signal.SIGTERM, note)
os.write(1, b"ready\\n")
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
os._exit(7)
"""


def test_recorder_ignores_the_number_of_an_interrupt_that_it_got(tmp_path):
    stop = tmp_path / "stop"
    recorder = subprocess.Popen(
        [os.environ["MEMGAUGE"], "record", "-q", "--source", "clock", "-o", tmp_path / "x.mg", "--",
         sys.executable, "-c", LIST_SIGNALS, stop],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )
    assert recorder.stdout.readline() == "ready\n"
    _memgauge.interrupt(recorder.pid, 1)
    assert recorder.stdout.readline() == f"{int(signal.SIGINT)}\n"
    # Signals that follow each other closely count as one.
    time.sleep(0.3)
    _memgauge.interrupt(recorder.pid, 1)
    time.sleep(0.3)
    _memgauge.interrupt(recorder.pid, 2)
    assert recorder.stdout.readline() == f"{int(signal.SIGTERM)}\n"
    # Had both counted, the last one would have been SIGKILL.
    time.sleep(0.3)
    stop.touch()
    assert recorder.wait(60) == 7


RECORD_INTERRUPTED_AT_START = """
import memgauge as mg, os, signal, subprocess, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Interrupted(subprocess.Popen):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        started.append(self)
        os.killpg(0, signal.SIGINT)
started, subprocess.Popen = [], Interrupted
try:
    mg.record(["/bin/sleep", "1000"], source="clock", output=sys.argv[1])
except KeyboardInterrupt:
    print("ended", started[0].poll() is not None, flush=True)
"""


def test_ctrl_c_while_the_program_starts_waits_for_its_end(tmp_path):
    process = subprocess.run(
        [sys.executable, "-c", RECORD_INTERRUPTED_AT_START, str(tmp_path / "x.mg")],
        capture_output=True, text=True, timeout=60, start_new_session=True,
    )
    assert process.stdout == "ended True\n", process.stderr


RECORD_IN_A_DAEMON_THREAD = """
import memgauge as mg, glob, sys, threading, time
words = ["/bin/sh", "-c", "while :; do :; done"]
thread = threading.Thread(
    target=mg.record, args=[words], kwargs=dict(source="clock", output=sys.argv[1]), daemon=True
)
thread.start()
while not glob.glob(sys.argv[1] + "/*/part-*.parquet"):
    time.sleep(0.05)
"""


def test_end_of_the_interpreter_completes_a_recording(tmp_path):
    output = tmp_path / "daemon.mg"
    run = subprocess.run(
        [sys.executable, "-c", RECORD_IN_A_DAEMON_THREAD, str(output)],
        capture_output=True, text=True, timeout=120,
    )
    assert run.returncode == 0 and not run.stderr, run.stderr
    assert mg.open(output).complete


READ_IN_DAEMON_THREADS = """
import memgauge as mg, sys, threading
recording = mg.open(sys.argv[1])
def read():
    while True:
        recording.report()
        list(recording.samples())
for _ in range(3):
    threading.Thread(target=read, daemon=True).start()
recording.totals
"""


def test_interpreter_ends_while_threads_read(modelled):
    run = subprocess.run(
        [sys.executable, "-c", READ_IN_DAEMON_THREADS, modelled.path],
        capture_output=True, text=True, timeout=120,
    )
    assert run.returncode == 0 and not run.stderr, run.stderr


def test_missing_package_is_named(modelled, monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ImportError, match="pip install polars"):
        modelled.functions().to_polars()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    frame = modelled.levels().to_pandas()
    assert frame["name"].tolist() == modelled.levels()["name"]


def test_module_runs_the_command(modelled):
    run = subprocess.run(
        [sys.executable, "-m", "memgauge", "report", modelled.path, "--json"],
        capture_output=True, text=True, check=True,
    )
    assert json.loads(run.stdout) == report(modelled)


def test_command_in_one_string_is_refused():
    for arguments in ({"command": "ls -l"}, {"command": ["ls"], "options": "--sets 1/8"}):
        with pytest.raises(mg.UsageError, match="lists of words"):
            mg.record(**arguments)
