"""Facts of the machine that a benchmark ran on: without them a number means nothing."""

import os
import platform
import subprocess
import time
from pathlib import Path


def machine_facts(tools):
    """The machine, the moment, and the first line each of `tools` says of its version."""
    return {
        "time_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpu": field("/proc/cpuinfo", "model name"),
        "cores": os.cpu_count(),
        "memory": field("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "load_before": os.getloadavg()[0],
        "versions": {name: version(path) for name, path in tools.items()},
        "commit": first_line(["git", "describe", "--always", "--dirty"], cwd=Path(__file__).parent),
    }


def field(path, name):
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def version(program):
    return first_line([program, "--version"])


def first_line(argv, cwd=None):
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=cwd)
    except (OSError, subprocess.CalledProcessError):
        return None
    return next(iter(done.stdout.splitlines()), None)
