"""DAgger against its neighbours in a guessing game: ``python benchmarks/dagger_effect.py [--jobs 2]``.

Every arm starts from the same supervised checkpoint and is given the same number of teacher labels. A label is a token
that the teacher wrote or scored and that was trained on; each is trained on once. Held-out success is measured on the
way. Prints the success at the largest number of labels that every run reached, with its spread over the seeds, and
writes ``table.md`` and ``curves.png`` into the folder. The game needs ``pip install 'stacx-core[textarena,plot]'``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from guessing import GAME, make_student

HERE = Path(__file__).parent
EXPERT = ("--teacher", "guessing:HalvingExpert")
SHARED = (
    *("--rollout-max-response-len", "8", "--max-turns", "12", "--num-threads", "1", "--max-tokens-per-gpu", "8192"),
    *("--lr-warmup-iters", "4", "--num-steps-per-rollout", "4"),
)


@dataclass(frozen=True)
class Scale:
    """How much is run.

    Args:
        seeds: runs of every arm.
        warm_episodes, warm_epochs: of the teacher, from which the common start is learnt.
        rollouts: of every arm; the corpus of `sft` has as many episodes.
        episodes: of a rollout.
        eval_tasks, eval_interval: held-out games, and rollouts between two looks at them.
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    warm_episodes: int = 64
    warm_epochs: int = 12
    rollouts: int = 60
    episodes: int = 32
    eval_tasks: int = 200
    eval_interval: int = 5


TINY = Scale(seeds=(0,), warm_episodes=16, warm_epochs=4, rollouts=2, episodes=4, eval_tasks=8, eval_interval=1)

ARMS: dict[str, tuple[str, ...]] = {
    "sft on trajectories": ("sft", "--prompt-data", "{folder}/corpus"),
    "online_dagger": ("online_dagger", *EXPERT),
    "mixture_dagger_opd": ("mixture_dagger_opd", *EXPERT),
    "mixture_aggrevate_opd": (*("mixture_aggrevate_opd", *EXPERT, "--aggrevate-step", "2", "--aggrevate-cap", "10"),),
    "opd": ("opd", *EXPERT),
}
"""Arm -> its recipe and flags."""

LR = {"sft on trajectories": "1e-3", "online_dagger": "1e-3"}
"""Of the arms on cross-entropy alone; the others take ``OTHER_LR``."""
OTHER_LR = "1e-3"


def stacx(*arguments: str, log: Path) -> None:
    """Run one command with its output in a file; ends the program with it when the command fails."""
    path = os.pathsep.join([str(HERE), *sys.path])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    with log.open("w", encoding="utf-8") as output:
        command = [sys.executable, "-m", "stacx_core", *arguments]
        done = subprocess.run(command, env=environment, stdout=output, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        raise SystemExit(f"stacx {' '.join(arguments)} failed:\n{log.read_text(encoding='utf-8')[-3000:]}")


def prepare(folder: Path, scale: Scale, game: str, seed: int) -> None:
    """The common start of a seed, and the corpus of teacher episodes for its `sft` arm."""
    folder.mkdir(parents=True)
    make_student(folder / "model", game, seed)
    plays = (
        "--hf-checkpoint",
        str(folder / "model"),
        *EXPERT,
        "--environment",
        game,
        "--rollout-max-response-len",
        "8",
    )
    for name, count, drawn in (
        ("warm", scale.warm_episodes, seed + 1000),
        ("corpus", scale.rollouts * scale.episodes, seed),
    ):
        stacx(
            *("collect", *plays, "--num-episodes", str(count), "--seed", str(drawn), "--max-turns", "12"),
            *("--output-dir", str(folder / name)),
            log=folder / f"{name}.log",
        )
    stacx(
        *("train", "--algorithm", "sft", "--hf-checkpoint", str(folder / "model"), "--seed", str(seed), *SHARED),
        *("--prompt-data", str(folder / "warm"), "--rollout-batch-size", "16", "--lr", "3e-3"),
        *("--num-epoch", str(scale.warm_epochs), "--output-dir", str(folder / "start")),
        *("--environment", game, "--eval-tasks", str(scale.eval_tasks), "--skip-eval-before-train"),
        log=folder / "start.log",
    )


def run_arm(folder: Path, scale: Scale, game: str, seed: int, arm: str) -> None:
    """Train one arm of one seed."""
    recipe, *flags = (flag.format(folder=folder) for flag in ARMS[arm])
    stacx(
        *("train", "--algorithm", recipe, *flags, "--seed", str(seed), *SHARED, "--lr", LR.get(arm, OTHER_LR)),
        *("--hf-checkpoint", str(folder / "start" / "checkpoints" / "latest" / "policy"), "--environment", game),
        *("--rollout-batch-size", str(scale.episodes), "--num-rollout", str(scale.rollouts)),
        *("--eval-tasks", str(scale.eval_tasks), "--eval-interval", str(scale.eval_interval)),
        *("--output-dir", str(folder / arm)),
        log=folder / f"{arm}.log",
    )


def curve(run: Path) -> Iterator[tuple[float, float]]:
    """Labels trained on so far, and the held-out success then."""
    labels = 0.0
    for line in map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()):
        labels += line.get("rollout/loss_tokens", 0.0)
        if "eval/success_rate" in line:
            yield labels, line["eval/success_rate"]


def at(points: Sequence[tuple[float, float]], labels: float) -> float:
    """The success at a number of labels, on the line between the two looks around it."""
    for (left, before), (right, after) in itertools.pairwise(points):
        if left <= labels <= right:
            return before + (after - before) * (labels - left) / (right - left)
    return points[-1][1]


def table(curves: dict[str, list[list[tuple[float, float]]]]) -> str:
    """Success of every arm at half and at all of the labels that each run reached, mean and range over the seeds."""
    budget = min(points[-1][0] for runs in curves.values() for points in runs)
    lines = [
        f"| arm | at the start | {budget / 2:.0f} labels | {budget:.0f} labels | range over seeds |",
        "|---|---|---|---|---|",
    ]
    for arm, runs in curves.items():
        first, half, full = ([at(points, n) for points in runs] for n in (0.0, budget / 2, budget))
        means = " | ".join(f"{statistics.mean(values):.3f}" for values in (first, half, full))
        lines.append(f"| {arm} | {means} | {min(full):.3f} to {max(full):.3f} |")
    return "\n".join(lines) + "\n"


def draw(curves: dict[str, list[list[tuple[float, float]]]], path: Path) -> None:
    """The mean success of every arm over its labels, with the range of the seeds behind it."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5))
    for arm, runs in curves.items():
        end = min(points[-1][0] for points in runs)
        grid = [end * i / 50 for i in range(51)]
        rows = [[at(points, labels) for points in runs] for labels in grid]
        (line,) = axes.plot(grid, [statistics.mean(row) for row in rows], label=arm)
        axes.fill_between(grid, list(map(min, rows)), list(map(max, rows)), color=line.get_color(), alpha=0.15)
    axes.set_xlabel("teacher labels (tokens)")
    axes.set_ylabel("held-out success")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    """Run all arms of all seeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--output", type=Path, default=Path("runs/dagger_effect"))
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one core each")
    parser.add_argument("--game", default=GAME)
    parser.add_argument("--only", nargs="*", default=list(ARMS), choices=list(ARMS), metavar="ARM")
    parser.add_argument("--tiny", action="store_true", help="one seed and a few games, to see that it runs")
    options = parser.parse_args()
    scale, began = TINY if options.tiny else Scale(), time.perf_counter()
    folders = {seed: options.output / f"seed_{seed}" for seed in scale.seeds}
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda seed: prepare(folders[seed], scale, options.game, seed), scale.seeds))
        arms = [(seed, arm) for arm in options.only for seed in scale.seeds]
        list(pool.map(lambda run: run_arm(folders[run[0]], scale, options.game, *run), arms))
    curves = {arm: [list(curve(folders[seed] / arm)) for seed in scale.seeds] for arm in options.only}
    text = table(curves)
    (options.output / "table.md").write_text(text, encoding="utf-8")
    draw(curves, options.output / "curves.png")
    print(text)
    print(f"{time.perf_counter() - began:.0f} s; curves in {options.output / 'curves.png'}")


if __name__ == "__main__":
    main()
