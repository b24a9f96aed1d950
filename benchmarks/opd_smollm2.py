"""SmolLM2-135M teaches a student made of its first layers, on questions of gsm8k.

    python examples/smollm2_gsm8k/prepare.py smollm2
    python benchmarks/opd_smollm2.py smollm2 gsm8k/train.jsonl --output runs/opd

Each mode starts from the same cut student. What is measured before and after is the full reverse KL(student || teacher)
per token, over the whole vocabulary, on answers that the student writes to held-out questions.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from stacx_core.backends.model import load_model, load_tokenizer, stop_ids
from stacx_core.cli import main as stacx
from stacx_core.data.prompts import load_prompts
from stacx_core.data.rendering import render_prompt
from stacx_core.rollout.engine import GenerationRequest, SamplingParams
from stacx_core.rollout.local import LocalEngine

MODES = ("k3_sample", "topk")
HELD_OUT_SEED = 7


@dataclass(frozen=True)
class Divergence:
    """Reverse KL per token on the student's own answers, its standard error over answers, and their tokens."""

    mean: float
    error: float
    tokens: int


def cut_student(teacher: Path, layers: int, folder: Path) -> None:
    """Save the teacher's first layers, with its embedding, final norm and head."""
    model = AutoModelForCausalLM.from_pretrained(teacher, dtype=torch.float32)
    model.model.layers = model.model.layers[:layers]
    model.config.num_hidden_layers = layers
    model.save_pretrained(folder)
    load_tokenizer(str(teacher)).save_pretrained(folder)


def write_prompts(source: Path, folder: Path, longest: int, held_out: int) -> None:
    """The shorter questions, in an order of our own, as training and as held-out prompts."""
    rows = [json.loads(line)["question"] for line in source.read_text(encoding="utf-8").splitlines()]
    questions = [question for question in rows if len(question) <= longest]
    random.Random(0).shuffle(questions)
    parts = {"held_out": questions[:held_out], "train": questions[held_out:]}
    for name, chosen in parts.items():
        lines = (json.dumps({"prompt": question}) + "\n" for question in chosen)
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


def reverse_kl(student: str, teacher: nn.Module, prompts: Path, new_tokens: int) -> Divergence:
    """Let the student answer each prompt, with a seed of its own, and compare both on every token of the answers."""
    model = load_model(student, torch.float32, torch.device("cpu")).eval()
    tokenizer: PreTrainedTokenizerBase = load_tokenizer(student)
    rows = load_prompts(str(prompts), input_key="prompt", label_key=None)
    requests = [GenerationRequest(render_prompt(row, tokenizer), [HELD_OUT_SEED + row.index]) for row in rows]
    answers = LocalEngine(model, stop_ids(model, tokenizer), 64).generate(requests, SamplingParams(new_tokens))
    plain = AutoModelForCausalLM.from_pretrained(student, dtype=torch.float32).eval()
    sums, counts = [], []
    for request, (answer,) in zip(requests, answers, strict=True):
        ids = torch.tensor([[*request.prompt, *answer.ids]])
        log_p, log_q = (_log_probs(m, ids, len(answer.ids)) for m in (plain, teacher))
        sums.append(float((log_p.exp() * (log_p - log_q)).sum()))
        counts.append(len(answer.ids))
    means = torch.tensor([total / count for total, count in zip(sums, counts, strict=True)])
    return Divergence(sum(sums) / sum(counts), float(means.std() / len(means) ** 0.5), sum(counts))


@torch.no_grad()
def _log_probs(model: nn.Module, ids: Tensor, count: int) -> Tensor:
    log_probs: Tensor = model(ids).logits[0, -count - 1 : -1].log_softmax(-1)
    return log_probs


def train(mode: str, teacher: Path, folder: Path, options: argparse.Namespace) -> str:
    """Run `stacx train`; returns the folder of the trained student."""
    output = folder / mode
    flags = [
        *("--algorithm", "opd", "--distill-kl-mode", mode, "--hf-checkpoint", folder / "student"),
        *("--teacher-load", teacher, "--prompt-data", folder / "train.jsonl", "--output-dir", output),
        *("--rollout-batch-size", options.batch, "--rollout-max-response-len", options.new_tokens),
        *("--num-rollout", options.rollouts, "--lr", options.lr, "--lr-warmup-iters", 3),
        *("--max-tokens-per-gpu", 2048, "--loss-aggregation", "token_mean"),
    ]
    code = stacx(["train", *map(str, flags)])
    if code:
        raise SystemExit(f"the run of {mode} ended with exit code {code}")
    return str(output / "checkpoints" / "latest" / "policy")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", type=Path, help="folder of SmolLM2-135M-Instruct")
    parser.add_argument("questions", type=Path, help="train.jsonl of gsm8k")
    parser.add_argument("--output", type=Path, default=Path("runs/opd_smollm2"), help="a new folder")
    parser.add_argument("--modes", nargs="+", default=list(MODES), help="values of --distill-kl-mode")
    parser.add_argument("--layers", type=int, default=10, help="layers of the student")
    parser.add_argument("--rollouts", type=int, default=16)
    parser.add_argument("--batch", type=int, default=16, help="answers per rollout")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--held-out", type=int, default=32, help="held-out questions")
    parser.add_argument("--longest", type=int, default=150, help="characters of a question")
    return parser.parse_args()


def main() -> None:
    """Cut the student, train it in each mode, and print the table."""
    options = parse()
    options.output.mkdir(parents=True)
    cut_student(options.teacher, options.layers, options.output / "student")
    write_prompts(options.questions, options.output, options.longest, options.held_out)
    teacher = AutoModelForCausalLM.from_pretrained(options.teacher, dtype=torch.float32).eval()
    held_out = options.output / "held_out.jsonl"
    before = reverse_kl(str(options.output / "student"), teacher, held_out, options.new_tokens)
    print(f"before: {before.mean:.3f} +- {before.error:.3f} nats per token over {before.tokens} tokens", flush=True)
    lines = ["| mode | before | after | tokens | minutes |", "|---|---|---|---|---|"]
    for mode in options.modes:
        began = time.perf_counter()
        trained = train(mode, options.teacher, options.output, options)
        minutes = (time.perf_counter() - began) / 60
        after = reverse_kl(trained, teacher, held_out, options.new_tokens)
        cells = (before, after)
        numbers = " | ".join(f"{d.mean:.3f} ± {d.error:.3f}" for d in cells)
        lines.append(f"| {mode} | {numbers} | {after.tokens} | {minutes:.1f} |")
        print(lines[-1], flush=True)
    table = "\n".join(lines) + "\n"
    (options.output / "table.md").write_text(table, encoding="utf-8")
    print(table)


if __name__ == "__main__":
    main()
