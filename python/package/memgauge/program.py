"""The program `memgauge`: where it is, and recordings made with it."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
from pathlib import Path
from typing import Iterator, List, Mapping, NoReturn, Optional, Sequence, Set, Tuple

from ._memgauge import Error, UsageError
from .recording import PathLike, Recording, open

VARIABLE = "MEMGAUGE"
"""Environment variable with the path of the program to use."""

FAILED = 125
"""Exit code of `memgauge` if it failed itself. Other codes are those of the recorded program."""

INTERRUPT_SECONDS = 5
"""Time for memgauge to end after Ctrl-C before the signal is sent to it."""


running: Set["subprocess.Popen[bytes]"] = set()
"""Recorders that this process has started and that have not ended."""


class RecordError(Error):
    """The recording failed. The message is what the command said."""


def path() -> str:
    """Path of the program: `$MEMGAUGE`, else that of this package, else the one in `$PATH`."""
    named = os.environ.get(VARIABLE)
    if named:
        return named
    folders = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", "posix_user")]
    for own in (Path(folder) / "memgauge" for folder in folders):
        if own.is_file() and os.access(own, os.X_OK):
            return str(own)
    found = shutil.which("memgauge")
    if found is None:
        raise RecordError(
            "failed to find the program `memgauge`: add its folder to PATH, or set MEMGAUGE to its path"
        )
    return found


def main() -> NoReturn:
    """Become the command, with this process's arguments."""
    try:
        program = path()
    except RecordError as error:
        sys.exit(f"memgauge: {error}")
    os.execv(program, [program, *sys.argv[1:]])


def record(
    command: Sequence[PathLike],
    *,
    machine: Optional[str] = None,
    source: Optional[str] = None,
    output: Optional[PathLike] = None,
    options: Sequence[str] = (),
    environment: Optional[Mapping[str, str]] = None,
    check: bool = False,
) -> Recording:
    """Run a command and return its recording.

    `machine` is a modelled machine (`memgauge list` shows them), `source` where events come from
    (`emulate` by default), `output` the path of the recording (by default a new folder in
    `$TMPDIR`), `options` further options of `memgauge record`, `environment` all variables
    of the command (by default those of this process). A folder in `$TMPDIR` stays until you remove it. With `check`, a command that fails
    raises `RecordError`. Ctrl-C ends the command and raises `KeyboardInterrupt`; the recording up to
    then is at `output`.
    """
    if isinstance(command, (str, bytes)) or isinstance(options, (str, bytes)):
        raise UsageError("a command and its options are lists of words: [\"ls\", \"-l\"]")
    if not command:
        raise RecordError("failed to record: no command is given")
    if output is None:
        output = Path(tempfile.mkdtemp(prefix="memgauge-")) / "recording.mg"
    words: List[str] = [path(), "record", "-q", "-o", os.fspath(output)]
    if machine is not None:
        words += ["--machine", machine]
    if source is not None:
        words += ["--source", source]
    words += [*options, "--", *(os.fspath(word) for word in command)]
    code, said = _run(words, environment)
    has_recording = os.path.exists(os.path.join(output, "manifest.json"))
    if not has_recording or code == FAILED or (check and code != 0):
        own = [line for line in said.splitlines() if line.startswith("memgauge: ")]
        message = own[-1][len("memgauge: ") :] if own else said.strip()
        raise RecordError(message or f"failed to record: `{words[-1]}` ended with {code}")
    return open(output)


@contextlib.contextmanager
def _deferred_interrupt() -> Iterator[None]:
    """Ctrl-C takes effect at the end of the block. It would otherwise end `Popen` after the process
    has started, and nobody could wait for it."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signals: List[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: signals.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signals:
        raise KeyboardInterrupt


def _run(words: Sequence[str], environment: Optional[Mapping[str, str]]) -> Tuple[int, str]:
    """Run memgauge; its exit code, and what was written to standard error."""
    with tempfile.TemporaryFile() as errors:
        process = None
        try:
            with _deferred_interrupt():
                process = subprocess.Popen(words, stderr=errors, env=environment)
                running.add(process)
            code = process.wait()
        except BaseException:
            if process is None:
                raise
            # A terminal has sent Ctrl-C to memgauge, too; a notebook has not. memgauge passes it to the
            # command and then completes the recording, which SIGTERM would cut off.
            try:
                process.wait(INTERRUPT_SECONDS)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
            process.wait()
            raise
        finally:
            if process is not None:
                running.discard(process)
        errors.seek(0)
        return code, errors.read().decode(errors="replace")


@atexit.register
def end_recordings() -> None:
    """End the recordings of threads that do not outlive the interpreter, such as daemon threads.

    memgauge passes the first SIGINT to the command, and then completes the recording. It ends a command that
    goes on with the second and third one.
    """
    for process in list(running):
        for _ in range(3):
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(INTERRUPT_SECONDS)
                break
