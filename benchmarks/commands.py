"""The command `stacx`, as the benchmarks run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def stacx(*arguments: str, log: Path) -> None:
    """Run one command with its output in a file; ends the program with it when the command fails.

    The command finds the modules beside this one.
    """
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    with log.open("w", encoding="utf-8") as output:
        command = [sys.executable, "-m", "stacx_core", *arguments]
        done = subprocess.run(command, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise SystemExit(f"stacx {' '.join(arguments)} failed:\n{log.read_text(encoding='utf-8')[-3000:]}")
