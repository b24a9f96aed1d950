"""What making rollouts ahead gains: GRPO on SGLang servers with `--max-staleness 0` and with 1, in turn.

    python benchmarks/async_rollouts.py --sglang-python ~/sglang/bin/python --sglang-args "--base-gpu-id {index}"

Both train the model and the sums of `grpo_vs_trl.py` with the same seed, flags and number of rollouts, and start
servers of their own. Tokens per second are the trained tokens of all rollouts but the first ones, over the time that
the trainer waited for these rollouts and trained on them, weights sent included. There is something to gain only where
making rollouts and training do not share their processors, as on servers with GPUs of their own, or where rollouts wait
for something else: `--reward-seconds` stands for a reward that is had elsewhere. Other flags go to both runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import workload
from task import make_task

from stacx_core.data.sample import Sample

WARM_UP = workload.WARM_UP
MODES = (0, 1)
"""Values of `--max-staleness`."""
SECONDS = "REWARD_SECONDS"
"""Tells the runs what each reward takes."""


@dataclass(frozen=True)
class Measured:
    """Of the measured rollouts of a run.

    Args:
        rate: Trained tokens per second.
        waited: Share of the time that the trainer waited.
        staleness: Updates by which the oldest weights of a rollout lagged behind, on average.
    """

    rate: float
    waited: float
    staleness: float

    @classmethod
    def of(cls, run: Path) -> Measured:
        """What the metrics of a run say."""
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        lines = lines[WARM_UP:]
        waited = sum(line["time/wait_seconds"] for line in lines)
        seconds = waited + sum(line["time/train_seconds"] for line in lines)
        tokens = sum(line["rollout/loss_tokens"] for line in lines)
        return cls(tokens / seconds, waited / seconds, statistics.mean(line["rollout/staleness"] for line in lines))


def train(folder: Path, run: Path, staleness: int, options: argparse.Namespace) -> Measured:
    """One run in a process of its own."""
    flags = {
        "--algorithm": "grpo",
        "--hf-checkpoint": folder / "mixed",
        "--prompt-data": folder / "sums.jsonl",
        "--label-key": "label",
        "--rm-type": "async_rollouts:reward",
        "--rollout-batch-size": options.prompts,
        "--n-samples-per-prompt": workload.GROUP,
        "--rollout-max-response-len": workload.MAX_NEW_TOKENS,
        "--lr": workload.LEARNING_RATE,
        "--num-rollout": WARM_UP + options.rollouts,
        "--num-threads": 1,
        "--rollout-engine": "sglang",
        "--max-staleness": staleness,
        "--sglang-launch": options.servers,
        "--sglang-python": options.sglang_python,
        "--sglang-module": options.sglang_module,
        "--output-dir": run,
    }
    command = [sys.executable, "-m", "stacx_core", "train", "--use-rollout-logprobs"]
    command += [*(str(part) for flag in flags.items() for part in flag), *options.flags]
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, SECONDS: str(options.reward_seconds), "PYTHONPATH": path}
    done = subprocess.run(
        [*command, f"--sglang-args={options.sglang_args}"], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return Measured.of(run)


def reward(sample: Sample) -> float:
    """Of the runs: the share of digits, and 1 more for the right sum."""
    time.sleep(float(os.environ[SECONDS]))
    return workload.digit_share(sample.response, sample.label or "")


def main() -> None:
    """Print a line per run, and the ratio of the two modes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--rollouts", type=int, default=20, help=f"measured ones; {WARM_UP} more go before")
    parser.add_argument("--prompts", type=int, default=32, help="of a rollout, each answered 8 times")
    parser.add_argument("--reward-seconds", type=float, default=0.0, help="that the reward of each response takes")
    parser.add_argument("--pairs", type=int, default=3, help="runs of each mode")
    parser.add_argument("--sglang-python", default=sys.executable, help="interpreter that has sglang")
    parser.add_argument("--sglang-module", default="sglang.launch_server")
    parser.add_argument("--sglang-args", default="", help="further arguments of each server")
    options, options.flags = parser.parse_known_args()
    ratios = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_task(folder)
        for pair in range(options.pairs):
            order = MODES if pair % 2 else tuple(reversed(MODES))
            found = {mode: train(folder, folder / f"{pair}-{mode}", mode, options) for mode in order}
            for mode, measured in found.items():
                print(
                    f"--max-staleness {mode}: {measured.rate:.0f} tokens/s, waited {measured.waited:.0%} of the time, "
                    f"staleness {measured.staleness:.2f}",
                    flush=True,
                )
            ratios.append(found[1].rate / found[0].rate)
    print(f"ratio: median {statistics.median(ratios):.2f} of", ", ".join(f"{ratio:.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()
