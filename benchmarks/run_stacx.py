"""Train with Stacx's own command and report: ``python run_stacx.py MODEL SUMS STEPS OUTPUT``."""

from __future__ import annotations

import json
import sys

import workload

from stacx_core.cli import main as stacx
from stacx_core.data.sample import Sample


def reward(sample: Sample) -> float:
    """Stacx's reward function: one sample at a time."""
    workload.METER.count(sample.response_length)
    return workload.digit_share(sample.response, sample.label or "")


def run(model: str, sums: str, steps: int, output: str) -> None:
    """The GRPO recipe with its defaults, on one thread."""
    flags = {
        "--algorithm": "grpo",
        "--hf-checkpoint": model,
        "--prompt-data": sums,
        "--label-key": "label",
        "--rm-type": "run_stacx:reward",
        "--rollout-batch-size": workload.PROMPTS,
        "--n-samples-per-prompt": workload.GROUP,
        "--rollout-max-response-len": workload.MAX_NEW_TOKENS,
        "--rollout-temperature": 1.0,
        "--lr": workload.LEARNING_RATE,
        "--num-rollout": steps,
        "--num-threads": 1,
        "--output-dir": output,
    }
    if stacx(["train", *(str(part) for flag in flags.items() for part in flag)]):
        raise SystemExit("stacx train failed")


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
    print(workload.RESULT + json.dumps(workload.METER.report()))
