"""Episodes on a terminal."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from stacx_core.swe.evaluation.page import part_label
from stacx_core.swe.evaluation.trajectory import Part, Trajectory

_COLOURS = {"environment": "bright_black", "student": "blue", "teacher": "magenta"}
_SHOWN = 12
"""Lines of what the environment said that are shown unless everything is."""


def print_trajectory(trajectory: Trajectory, console: Console, everything: bool) -> None:
    """Print one episode.

    Args:
        trajectory: The episode.
        console: Where to.
        everything: Whether long outputs are shown whole.
    """
    t = trajectory
    colour = "green" if t.solved else "red" if t.failed else "yellow"
    heading = Text.assemble((f"{t.task} #{t.sample}", "bold"), "  ", (t.verdict, colour))
    console.print(heading, Text(f"  reward {t.reward:g}, {len(t.actions)} turns, outcome {t.outcome}"), sep="")
    if t.error:
        console.print(_plain(t.error, "red"))
    for place, part in enumerate(t.parts):
        console.print(_panel(part, everything or place < t.opening))
    if t.last_words:
        last = _folded(t.last_words, everything)
        console.print(Panel(last, title="the end, not shown to the agent", title_align="left", border_style=colour))


def _panel(part: Part, everything: bool) -> Panel:
    text = _folded(part.text, everything or part.who != "environment")
    return Panel(text, title=Text(part_label(part)), title_align="left", border_style=_COLOURS[part.who])


def _folded(text: str, everything: bool) -> RenderableType:
    lines = text.splitlines()
    if everything or len(lines) <= _SHOWN:
        return _plain(text)
    head, tail = lines[: _SHOWN // 2], lines[-_SHOWN // 2 :]
    note = Text(f"... {len(lines) - _SHOWN} lines, shown by --full ...", style="italic")
    return Group(_plain("\n".join(head)), note, _plain("\n".join(tail)))


def _plain(text: str, style: str = "") -> Text:
    """The text with nothing in it that a terminal would obey."""
    return Text("".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text), style)
