"""Every recipe of flow models on scikit-learn's digits: ``python benchmarks/diffusion_effect.py [--seeds 0 1 2]``.

All arms of a seed start from one checkpoint that `flow_sft` has left under-trained, and are judged by the mean
probability that a classifier gives to the digit asked for, over 500 samples of the ODE. Two controls are rewarded for
the samples of others. Prints a table and what of it was to be expected, and writes ``table.md``, ``sheet.png`` and the
samples of every arm before and after into the folder; what is there already is not run again. Needs
``pip install -e . -e 'plugins/stacx_plugin_diffusion[digits]'``, and the extra ``diffusers`` for ``--network sd3``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from commands import stacx
from diffusion_arms import ARMS, Score
from diffusion_sheet import Drawer, write_sheet

from stacx_plugin_diffusion.digits import CLASSES, write_digits_checkpoint

GUIDANCE = 4.0
"""Of the teacher."""

SFT = (
    *("--prompt-data", "digits:train", "--rollout-batch-size", "128", "--lr", "2e-3", "--min-lr", "2e-4"),
    *("--lr-decay-style", "linear", "--lr-warmup-iters", "20"),
)


@dataclass(frozen=True)
class Scale:
    """How much is run: updates of the start, the share of each arm's rollouts, and samples of an evaluation."""

    start: int = 200
    share: float = 1.0
    samples: int = 500


TINY = Scale(start=4, share=0.02, samples=20)
TINY_ARMS = ("flow_grpo", "mix_grpo", "diffusion_nft, control", "flow_dpo, online", "flow_distill, dmd")


@dataclass(frozen=True)
class Run:
    """One command `stacx train` with its evaluation."""

    folder: Path
    recipe: str
    flags: Sequence[str]
    seed: int
    rollouts: int

    def train(self, model: Path, scale: Scale) -> None:
        """Run it on a model, unless that is done, and note how long it took."""
        seconds, began = self.folder / "seconds", time.perf_counter()
        if seconds.exists():
            return
        prompts = self.folder.parent / f"{scale.samples}.txt"
        prompts.write_text("\n".join(CLASSES[number % 10] for number in range(scale.samples)) + "\n", "utf-8")
        stacx(
            *("train", "--algorithm", self.recipe, "--hf-checkpoint", str(model), "--height", "8", "--width", "8"),
            *("--num-rollout", str(self.rollouts), "--seed", str(self.seed), "--num-threads", "1"),
            *("--eval-prompt-data", str(prompts), "--eval-rm-type", "digit_classifier", "--sample-grid", "40"),
            *("--max-states-per-gpu", "500", "--output-dir", str(self.folder), *self.flags),
            log=self.folder.with_suffix(".log"),
        )
        seconds.write_text(f"{time.perf_counter() - began:.0f}", "utf-8")

    @property
    def policy(self) -> Path:
        """The trained model, or the one that generates where it is another."""
        latest = self.folder / "checkpoints" / "latest"
        return latest / ("old" if (latest / "old").is_dir() else "policy")

    @cached_property
    def evaluations(self) -> list[dict[str, float]]:
        """Metrics before the first and after the last rollout."""
        lines = (json.loads(line) for line in (self.folder / "metrics.jsonl").read_text("utf-8").splitlines())
        return [line for line in lines if "eval/reward_mean" in line]

    def score(self, teacher: float) -> Score:
        """What it came to."""
        first, *_, last = self.evaluations
        return Score(
            before=first["eval/reward_mean"],
            after=last["eval/reward_mean"],
            diversity_before=first["eval/diversity"],
            diversity_after=last["eval/diversity"],
            seconds=float((self.folder / "seconds").read_text("utf-8")),
            teacher=teacher,
        )

    def keep_grids(self, folder: Path) -> None:
        """Copy the samples before and after."""
        folder.mkdir(exist_ok=True)
        first, *_, last = sorted((self.folder / "samples").glob("*.png"))
        for name, path in (("before", first), ("after", last)):
            shutil.copyfile(path, folder / f"{self.folder.name}_{name}.png")


class Seed:
    """All arms of one seed.

    Args:
        folder: Where they are written.
        seed: Of data, noise and weights.
        scale: How much is run.
    """

    def __init__(self, folder: Path, seed: int, scale: Scale) -> None:
        self.folder, self.seed, self.scale = folder, seed, scale
        self.start = Run(folder / "flow_sft", "flow_sft", SFT, seed, scale.start)
        self.teacher = Run(folder / "teacher", "flow_sft", (*SFT, "--guidance-scale", str(GUIDANCE)), seed, 1)

    def prepare(self, network: str) -> None:
        """Train the common start; evaluate it with guidance too, before the one rollout that a run has to have."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.start.train(write_digits_checkpoint(self.folder / "untrained", network, self.seed), self.scale)
        self.teacher.train(self.start.policy, self.scale)
        (self.folder / "prompts.txt").write_text("\n".join(CLASSES) + "\n", "utf-8")

    def run(self, name: str) -> Run:
        """An arm."""
        arm, place = ARMS[name], self.folder / name.replace(", ", "-")
        common = ("--prompt-data", str(self.folder / "prompts.txt"), "--rollout-batch-size", "10", "--lr", "3e-4")
        flags = (*common, "--n-samples-per-prompt", "12", *arm.flags)
        return Run(place, arm.recipe, flags, self.seed, max(2, round(arm.rollouts * self.scale.share)))

    def train(self, name: str) -> None:
        """Run an arm from the start."""
        run = self.run(name)
        run.train(self.start.policy, self.scale)
        run.keep_grids(self.folder / "grids")

    def score(self, name: str) -> Score:
        """Of an arm."""
        return self.run(name).score(self.teacher.evaluations[0]["eval/reward_mean"])

    def draw(self, names: Sequence[str], path: Path) -> None:
        """One picture of all models."""
        start = Drawer(self.start.policy)
        drawers = {
            "start": start,
            "start, 2 steps": replace(start, steps=2),
            f"start, guidance {GUIDANCE:g}": replace(start, guidance=GUIDANCE),
            **{name: Drawer(self.run(name).policy, ARMS[name].steps) for name in names},
        }
        write_sheet(path, drawers, self.seed)


def table(seeds: Sequence[Seed], names: Sequence[str]) -> Iterator[str]:
    """Its lines: means over the seeds, the range of the gain, and whether what is expected holds in every seed."""
    yield "| arm | rollouts | before | after | gain | diversity | seconds | expected | holds |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name in names:
        scores, expected = [seed.score(name) for seed in seeds], ARMS[name].expected
        before, after, gain, varied, varies, seconds = (
            statistics.mean(getattr(score, field) for score in scores)
            for field in ("before", "after", "gain", "diversity_before", "diversity_after", "seconds")
        )
        least, most = min(score.gain for score in scores), max(score.gain for score in scores)
        spread = f" ({least:+.3f} to {most:+.3f})" if len(scores) > 1 else ""
        holds = "yes" if all(map(expected.holds, scores)) else "no"
        yield (
            f"| {name} | {seeds[0].run(name).rollouts} | {before:.3f} | {after:.3f} | {gain:+.3f}{spread} "
            f"| {varied:.3f} to {varies:.3f} | {seconds:.0f} | {expected.text} | {holds} |"
        )
    starts = [seed.start.evaluations[-1] for seed in seeds]
    teachers = [seed.teacher.evaluations[0] for seed in seeds]
    start, teacher = (statistics.mean(line["eval/reward_mean"] for line in lines) for lines in (starts, teachers))
    yield ""
    yield f"The start scores {start:.3f}; with guidance {GUIDANCE:g}, which makes it the teacher, {teacher:.3f}."


def main() -> None:
    """Run all arms of all seeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--output", type=Path, default=Path("runs/diffusion_effect"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--network", choices=("small", "sd3"), default="small")
    parser.add_argument("--only", nargs="+", choices=list(ARMS), metavar="ARM")
    parser.add_argument("--tiny", action="store_true", help="one arm of each recipe, briefly, to see that it runs")
    options = parser.parse_args()
    scale, began = TINY if options.tiny else Scale(), time.perf_counter()
    names = options.only or list(TINY_ARMS if options.tiny else ARMS)
    seeds = [Seed(options.output / f"seed_{seed}", seed, scale) for seed in options.seeds]
    for seed in seeds:
        seed.prepare(options.network)
        for name in names:
            seed.train(name)
            print(f"seed {seed.seed}: {name}: {seed.score(name)}", flush=True)
    text = "\n".join(table(seeds, names)) + "\n"
    (options.output / "table.md").write_text(text, encoding="utf-8")
    seeds[0].draw(names, options.output / "sheet.png")
    print(f"\n{text}\n{time.perf_counter() - began:.0f} s; {options.output}")


if __name__ == "__main__":
    main()
