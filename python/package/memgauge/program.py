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
from typing import Any, Iterator, List, Mapping, NoReturn, Optional, Sequence, Set, Tuple

from . import _memgauge
from ._memgauge import Error, UsageError
from .arguments import PathLike, items, optional_text, refused, texts
from .arguments import path as path_text
from .recording import Recording, open

VARIABLE = "MEMGAUGE"
"""Environment variable with the path of the program to use."""

FAILED = 125
"""Exit code of `memgauge` if it failed itself. Other codes are those of the recorded program."""

INTERRUPT_SECONDS = 5
"""Time for memgauge to end after an interrupt when the interpreter ends."""

WORDS = 'a list of words: ["ls", "-l"]'


running: Set["subprocess.Popen[bytes]"] = set()
"""Recorders that this process has started and that have not ended."""


class RecordError(Error):
    """The recording failed. The message is what the command said."""


def path() -> str:
    """Path of the program: `$MEMGAUGE`, else that of this package, else the one in `$PATH`.

    Raises:
        RecordError: There is none.
    """
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
        try:
            os.execv(program, [program, *sys.argv[1:]])
        except OSError as error:
            raise _not_started(program, error) from error
    except RecordError as error:
        sys.exit(f"memgauge: {error}")


def _not_started(program: str, error: OSError) -> RecordError:
    """The exception for a program that cannot be started."""
    named = os.environ.get(VARIABLE) == program
    fix = f"; {VARIABLE} names it: correct or unset it" if named else ""
    return RecordError(f"failed to run `{program}`: {error.strerror or error}{fix}")


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

    Raises:
        RecordError: The command or memgauge cannot be started, or the recording failed; with `check`, the
            command failed, too. The message is that of `memgauge record`.
        UsageError: An argument has another type, such as a command in one text.
    """
    if isinstance(command, (str, bytes)) or isinstance(options, (str, bytes)):
        raise UsageError("a command and its options are lists of words: [\"ls\", \"-l\"]")
    recorded = [path_text(word, "command", WORDS) for word in items(command, "command", WORDS)]
    further = texts(options, "options")
    machine, source = optional_text(machine, "machine"), optional_text(source, "source")
    variables = _variables(environment)
    if not recorded:
        raise RecordError("failed to record: no command is given")
    folder = _new_folder() / "recording.mg" if output is None else path_text(output, "output")
    output = os.fspath(folder)
    words: List[str] = [path(), "record", "-q", "-o", output]
    if machine is not None:
        words += ["--machine", machine]
    if source is not None:
        words += ["--source", source]
    words += [*further, "--", *recorded]
    code, said = _run(words, variables)
    has_recording = os.path.exists(os.path.join(output, "manifest.json"))
    if not has_recording or code == FAILED or (check and code != 0):
        own = [line for line in said.splitlines() if line.startswith("memgauge: ")]
        message = own[-1][len("memgauge: ") :] if own else said.strip()
        raise RecordError(message or f"failed to record: `{words[-1]}` ended with {code}")
    return open(output)


def _new_folder() -> Path:
    try:
        return Path(tempfile.mkdtemp(prefix="memgauge-"))
    except OSError as error:
        raise RecordError(
            f"failed to make a folder for the recording: {error.strerror}; pass output=, or set TMPDIR"
        ) from error


def _variables(environment: Any) -> Optional[Mapping[str, str]]:
    """Environment variables that a process can have."""
    if environment is None:
        return None
    if not isinstance(environment, Mapping):
        raise refused("environment", environment, "a dictionary of texts")
    for name, value in environment.items():
        is_text = isinstance(name, str) and isinstance(value, str)
        if not is_text or not name or "=" in name or "\0" in name + value:
            raise refused("environment", {name: value}, "names and values that are texts")
    return environment


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
                try:
                    process = subprocess.Popen(words, stderr=errors, env=environment)
                except OSError as error:
                    raise _not_started(words[0], error) from error
                running.add(process)
            code = process.wait()
        except BaseException:
            if process is None:
                raise
            _pass_on_interrupts(process)
            raise
        finally:
            if process is not None:
                running.discard(process)
        errors.seek(0)
        return code, errors.read().decode(errors="replace")


def _pass_on_interrupts(process: "subprocess.Popen[bytes]") -> None:
    """Pass an interrupt of this process, and further ones, on to memgauge, and wait for its end.

    memgauge passes the first one to the command and then completes the recording, which SIGTERM would cut off. A
    terminal sends Ctrl-C to memgauge, too; a notebook does not. Therefore each has its number: memgauge
    ignores those that it got already.
    """
    number = 1
    while True:
        if process.poll() is None:
            with contextlib.suppress(OSError):
                _memgauge.interrupt(process.pid, number)
        try:
            process.wait()
            return
        except KeyboardInterrupt:
            number += 1


@atexit.register
def end_recordings() -> None:
    """End the recordings of threads that do not outlive the interpreter, such as daemon threads.

    memgauge ends a command that goes on after the first interrupt with the second and third one.
    """
    for process in list(running):
        for number in range(1, 4):
            if process.poll() is None:
                with contextlib.suppress(OSError):
                    _memgauge.interrupt(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(INTERRUPT_SECONDS)
                break
