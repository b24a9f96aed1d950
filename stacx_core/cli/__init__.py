"""The `stacx` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from stacx_core import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (None means the process's own) and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if list(arguments) == ["--version"]:
        print(f"stacx {__version__}")
        return 0
    from stacx_core.cli.run import run

    return run(list(arguments))
