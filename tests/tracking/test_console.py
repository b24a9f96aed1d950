"""Progress: plain lines for a file, a bar for a terminal."""

from __future__ import annotations

import io

from stacx_core.tracking.console import Console

LINE = {
    "rollout": 3.0,
    "train/loss": 0.25,
    "rollout/reward_mean": 0.5,
    "train/entropy": 1.0,
    "time/rollout_seconds": 4.0,
    "time/wait_seconds": 1.0,
    "time/train_seconds": 0.5,
}


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_plain_lines_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    console = Console(5, 0, stream)
    console.show(LINE)
    console.show({"rollout": 3.0, "eval/reward_mean": 0.75})
    console.close()
    assert stream.getvalue() == "rollout 3/5  loss 0.25  reward_mean 0.5  1.50 s\nrollout 3/5  eval 0.75\n"


def test_a_bar_on_a_terminal_that_keeps_evaluations() -> None:
    stream = Terminal()
    console = Console(5, 2, stream)
    console.show(LINE)
    console.show({"rollout": 3.0, "eval/reward_mean": 0.75})
    console.close()
    assert "3/5" in stream.getvalue()
    assert "rollout 3/5  eval 0.75" in stream.getvalue()
