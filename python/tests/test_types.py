"""The package is typed."""

import subprocess
import sys
from pathlib import Path

import memgauge

USE = """
import memgauge as mg
rec: mg.Recording = mg.open("x.mg")
total: mg.Total = rec.totals["llc.miss"]
value: int = total.value
table: mg.Table = rec.functions(by="llc.miss")
rec.functions(by=3)  # an error
mg.functionz  # an error
"""


def test_package_is_fully_typed_and_users_code_is_checked(tmp_path):
    (tmp_path / "use.py").write_text(USE)
    package = str(Path(memgauge.__file__).parent)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", "cache", package, "use.py"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    wrong = [line for line in run.stdout.splitlines() if "error:" in line]
    assert len(wrong) == 2 and "use.py:7" in wrong[0] and '"functionz"' in wrong[1], run.stdout
