"""Curves of runs, read from their ``metrics.jsonl``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from stacx_core.errors import ConfigError, DataError

Metrics = Sequence[Mapping[str, float]]

PANELS = {
    "eval/reward_mean": "held-out reward",
    "rollout/reward_mean": "sampled reward",
    "train/nll": "negative log-likelihood",
    "train/entropy": "entropy (nats)",
}
"""Metric -> title. A panel without a point in any run is left out."""


def read_metrics(run: Path) -> Metrics:
    """All lines of a run's ``metrics.jsonl``.

    Raises:
        DataError: There is no such file, or a line is not JSON.
    """
    path = run / "metrics.jsonl"
    if not path.is_file():
        raise DataError(f"{run} holds no metrics.jsonl; name the --output-dir of a run")
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise DataError(f"{path}:{number}: not JSON: {error}") from error
    return rows


def draw_curves(runs: Mapping[str, Metrics], output: Path) -> None:
    """Write one panel per metric, one line per run.

    Raises:
        ConfigError: matplotlib is not installed, or the file type is unknown.
        DataError: No run has a point of any panel.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("stacx plot needs matplotlib: pip install 'stacx-core[plot]'") from error
    panels = [metric for metric in PANELS if any(metric in row for rows in runs.values() for row in rows)]
    if not panels:
        raise DataError(f"no run has any of {', '.join(PANELS)}")
    figure = Figure(figsize=(4.2 * len(panels), 3.4), layout="constrained")
    for axes, metric in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for name, rows in runs.items():
            points = [(row["rollout"], row[metric]) for row in rows if metric in row]
            if points:
                axes.plot(*zip(*points, strict=True), label=name, marker="o" if len(points) < 20 else "")
        axes.set_title(PANELS[metric])
        axes.set_xlabel("rollout")
        axes.grid(alpha=0.3)
        axes.legend()
    try:
        figure.savefig(output, dpi=120)
    except (ValueError, OSError) as error:
        raise ConfigError(f"cannot write {output}: {error}") from error
