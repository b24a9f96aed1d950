"""Held-out success of runs that are compared: read from their metrics, put into a table, drawn."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

Curve = Sequence[tuple[float, float]]
"""Rollout and held-out success at each look."""
HEAD = "at the start | half-way | at the end | range"
"""What the columns of :func:`three_looks` are called."""


def metrics_of(run: Path) -> list[dict[str, float]]:
    """What a run measured, rollout by rollout."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]


def curve_of(run: Path) -> Curve:
    """The success of a run."""
    return [(line["rollout"], line["eval/success_rate"]) for line in metrics_of(run) if "eval/success_rate" in line]


def three_looks(curves: Sequence[Curve]) -> str:
    """Means over the curves at the start, half-way and at the end, and the range at the end, as cells of a table."""
    looks = [[curve[i][1] for curve in curves] for i in (0, len(curves[0]) // 2, -1)]
    means = " | ".join(f"{statistics.mean(look):.3f}" for look in looks)
    return f"{means} | {min(looks[-1]):.3f} to {max(looks[-1]):.3f}"


def draw(pictures: Mapping[str, Mapping[str, Sequence[Curve]]], path: Path) -> None:
    """A picture per title: the mean of every arm's curves, with their range behind it."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(pictures), figsize=(6 * len(pictures), 4.5), sharey=True, squeeze=False)
    for axis, (title, arms) in zip(axes[0], pictures.items(), strict=True):
        for arm, curves in arms.items():
            rollouts = [rollout for rollout, _ in curves[0]]
            looks = list(zip(*([success for _, success in curve] for curve in curves), strict=True))
            (line,) = axis.plot(rollouts, [statistics.mean(look) for look in looks], label=arm)
            axis.fill_between(
                rollouts, list(map(min, looks)), list(map(max, looks)), color=line.get_color(), alpha=0.15
            )
        axis.set_title(title)
        axis.set_xlabel("rollouts")
    axes[0][0].set_ylabel("held-out success")
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="lower center", ncols=3)
    figure.tight_layout(rect=(0, 0.12, 1, 1))
    figure.savefig(path, dpi=100)
