"""The quickstart: a warm start by `sft`, then `grpo` with a verifiable reward, on the CPU.

Runs the same `stacx` commands a user would type and prints each. Ends with the held-out greedy accuracy before and
after GRPO, and a picture of the curves.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

from make_task import make_task

DEMONSTRATIONS = 1000


def stacx(*arguments: str) -> None:
    """Run one command, after printing it."""
    print(f"\n$ stacx {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "stacx_core", *arguments], check=True)


def task_flags(folder: Path, seed: int) -> list[str]:
    """What both runs share: the reward, the held-out prompts, the seed."""
    return [
        *("--label-key", "label", "--rm-type", "exact"),
        *("--eval-prompt-data", str(folder / "task" / "held_out.jsonl"), "--eval-interval", "50"),
        *("--rollout-max-response-len", "8", "--lr-decay-style", "linear", "--seed", str(seed)),
    ]


def warm_start(folder: Path, seed: int) -> None:
    """Learn the format, and some of the sums, from a thousand demonstrations."""
    stacx(
        *("train", "--algorithm", "sft", "--hf-checkpoint", str(folder / "task" / "model")),
        *("--prompt-data", str(folder / "task" / "demonstrations.jsonl"), *task_flags(folder, seed)),
        *("--rollout-batch-size", "256", "--num-rollout", "150", "--lr", "1e-3"),
        *("--output-dir", str(folder / "sft")),
    )


def reinforce(folder: Path, seed: int) -> None:
    """Practise on all prompts; only whether the answer is right is told."""
    stacx(
        *("train", "--algorithm", "grpo", "--hf-checkpoint", str(folder / "sft" / "checkpoints" / "latest" / "policy")),
        *("--prompt-data", str(folder / "task" / "train.jsonl"), *task_flags(folder, seed)),
        *("--rollout-batch-size", "128", "--n-samples-per-prompt", "8", "--num-rollout", "250"),
        *("--lr", "3e-4", "--lr-warmup-iters", "80", "--output-dir", str(folder / "grpo")),
    )


def accuracies(run: Path) -> list[float]:
    """The held-out greedy accuracy at each evaluation of a run."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [row["eval/reward_mean"] for row in rows if "eval/reward_mean" in row]


def main() -> None:
    """Train, then report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="default: runs/quickstart-SEED; replaced when it exists")
    options = parser.parse_args()
    folder = options.folder or Path("runs") / f"quickstart-{options.seed}"
    if (folder / "task").exists():
        shutil.rmtree(folder)
    began = time.monotonic()
    make_task(folder / "task", options.seed, DEMONSTRATIONS)
    warm_start(folder, options.seed)
    reinforce(folder, options.seed)
    stacx("plot", str(folder / "sft"), str(folder / "grpo"), "--output", str(folder / "curves.png"))
    before, *_, after = accuracies(folder / "grpo")
    print(
        f"\nheld-out greedy accuracy: {before:.3f} after the warm start, {after:.3f} after GRPO ({after - before:+.3f})"
    )
    print(f"{time.monotonic() - began:.0f} s in all; curves: {folder / 'curves.png'}")


if __name__ == "__main__":
    main()
