"""Every recipe on one task from one warm start: ``python benchmarks/learning.py [--only NAME ...] [--jobs 2]``.

The task is the quickstart's: sums of two numbers of two digits. Each arm starts from the same supervised checkpoint and
is judged by the held-out greedy accuracy before and after. Prints a table and writes ``table.md`` into the folder.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
QUICKSTART = HERE.parent / "examples" / "quickstart"
sys.path.insert(0, str(QUICKSTART))

import torch  # noqa: E402
from commands import stacx  # noqa: E402
from make_task import make_task  # noqa: E402

from stacx_core.backends.model import load_model, load_tokenizer  # noqa: E402
from stacx_core.rollout.engine import GenerationRequest, SamplingParams  # noqa: E402
from stacx_core.rollout.local import LocalEngine  # noqa: E402
from stacx_core.seeds import sub_seed  # noqa: E402

SEED = 0
ANSWERS = 6
"""Answers sampled for the preference pairs of each sum."""


@dataclass(frozen=True)
class Arm:
    """One run of the table.

    Args:
        recipe: what is trained.
        flags: beside those that all arms share.
        metric: of ``metrics.jsonl``, compared between the first and the last evaluation.
        after: arms whose checkpoints the flags name.
    """

    recipe: str
    flags: tuple[str, ...] = ()
    metric: str = "eval/reward_mean"
    after: tuple[str, ...] = ()


ONLINE = (
    *("--prompt-data", "{task}/train.jsonl", "--label-key", "label", "--rm-type", "exact"),
    *("--rollout-batch-size", "128", "--n-samples-per-prompt", "8", "--num-rollout", "250"),
    *("--lr", "3e-4", "--lr-warmup-iters", "80", "--lr-decay-style", "linear"),
)
PAIRS = (
    *("--prompt-data", "{task}/pairs.jsonl", "--eval-pair-data", "{task}/held_out_pairs.jsonl"),
    *("--lr-decay-style", "linear"),
)

ARMS: dict[str, Arm] = {
    "grpo": Arm("grpo", ONLINE),
    "gspo": Arm("gspo", ONLINE),
    "cispo": Arm("cispo", ONLINE),
    "dapo": Arm("dapo", (*ONLINE, "--overlong-cache", "2", "--dynamic-sampling-max-rounds", "2")),
    "rloo": Arm("rloo", ONLINE),
    "reinforce_pp": Arm("reinforce_pp", ONLINE),
    "reinforce_pp_baseline": Arm("reinforce_pp_baseline", ONLINE),
    "ppo": Arm(
        "ppo",
        (*ONLINE, "--rollout-batch-size", "1024", "--n-samples-per-prompt", "1", "--critic-lr", "1e-3"),
    ),
    "grpo, shuffled rewards": Arm("grpo", (*ONLINE, "--prompt-data", "{task}/shuffled.jsonl")),
    "dpo": Arm(
        "dpo",
        (*PAIRS, "--rollout-batch-size", "128", "--num-rollout", "200", "--lr", "3e-4", "--lr-warmup-iters", "20"),
        metric="eval/accuracy",
    ),
    "reward_model": Arm(
        "reward_model",
        (*PAIRS, "--rollout-batch-size", "256", "--num-rollout", "1500", "--lr", "5e-4", "--lr-warmup-iters", "50"),
        metric="eval/accuracy",
    ),
    "grpo on the reward model": Arm(
        "grpo",
        (
            *(*ONLINE, "--rm-type", "model", "--rm-load", "{reward_model}/reward", "--eval-rm-type", "exact"),
            *("--lr", "1e-4", "--lr-warmup-iters", "20", "--lr-decay-style", "constant", "--num-rollout", "300"),
            "--disable-grpo-std-normalization",
        ),
        after=("reward_model",),
    ),
}


def warm_start(folder: Path) -> None:
    """The quickstart's task and its supervised checkpoint, shuffled labels, and preference pairs."""
    task = folder / "task"
    make_task(task, SEED, 1000)
    rng = random.Random(SEED)
    rows = read_rows(task / "train.jsonl")
    labels = [row["label"] for row in rows]
    rng.shuffle(labels)
    shuffled = [{**row, "label": label} for row, label in zip(rows, labels, strict=True)]
    write_rows(task / "shuffled.jsonl", shuffled)
    stacx(
        *("train", "--algorithm", "sft", "--hf-checkpoint", str(task / "model"), "--label-key", "label"),
        *("--prompt-data", str(task / "demonstrations.jsonl"), "--rollout-batch-size", "256", "--num-rollout", "150"),
        *("--lr", "1e-3", "--lr-decay-style", "linear", "--seed", str(SEED), "--output-dir", str(folder / "sft")),
        log=folder / "sft.log",
    )
    policy = checkpoint(folder / "sft") / "policy"
    for number, (source, target) in enumerate((("train", "pairs"), ("held_out", "held_out_pairs"))):
        write_rows(task / f"{target}.jsonl", pairs(read_rows(task / f"{source}.jsonl"), policy, SEED + number))


def pairs(rows: Sequence[dict[str, str]], policy: Path, seed: int) -> list[dict[str, str]]:
    """The right answer preferred to each wrong one that the warm start samples, and to one number at random."""
    rng = random.Random(seed)
    found = []
    for row, answers in zip(rows, sampled(policy, [row["prompt"] for row in rows], seed), strict=True):
        wrong = {*answers, str(rng.randrange(20, 199))} - {row["label"], ""}
        found += [{"prompt": row["prompt"], "chosen": row["label"], "rejected": answer} for answer in sorted(wrong)]
    return found


def sampled(policy: Path, prompts: Sequence[str], seed: int) -> list[list[str]]:
    """Answers of a model to each prompt."""
    tokenizer = load_tokenizer(str(policy))
    model = load_model(str(policy), torch.float32, torch.device("cpu"))
    engine = LocalEngine(model, [int(tokenizer.eos_token_id)], max_running=1024)
    requests = [
        GenerationRequest(tokenizer.encode(prompt), [sub_seed(seed, "pair", number, k) for k in range(ANSWERS)])
        for number, prompt in enumerate(prompts)
    ]
    generated = engine.generate(requests, SamplingParams(max_new_tokens=8))
    return [[str(tokenizer.decode(one.ids, skip_special_tokens=True)) for one in group] for group in generated]


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_rows(path: Path, rows: Sequence[dict[str, str]]) -> None:
    """Write a JSONL file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def train(name: str, folder: Path) -> None:
    """One arm, from the warm start."""
    arm, output = ARMS[name], run_folder(folder, name)
    places = {"task": folder / "task", **{other: checkpoint(run_folder(folder, other)) for other in arm.after}}
    evaluation = ("--eval-prompt-data", "{task}/held_out.jsonl") if arm.metric == "eval/reward_mean" else ()
    flags = [flag.format(**places) for flag in (*arm.flags, *evaluation)]
    start = str(checkpoint(folder / "sft") / "policy")
    began = time.monotonic()
    stacx(
        *("train", "--algorithm", arm.recipe, "--hf-checkpoint", start, "--rollout-max-response-len", "8"),
        *(*flags, "--eval-interval", "50", "--seed", str(SEED), "--output-dir", str(output)),
        log=folder / f"{output.name}.log",
    )
    (output / "seconds").write_text(f"{time.monotonic() - began:.0f}")
    print(row(name, folder), flush=True)


def run_folder(folder: Path, name: str) -> Path:
    """Where an arm writes."""
    return folder / name.replace(", ", "-").replace(" ", "-")


def checkpoint(run: Path) -> Path:
    """The last checkpoint of a run."""
    return run / "checkpoints" / "latest"


def row(name: str, folder: Path) -> str:
    """The line of the table."""
    output, metric = run_folder(folder, name), ARMS[name].metric
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    first, *_, last = [line[metric] for line in lines if metric in line]
    kind = "accuracy of held-out sums" if metric == "eval/reward_mean" else "accuracy on held-out pairs"
    return f"| {name} | {kind} | {first:.3f} | {last:.3f} | {last - first:+.3f} | {(output / 'seconds').read_text()} |"


def main() -> None:
    """Run the arms that are not done yet, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, default=Path("runs") / "learning", help="kept; finished arms are not rerun"
    )
    parser.add_argument("--only", nargs="+", choices=list(ARMS), default=list(ARMS), help="arms to run")
    parser.add_argument("--jobs", type=int, default=2, help="arms at a time")
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    if not checkpoint(folder / "sft").exists():
        warm_start(folder)
    due = [name for name in options.only if not (run_folder(folder, name) / "seconds").exists()]
    first = [name for name in due if not ARMS[name].after]
    for names in (first, [name for name in due if name not in first]):
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(train, names, [folder] * len(names)))
    header = ["| arm | measured | before | after | gain | seconds |", "|---|---|---|---|---|---|"]
    table = "\n".join([*header, *(row(name, folder) for name in options.only)])
    where = f"{datetime.date.today()}, {platform.machine()}, {os.cpu_count()} cores, {options.jobs} arms at a time"
    (folder / "table.md").write_text(f"{table}\n\n{where}\n", encoding="utf-8")
    print(f"\n{table}\n\n{where}")


if __name__ == "__main__":
    main()
