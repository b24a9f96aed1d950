"""The `stacx` command."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from stacx_core import __version__
from stacx_core.errors import ExitCode

INTERRUPTED = "error: interrupted\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    Args:
        arguments: of the command; None means that this process is the command, so that its own arguments are taken
            and Ctrl-C ends it at once, but for a training run, which saves first.
    """
    if arguments is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _quit)
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments == ["--version"]:
        print(f"stacx {__version__}")
        return 0
    try:
        from stacx_core.cli.run import run

        return run(arguments)
    except KeyboardInterrupt:
        sys.stderr.write(INTERRUPTED)
        return ExitCode.INTERRUPTED


def _quit(number: int, frame: FrameType | None) -> None:
    """Say so and end; an exception would turn into another one in the imports of some libraries."""
    os.write(2, INTERRUPTED.encode())
    os._exit(ExitCode.INTERRUPTED)
