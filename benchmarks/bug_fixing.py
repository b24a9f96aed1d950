"""DAgger against imitation on bugs in sandboxes: ``python benchmarks/bug_fixing.py [--jobs 2]``.

An agent mends limits that are off by one (``limit_tasks.py``), by bash, in bubblewrap. Every arm of a seed starts from
the same supervised checkpoint and makes as many updates. ``sft`` learns from episodes that the expert played, with at
least as many of the expert's turns as ``online_dagger`` asked for. Prints success on held-out tasks with its range over
the seeds, and writes ``table.md`` and ``curves.png`` into the folder. Needs bubblewrap and
``pip install 'stacx-core[plot]'``.
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from commands import stacx
from limit_tasks import make_student, write_tasks
from success import HEAD, curve_of, draw, metrics_of, three_looks

EXPERT = ("--teacher", "limit_tasks:LimitExpert")
EXPERT_TURNS = 4
"""Of an episode that the expert plays: check, mend, check, submit."""
PLAY = ("--rollout-max-response-len", "24", "--max-turns", "12")
TRAIN = ("--num-threads", "1", "--max-tokens-per-gpu", "16384", "--num-steps-per-rollout", "4", "--lr", "1e-3")
FAILURES = {
    "submitted unsolved": "eval/count_unsolved",
    "malformed": "eval/count_malformed",
    "out of turns": "eval/outcome_turn_limit_frac",
}


@dataclass(frozen=True)
class Scale:
    """How much is run.

    Args:
        seeds: runs of every arm.
        tasks, held_out: to train on, and to evaluate on.
        warm_episodes, warm_epochs: of the expert, from which the common start is learnt.
        rollouts: of every arm.
        episodes: new ones in a rollout.
        replay: episodes of earlier rollouts in a rollout of `online_dagger`.
        epochs: passes over a rollout.
        eval_interval: rollouts between two looks at the held-out tasks.
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    tasks: int = 300
    held_out: int = 100
    warm_episodes: int = 128
    warm_epochs: int = 20
    rollouts: int = 20
    episodes: int = 8
    replay: int = 24
    epochs: int = 4
    eval_interval: int = 5


TINY = Scale((0,), 8, 4, warm_episodes=4, warm_epochs=2, rollouts=2, episodes=4, replay=4, epochs=1, eval_interval=1)

DAGGER = ("--rollout-batch-size", "{episodes}", "--dagger-replay", "{replay}")
SFT = ("--rollout-batch-size", "{all}", "--prompt-data", "{corpus}")
ARMS = {
    "online_dagger": ("--algorithm", "online_dagger", *EXPERT, *DAGGER),
    "sft on as many expert turns": ("--algorithm", "sft", *SFT),
}
"""The flags of each arm, in which ``{...}`` are filled in; `online_dagger` is first, since `sft` gets as many turns."""


@dataclass(frozen=True)
class Contest:
    """All arms of one seed.

    Args:
        folder: Of the seed.
        tasks: Folder of the tasks.
        seed: Of everything.
        scale: How much is run.
    """

    folder: Path
    tasks: Path
    seed: int
    scale: Scale

    def run(self) -> None:
        """Learn the common start, then run every arm."""
        self.folder.mkdir()
        make_student(self.folder / "model", self.tasks, self.seed)
        self._collect("warm", self.scale.warm_episodes, self.seed + 1000)
        epochs = ("--num-epoch", str(self.scale.warm_epochs))
        warm = ("--algorithm", "sft", "--prompt-data", str(self.folder / "warm"), "--rollout-batch-size", "16", *epochs)
        self._train("start", self.folder / "model", *warm)
        for arm, flags in ARMS.items():
            if "{corpus}" in flags:
                self._collect("corpus", -(-self.expert_turns("online_dagger") // EXPERT_TURNS), self.seed)
            self._run_arm(arm, flags)

    def output(self, arm: str) -> Path:
        """Where an arm is written."""
        return self.folder / arm.replace(",", "").replace(" ", "_")

    def expert_turns(self, arm: str) -> int:
        """The turns in which the expert said what it does."""
        if "{corpus}" in ARMS[arm]:
            return EXPERT_TURNS * int(self._corpus["episodes"])
        lines = (self.output(arm) / "roll_in.jsonl").read_text("utf-8").splitlines()
        return int(sum(json.loads(line)["labels"] for line in lines))

    def expert_tokens(self, arm: str) -> int:
        """The tokens of those turns."""
        if "{corpus}" in ARMS[arm]:
            return int(self._corpus["trained_tokens"])
        return int(sum(line.get("rollout/teacher_tokens", 0.0) for line in metrics_of(self.output(arm))))

    def failures(self, arm: str) -> list[float]:
        """The shares of held-out tasks that an arm fails at last, as in ``FAILURES``."""
        last = metrics_of(self.output(arm))[-1]
        return [last[name] / (1 if name.endswith("frac") else self.scale.held_out) for name in FAILURES.values()]

    @property
    def _corpus(self) -> dict[str, float]:
        manifest: dict[str, float] = json.loads((self.folder / "corpus" / "manifest.json").read_text("utf-8"))
        return manifest

    def _collect(self, name: str, episodes: int, seed: int) -> None:
        stacx(
            *("collect", "--hf-checkpoint", str(self.folder / "model"), *EXPERT, *self._environment, *PLAY),
            *("--num-episodes", str(episodes), "--seed", str(seed), "--output-dir", str(self.folder / name)),
            log=self.folder / f"{name}.log",
        )

    def _run_arm(self, arm: str, flags: tuple[str, ...]) -> None:
        sizes = {**vars(self.scale), "all": self.scale.episodes + self.scale.replay, "corpus": self.folder / "corpus"}
        self._train(
            self.output(arm).name,
            self.folder / "start" / "checkpoints" / "latest" / "policy",
            *(flag.format(**sizes) for flag in flags),
            *("--num-rollout", str(self.scale.rollouts), "--epochs-per-rollout", str(self.scale.epochs)),
            *(*self._environment, *PLAY, "--eval-tasks", str(self.scale.held_out)),
            *("--eval-interval", str(self.scale.eval_interval)),
        )

    def _train(self, name: str, model: Path, *flags: str) -> None:
        output = self.folder / name
        stacx(
            *("train", *flags, *TRAIN, "--lr-warmup-iters", "4", "--seed", str(self.seed)),
            *("--hf-checkpoint", str(model), "--output-dir", str(output)),
            log=output.with_suffix(".log"),
        )

    @property
    def _environment(self) -> tuple[str, ...]:
        return ("--environment", f"harbor:{self.tasks}", "--num-tasks", str(self.scale.tasks))


def table(contests: list[Contest]) -> str:
    """What every arm cost, its success, and why it fails at the end: means, and a range over the seeds."""
    columns = ("arm", "expert turns", "their tokens", *HEAD.split(" | "), *FAILURES)
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for arm in ARMS:
        costs = [mean([c.expert_turns(arm) for c in contests]), mean([c.expert_tokens(arm) for c in contests])]
        cells = [*(f"{cost:,.0f}" for cost in costs), three_looks([curve_of(c.output(arm)) for c in contests])]
        cells += [f"{mean(shares):.3f}" for shares in zip(*(c.failures(arm) for c in contests), strict=True)]
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write and try the tasks, run all arms of all seeds, and tell what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--output", type=Path, default=Path("runs/bug_fixing"))
    parser.add_argument("--jobs", type=int, default=2, help="seeds at a time, one core each")
    parser.add_argument("--tiny", action="store_true", help="one seed and a few tasks, to see that it runs")
    options = parser.parse_args()
    scale, began = TINY if options.tiny else Scale(), time.perf_counter()
    tasks = options.output / "tasks"
    write_tasks(tasks, scale.tasks, scale.held_out)
    stacx("tasks", "run-oracle", str(tasks), "--jobs", str(options.jobs), log=options.output / "oracle.log")
    contests = [Contest(options.output / f"seed_{seed}", tasks, seed, scale) for seed in scale.seeds]
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(Contest.run, contests))
    text = table(contests)
    (options.output / "table.md").write_text(text, encoding="utf-8")
    curves = {arm: [curve_of(contest.output(arm)) for contest in contests] for arm in ARMS}
    draw({"bugs in sandboxes": curves}, options.output / "curves.png")
    print(text)
    print(f"{time.perf_counter() - began:.0f} s; curves in {options.output / 'curves.png'}")


if __name__ == "__main__":
    main()
