"""DAgger against its neighbours in a guessing game: ``python benchmarks/dagger_effect.py [--jobs 2]``.

Every arm of a seed starts from the same supervised checkpoint. ``sft`` learns from episodes that the expert played,
with as many updates as ``online_dagger`` makes and more labels. A label is a token that the teacher wrote or scored.
The game is played twice: as it is, and by a hand that is shaky except when the expert shows how. Prints held-out
success with its range over the seeds, and writes ``table.md`` and ``curves.png`` into the folder. Needs
``pip install 'stacx-core[textarena,plot]'``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from commands import stacx
from guessing import make_student
from success import HEAD, Curve, curve_of, draw, metrics_of, three_looks

EXPERT = ("--teacher", "guessing:HalvingExpert")
SHOWN = "guessing:SteadyHand"
"""Where the expert plays for `sft` and for the common start."""
GAMES = {"steady hand": SHOWN, "shaky hand": "guessing:ShakyHand"}
PLAY = ("--rollout-max-response-len", "6", "--max-turns", "8")
TRAIN = ("--num-threads", "1", "--max-tokens-per-gpu", "8192", "--num-steps-per-rollout", "4", "--lr-warmup-iters", "4")


@dataclass(frozen=True)
class Scale:
    """How much is run.

    Args:
        seeds: runs of every arm.
        warm_episodes, warm_epochs: of the expert, from which the common start is learnt.
        rollouts: of every arm.
        episodes: new ones in a rollout.
        replay: episodes of earlier rollouts in a rollout of `online_dagger`; the others take as many more new ones.
        epochs: passes over a rollout.
        corpus: episodes of the expert for `sft`.
        eval_tasks, eval_interval: held-out games, and rollouts between two looks at them.
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    warm_episodes: int = 16
    warm_epochs: int = 30
    rollouts: int = 30
    episodes: int = 16
    replay: int = 48
    epochs: int = 4
    corpus: int = 800
    eval_tasks: int = 400
    eval_interval: int = 5


TINY = Scale((0,), warm_episodes=8, warm_epochs=2, rollouts=2, episodes=4, replay=4, epochs=1, corpus=16, eval_tasks=8)


@dataclass(frozen=True)
class Arm:
    """A recipe and its flags, in which ``{...}`` are filled in."""

    recipe: str
    flags: tuple[str, ...]


SEVERAL_PASSES = ("--epochs-per-rollout", "{epochs}", "--lr", "1e-3")
ONE_PASS = ("--rollout-batch-size", "{episodes}", "--lr", "3e-4")
"""Distillation is on-policy: a second pass would learn from what the student no longer does."""
FALLING = ("--dagger-beta-decay", "{rollouts}")
DAGGER = (*EXPERT, "--rollout-batch-size", "{episodes}", *SEVERAL_PASSES, *FALLING)
TAKEOVER = ("--aggrevate-step", "1", "--aggrevate-cap", "7")
ARMS = {
    "sft on the expert's episodes": Arm(
        "sft", ("--prompt-data", "{corpus}", "--rollout-batch-size", "{all}", *SEVERAL_PASSES)
    ),
    "online_dagger": Arm("online_dagger", (*DAGGER, "--dagger-replay", "{replay}")),
    "online_dagger, nothing replayed": Arm("online_dagger", DAGGER),
    "mixture_dagger_opd": Arm("mixture_dagger_opd", (*EXPERT, *ONE_PASS, *FALLING)),
    "mixture_aggrevate_opd": Arm("mixture_aggrevate_opd", (*EXPERT, *ONE_PASS, *TAKEOVER)),
    "opd": Arm("opd", (*EXPERT, *ONE_PASS)),
}


def prepare(folder: Path, scale: Scale, seed: int) -> None:
    """The common start of a seed, and the expert's episodes for its `sft` arms."""
    folder.mkdir(parents=True)
    make_student(folder / "model", seed)
    for name, count, drawn in (("warm", scale.warm_episodes, seed + 1000), ("corpus", scale.corpus, seed)):
        stacx(
            *("collect", "--hf-checkpoint", str(folder / "model"), *EXPERT, "--environment", SHOWN, *PLAY),
            *("--num-episodes", str(count), "--seed", str(drawn), "--output-dir", str(folder / name)),
            log=folder / f"{name}.log",
        )
    stacx(
        *("train", "--algorithm", "sft", "--hf-checkpoint", str(folder / "model"), "--seed", str(seed), *TRAIN),
        *("--prompt-data", str(folder / "warm"), "--rollout-batch-size", "8", "--lr", "3e-3"),
        *("--num-epoch", str(scale.warm_epochs), "--output-dir", str(folder / "start")),
        log=folder / "start.log",
    )


@dataclass(frozen=True)
class Run:
    """One arm of one seed in one game."""

    folder: Path
    seed: int
    game: str
    arm: str

    @property
    def output(self) -> Path:
        """Where it is written."""
        return self.folder / self.game.replace(" ", "_") / self.arm.replace(" ", "_")

    def train(self, scale: Scale) -> None:
        """Run it."""
        arm, sizes = ARMS[self.arm], {**vars(scale), "all": scale.episodes + scale.replay}
        flags = [flag.format(**{**sizes, "corpus": self.folder / "corpus"}) for flag in arm.flags]
        self.output.parent.mkdir(exist_ok=True)
        stacx(
            *("train", "--algorithm", arm.recipe, *flags, "--seed", str(self.seed), *PLAY, *TRAIN),
            *("--hf-checkpoint", str(self.folder / "start" / "checkpoints" / "latest" / "policy")),
            *("--num-rollout", str(scale.rollouts), "--environment", GAMES[self.game]),
            *("--eval-tasks", str(scale.eval_tasks), "--eval-interval", str(scale.eval_interval)),
            *("--output-dir", str(self.output)),
            log=self.output.with_suffix(".log"),
        )

    @property
    def labels(self) -> int:
        """Tokens that the teacher wrote or scored."""
        if ARMS[self.arm].recipe == "sft":
            manifest = json.loads((self.folder / "corpus" / "manifest.json").read_text("utf-8"))
            return int(manifest["trained_tokens"])
        lines, names = metrics_of(self.output), ("rollout/teacher_tokens", "rollout/scored_tokens")
        if not any(name in lines[-1] for name in names):
            names = ("rollout/loss_tokens",)
        return int(sum(line.get(name, 0.0) for line in lines for name in names))


def table(runs: list[Run]) -> str:
    """Success of every arm at the start, half-way and at the end, means and ranges over the seeds."""
    lines = [f"| game | arm | labels | {HEAD} |", "|---|---|---|---|---|---|---|"]
    for (game, arm), group in grouped(runs).items():
        labels = round(statistics.mean(run.labels for run in group))
        lines.append(f"| {game} | {arm} | {labels:,} | {three_looks([curve_of(run.output) for run in group])} |")
    return "\n".join(lines) + "\n"


def grouped(runs: list[Run]) -> dict[tuple[str, str], list[Run]]:
    """The runs of each arm of each game."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.game, run.arm), []).append(run)
    return groups


def main() -> None:
    """Run all arms of all seeds in both games."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--output", type=Path, default=Path("runs/dagger_effect"))
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one core each")
    parser.add_argument("--only", nargs="*", default=list(ARMS), choices=list(ARMS), metavar="ARM")
    parser.add_argument("--tiny", action="store_true", help="one seed and a few games, to see that it runs")
    options = parser.parse_args()
    scale, began = TINY if options.tiny else Scale(), time.perf_counter()
    folders = {seed: options.output / f"seed_{seed}" for seed in scale.seeds}
    runs = [Run(folders[seed], seed, game, arm) for game in GAMES for arm in options.only for seed in scale.seeds]
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda seed: prepare(folders[seed], scale, seed), scale.seeds))
        list(pool.map(lambda run: run.train(scale), runs))
    text = table(runs)
    (options.output / "table.md").write_text(text, encoding="utf-8")
    pictures: dict[str, dict[str, list[Curve]]] = {game: {} for game in GAMES}
    for (game, arm), group in grouped(runs).items():
        pictures[game][arm] = [curve_of(run.output) for run in group]
    draw(pictures, options.output / "curves.png")
    print(text)
    print(f"{time.perf_counter() - began:.0f} s; curves in {options.output / 'curves.png'}")


if __name__ == "__main__":
    main()
