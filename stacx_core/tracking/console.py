"""Progress on stderr: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

SHOWN = ("train/loss", "rollout/reward_mean", "train/nll", "eval/reward_mean", "train/grad_norm")


class Console:
    """Shows each rollout.

    Args:
        total: Rollouts of the run.
        done: Rollouts completed before this process started.
        stream: Where to write; a terminal gets a progress bar.
    """

    def __init__(self, total: int, done: int, stream: TextIO) -> None:
        self.total = total
        self.stream = stream
        self._progress = _live(total, done, stream) if stream.isatty() else None

    def show(self, metrics: Mapping[str, float]) -> None:
        """Show the metrics of one rollout or evaluation."""
        text = summary(metrics)
        done = int(metrics["rollout"])
        if self._progress is None:
            print(f"rollout {done}/{self.total}  {text}", file=self.stream, flush=True)
            return
        if "eval/reward_mean" in metrics:
            self._progress.console.print(f"rollout {done}/{self.total}  {text}", highlight=False)
        self._progress.update(self._progress.task_ids[0], completed=done, metrics=text)

    def close(self) -> None:
        """Take the bar off the terminal."""
        if self._progress is not None:
            self._progress.stop()


def summary(metrics: Mapping[str, float]) -> str:
    """The metrics worth a glance, in one line."""
    parts = [f"{key.split('/')[1] if key[0] != 'e' else 'eval'} {metrics[key]:.4g}" for key in SHOWN if key in metrics]
    if "time/wait_seconds" in metrics:
        parts.append(f"{metrics['time/wait_seconds'] + metrics['time/train_seconds']:.2f} s")
    return "  ".join(parts)


def _live(total: int, done: int, stream: TextIO) -> Progress:
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    progress = Progress(
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[metrics]}"),
        console=RichConsole(file=stream),
    )
    progress.add_task("training", total=total, completed=done, metrics="")
    progress.start()
    return progress
