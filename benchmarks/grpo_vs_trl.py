"""Stacx against TRL's GRPOTrainer on one CPU thread each: ``python benchmarks/grpo_vs_trl.py [--json FILE]``."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workload import COMPLETIONS, GROUP, MAX_NEW_TOKENS, PROMPTS, RESULT, WARM_UP

HERE = Path(__file__).parent
SIDES = ("stacx", "trl")
SCENARIOS = {"mixed": 16, "short": 60, "long": 16}
"""Name of a model of ``task.py`` -> measured steps of a run. The first is what is measured unless told."""

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("STACX_")},
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}

RATES = ("tokens_per_second", "tokens_per_cpu_second")

Figures = dict[str, float]


def run(script: str, *arguments: str) -> str:
    """Run a script of this folder on one thread; returns its output, or ends with its errors."""
    command = [sys.executable, str(HERE / script), *arguments]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{script} failed:\n{done.stderr[-4000:]}")
    return done.stdout


def train(side: str, scenario: str, steps: int, task: Path) -> Figures:
    """One run of one side, in a process and an output folder of its own."""
    with tempfile.TemporaryDirectory() as output:
        model, sums = str(task / scenario), str(task / "sums.jsonl")
        printed = run(f"run_{side}.py", model, sums, str(steps + WARM_UP), f"{output}/run")
    line = next(line for line in printed.splitlines() if line.startswith(RESULT))
    figures: Figures = json.loads(line.removeprefix(RESULT))
    return figures


def start_up(command: Sequence[str], repeats: int) -> list[float]:
    """Seconds that an installed command takes from start to exit, after one run that warms the disk cache."""
    seconds = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        subprocess.run([str(Path(sys.executable).parent / command[0]), *command[1:]],
                       env=ENVIRONMENT, capture_output=True, check=True)  # fmt: skip
        seconds.append(time.perf_counter() - began)
    return seconds[1:]


def compare(scenario: str, steps: int, pairs: int, task: Path) -> dict[str, Any]:
    """Runs of both sides in turn, and the ratio of each pair."""
    runs: dict[str, list[Figures]] = {side: [] for side in SIDES}
    for pair in range(pairs):
        for side in SIDES:
            runs[side].append(train(side, scenario, steps, task))
            rate = runs[side][-1]["tokens_per_second"]
            print(f"{scenario}, pair {pair + 1} of {pairs}: {side} {rate:.0f} tokens/s", file=sys.stderr)
    pairs_of_runs = list(zip(*(runs[side] for side in SIDES), strict=True))
    ratios = {rate: [ours[rate] / theirs[rate] for ours, theirs in pairs_of_runs] for rate in RATES}
    return {"runs": runs, "ratios": ratios}


def spread(values: Sequence[float]) -> str:
    """Least, median and greatest."""
    return f"{min(values):.2f} / {statistics.median(values):.2f} / {max(values):.2f}"


def print_table(results: dict[str, dict[str, Any]], seconds: dict[str, list[float]]) -> None:
    """Everything measured, medians over the runs."""
    columns = (*RATES, "seconds_per_step", "mean_length", "peak_mib")
    print(f"{'':7}{'':6}{'tokens/s':>9}{'per CPU s':>11}{'s/step':>8}{'length':>8}{'peak MiB':>10}")
    for scenario, result in results.items():
        for side in SIDES:
            medians = [statistics.median(figures[name] for figures in result["runs"][side]) for name in columns]
            wall, cpu, step, length, peak = medians
            print(f"{scenario:7}{side:6}{wall:9.0f}{cpu:11.0f}{step:8.3f}{length:8.1f}{peak:10.0f}")
        print(f"{scenario:7}ratio of each pair, min / median / max: tokens/s {spread(result['ratios'][RATES[0]])}, "
              f"per CPU s {spread(result['ratios'][RATES[1]])}")  # fmt: skip
    ours, theirs = (statistics.median(values) for values in seconds.values())
    print(f"start-up: {' against '.join(seconds)}: {ours:.3f} s against {theirs:.3f} s, ratio {theirs / ours:.2f}")


def main() -> None:
    """Make the task, measure, print, and if asked write everything as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3, help="runs of each side per scenario (default 3)")
    parser.add_argument(
        "--scenario", choices=SCENARIOS, nargs="+", default=["mixed"], help="models to measure (default mixed)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every figure there")
    options = parser.parse_args()
    print(
        f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} cores, one thread each; "
        f"{PROMPTS} prompts x {GROUP} = {COMPLETIONS} completions of at most {MAX_NEW_TOKENS} tokens a step",
        flush=True,
    )
    commands = (["stacx", "list-recipes"], ["trl", "--help"])
    with tempfile.TemporaryDirectory() as folder:
        run("task.py", folder)
        results = {name: compare(name, SCENARIOS[name], options.pairs, Path(folder)) for name in options.scenario}
    seconds = {" ".join(command): start_up(command, repeats=7) for command in commands}
    print_table(results, seconds)
    if options.json:
        options.json.write_text(json.dumps({"scenarios": results, "start_up_seconds": seconds}, indent=1) + "\n")


if __name__ == "__main__":
    main()
