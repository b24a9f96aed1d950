"""One place to hand metrics to."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from stacx_core.knobs import Args
from stacx_core.tracking.console import Console
from stacx_core.tracking.metrics_file import MetricsFile
from stacx_core.tracking.wandb_run import WandbRun


class Tracker:
    """Writes metrics to the run's folder, the console and, if asked, W&B.

    Args:
        args: The completed arguments.
        total: Rollouts of the run.
        resumed_at: Rollouts completed at the checkpoint resumed from; 0 for a fresh run.
    """

    def __init__(self, args: Args, total: int, resumed_at: int) -> None:
        folder = Path(args.output_dir)
        self._file = MetricsFile(folder / "metrics.jsonl", resumed_at)
        self._wandb = WandbRun(args, folder) if args.wandb_mode != "disabled" else None
        self._console = Console(total, resumed_at, sys.stderr)

    def log(self, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one rollout; ``rollout`` is the number of completed ones."""
        self._file.write(metrics)
        self._console.show(metrics)
        if self._wandb:
            self._wandb.log(metrics)

    def show(self, pictures: Sequence[Path], rollout: int) -> None:
        """Let who follows the run elsewhere see pictures that are in its folder."""
        if self._wandb and pictures:
            self._wandb.show(pictures, rollout)

    def close(self) -> None:
        """Finish all of them."""
        self._console.close()
        self._file.close()
        if self._wandb:
            self._wandb.close()
