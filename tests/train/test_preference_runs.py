"""`stacx train` with the recipes of preferences, on the tiny checkpoint."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from stacx_core import TRAINING_CONFIGS
from stacx_core.trainer.factory import create_trainer
from stacx_core.trainer.plan import complete

LOSSES = {
    "sigmoid": "",
    "cdpo": "--dpo-label-smoothing 0.1 --dpo-sft-coef 0.5",
    "robust": "--dpo-loss-type robust --dpo-label-smoothing 0.1",
    "hinge": "--dpo-loss-type hinge",
    "ipo": "--dpo-loss-type ipo",
    "ipo on sums": "--dpo-loss-type ipo --ipo-sum",
    "simpo": "--dpo-loss-type simpo --dpo-beta 2 --simpo-gamma 1",
    "orpo": "--dpo-loss-type orpo",
    "kto": "--dpo-loss-type kto --kto-undesirable-weight 0.5",
    "another reference": "--ref-load {reference}",
    "two steps": "--num-steps-per-rollout 2",
    "one pair at a time": "--micro-batch-size 1",
    "few tokens": "--max-tokens-per-gpu 8",
}
START = {"sigmoid": math.log(2), "hinge": 1.0, "ipo": 25.0, "ipo on sums": 25.0, "kto": 0.375}
"""Loss while the policy is its reference; 0.375 is the mean of 1/2 and a half of that."""


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen additions: the sum is chosen, a longer wrong number rejected."""
    path = tmp_path_factory.mktemp("preferences") / "pairs.jsonl"
    sums = [(a, b) for a in range(4) for b in range(4)]
    rows = [{"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": f"{(a + b + 1) % 10}1"} for a, b in sums]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def reference(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint with other weights."""
    folder = tmp_path_factory.mktemp("reference")
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def run(train: Any, metrics: Any, pairs: Path, reference: Path, tmp_path: Path) -> Any:
    """The metrics of a run on the pairs with some flags."""

    def go(recipe: str, flags: str = "", output: str = "run") -> list[dict[str, float]]:
        given = ["--prompt-data", pairs, "--eval-pair-data", pairs, "--rollout-batch-size", "8"]
        done = train(recipe, *given, *flags.format(reference=reference).split(), output=output)
        assert done.code == 0, done.err
        lines: list[dict[str, float]] = metrics(tmp_path / output)
        return lines

    return go


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_lowers_itself_on_held_out_pairs(run: Any, name: str) -> None:
    lines = run("dpo", f"{LOSSES[name]} --num-rollout 16 --check-loss-invariance")
    assert all(math.isfinite(value) for line in lines for value in line.values())
    first, last = lines[0], lines[-1]
    if name in START:
        assert first["eval/loss"] == pytest.approx(START[name], rel=1e-5)
        assert first["eval/accuracy"] == 0.5
    assert last["eval/loss"] < first["eval/loss"]
    assert last["eval/margin"] > first["eval/margin"]
    assert last["eval/accuracy"] > 0.9


def test_the_first_loss_is_that_of_policy_and_reference(
    run: Any, checkpoint: Path, reference: Path, pairs: Path
) -> None:
    models = [AutoModelForCausalLM.from_pretrained(folder) for folder in (checkpoint, reference)]
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    losses = []
    for row in map(json.loads, pairs.read_text().splitlines()):
        ratios = []
        for answer in (row["chosen"], row["rejected"]):
            ids = torch.tensor([*tokenizer.encode(row["prompt"] + answer), tokenizer.eos_token_id])
            start = len(ids) - len(answer) - 1
            with torch.no_grad():
                rows = [m(input_ids=ids[None]).logits[0].log_softmax(-1)[start - 1 : -1] for m in models]
            scores = [r.gather(1, ids[start:, None]).sum() for r in rows]
            ratios.append(scores[0] - scores[1])
        losses.append(-torch.nn.functional.logsigmoid(0.1 * (ratios[0] - ratios[1])))
    lines = run("dpo", "--ref-load {reference} --num-rollout 1 --lr 0")
    assert lines[0]["eval/loss"] == pytest.approx(float(torch.stack(losses).mean()), rel=1e-5)


def test_pairs_whose_gradient_cancels_pass_the_invariance_check(train: Any, tmp_path: Path) -> None:
    data = tmp_path / "same.jsonl"
    rows = [{"prompt": f"{a}+1=", "chosen": "1" * (1 + a % 3), "rejected": "1" * (1 + a % 3)} for a in range(8)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for dtype in ("fp32", "bf16"):
        flags = ["--prompt-data", data, "--num-rollout", "1", "--check-loss-invariance", "--dtype", dtype]
        done = train("dpo", *flags, output=dtype)
        assert done.code == 0, done.err


@pytest.mark.parametrize(("kind", "roles"), [("sigmoid", ["policy", "ref"]), ("simpo", ["policy"])])
def test_a_loss_without_reference_loads_none(
    host_args: Any, checkpoint: Path, pairs: Path, tmp_path: Path, kind: str, roles: list[str]
) -> None:
    config = TRAINING_CONFIGS["dpo"]
    own = {knob.name: knob.default for knob in config.knobs} | {"dpo_loss_type": kind}
    files = {"hf_checkpoint": str(checkpoint), "prompt_data": str(pairs), "output_dir": str(tmp_path / "run")}
    trainer = create_trainer(config, complete(config, host_args(**files, **own, num_rollout=1)))
    trainer.tracker.close()
    assert list(trainer.parts.learner.workers) == roles
    assert trainer.parts.learner.reference is None


def test_a_resumed_run_is_the_unbroken_one(run: Any) -> None:
    whole = run("dpo", "--dpo-loss-type kto --num-rollout 4 --num-steps-per-rollout 2", output="whole")
    run("dpo", "--dpo-loss-type kto --num-rollout 2 --num-steps-per-rollout 2", output="parts")
    parts = run("dpo", "--dpo-loss-type kto --num-rollout 4 --num-steps-per-rollout 2 --resume", output="parts")
    assert parts[-1] == pytest.approx(whole[-1], abs=1e-6)


def test_unpaired_rows_and_their_baseline(train: Any, metrics: Any, tmp_path: Path) -> None:
    data = tmp_path / "single.jsonl"
    rows = [
        {"prompt": f"{a}+1=", "completion": str(a + good), "label": bool(good)} for a in range(4) for good in (0, 1)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--dpo-loss-type", "kto", "--prompt-data", data, "--rollout-batch-size", "8", "--num-rollout", "20"]
    assert train("dpo", *flags).code == 0
    lines = metrics(tmp_path / "run")
    assert lines[0]["train/kto_baseline"] == 0.0
    assert lines[0]["train/loss"] == pytest.approx(0.5)
    assert lines[-1]["train/accuracy"] > lines[0]["train/accuracy"] == 0.5
    assert all(line["train/kto_baseline"] >= 0 for line in lines)


def test_what_a_loss_would_ignore_is_refused_before_anything_is_written(
    train: Any, pairs: Path, reference: Path, tmp_path: Path
) -> None:
    for flags in (["hinge", "--dpo-label-smoothing", "0.1"], ["simpo", "--ref-load", reference], ["sigmond"]):
        done = train("dpo", "--prompt-data", pairs, "--num-rollout", "1", "--dpo-loss-type", *flags)
        assert done.code == 2
        assert "--dpo-loss-type" in done.err
    assert not (tmp_path / "run").exists()


def test_a_run_whose_pairs_are_all_cut_away_stops(train: Any, tmp_path: Path) -> None:
    """Prompt 12, responses 3 and 5, limit 8."""
    data = tmp_path / "long.jsonl"
    data.write_text(json.dumps({"prompt": "1+1+1+1+1+1=", "chosen": "12", "rejected": "1234"}) + "\n")
    done = train("dpo", "--prompt-data", data, "--num-rollout", "1", "--max-sequence-len", "8")
    assert done.code == 2
    assert "all 1 rows lose a response to the limit of 8 tokens" in done.err


def test_a_reward_model_learns_and_then_rewards(run: Any, train: Any, checkpoint: Path, tmp_path: Path) -> None:
    lines = run("reward_model", "--num-rollout 30 --rm-center-coef 0.01 --check-loss-invariance")
    assert lines[0]["eval/loss"] == pytest.approx(math.log(2))
    assert (lines[0]["eval/accuracy"], lines[0]["eval/margin"]) == (0.5, 0.0)
    assert lines[-1]["eval/accuracy"] == 1.0
    assert lines[-1]["eval/rewards_chosen"] > lines[-1]["eval/rewards_rejected"]
    folder = tmp_path / "run" / "checkpoints" / "latest" / "reward"
    assert AutoModelForSequenceClassification.from_pretrained(folder).config.num_labels == 1
    flags = ["--rm-type", "model", "--rm-load", folder, "--n-samples-per-prompt", "4", "--num-rollout", "1"]
    done = train("grpo", *flags, output="policy")
    assert done.code == 0, done.err


def test_margins_of_a_column(train: Any, metrics: Any, tmp_path: Path) -> None:
    """A head that starts at zero pays -log sigmoid(-margin)."""
    data = tmp_path / "margins.jsonl"
    rows = [{"prompt": "1+1=", "chosen": "2", "rejected": "3", "margin": margin} for margin in (0.5, 1.0)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--prompt-data", data, "--rollout-batch-size", "2", "--num-rollout", "1"]
    expected = {"plain": math.log(2), "margin": (math.log1p(math.exp(0.5)) + math.log1p(math.exp(1.0))) / 2}
    for name, more in (("plain", []), ("margin", ["--margin-key", "margin"])):
        assert train("reward_model", *flags, *more, output=name).code == 0
        assert metrics(tmp_path / name)[0]["train/loss"] == pytest.approx(expected[name])
