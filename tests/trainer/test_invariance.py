"""One step has one loss and one gradient, however its samples are cut, ordered or packed.

Everything goes through the worker that trains: packing, the forward pass, the recipe's loss with every term switched
on, and the accumulation of gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stacx_core import Args, Batch
from stacx_core.backends.model import load_model
from stacx_core.config import resolve_object
from stacx_core.data.batch import response_keys, samples_to_batch, select
from stacx_core.data.sample import Sample
from stacx_core.plugins import plugin_host
from stacx_core.recipes import TRAINING_CONFIGS
from stacx_core.trainer.language_worker import LanguageWorker

PROMPTS = [3, 1, 2, 4, 2, 1]
MASKS = [[1, 1, 0, 1], [1], [0, 1, 1], [1, 1, 1, 1, 1, 0], [0, 0], [1, 0]]
ROLLOUTS = [0, 1, 2, 2, 3, 4]
"""Samples 2 and 3 are cut from one rollout; sample 4 is not trained on at all."""

LOSSES = {"sft": 0, "grpo": 0, "gspo": 0, "cispo": 0, "ppo": 1}
"""Recipe -> the place of the role whose loss is looked at; of ppo the critic's."""

EVERY_TERM = {
    "use_kl_loss": True,
    "kl_loss_coef": 0.3,
    "entropy_coef": 0.05,
    "use_tis": True,
    "eps_clip_c": 1.5,
}
AGGREGATIONS = ["sample_mean", "token_mean", "seq_mean_token_sum", "constant"]
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-5}
SINGLE = 1e-6
"""For results that differ in more than the cut: even at fp64 the model computes its norms in fp32."""

Result = tuple[dict[str, float], list[Tensor]]


def samples() -> Batch:
    """Six samples with all that a policy loss reads."""
    draw = torch.Generator().manual_seed(3)
    listed = [
        Sample(
            index=i,
            rollout_id=rollout,
            tokens=torch.randint(14, (prompt + len(mask),), generator=draw).tolist(),
            response_length=len(mask),
            loss_mask=mask,
        )
        for i, (prompt, mask, rollout) in enumerate(zip(PROMPTS, MASKS, ROLLOUTS, strict=True))
    ]
    batch, _ = samples_to_batch(listed, mask_truncated=False, reward_key=None)
    for key in ("advantages", "values", "returns"):
        batch[key] = [torch.randn(len(mask), generator=draw) for mask in MASKS]
    for key in ("log_probs", "rollout_log_probs", "ref_log_probs"):
        batch[key] = [-3 * torch.rand(len(mask), generator=draw) for mask in MASKS]
    return batch


@pytest.fixture
def step(checkpoint: Path, host_args: Any) -> Any:
    """The metrics and all gradients of a step of a recipe on a batch."""

    def run(recipe: str, batch: Batch, dtype: torch.dtype = torch.float64, **given: Any) -> Result:
        config = TRAINING_CONFIGS[recipe]
        own = {knob.name: knob.default for knob in config.knobs}
        terms = {name: value for name, value in EVERY_TERM.items() if name in own}
        args: Args = host_args(
            rollout_temperature=0.7, rollout_max_response_len=6, **{**own, **config.defaults, **terms, **given}
        )
        role = config.roles[LOSSES[recipe]]
        model = load_model(str(checkpoint), dtype, torch.device("cpu"), role.head)
        if role.head == "scalar":
            torch.nn.init.normal_(model.score.weight, generator=torch.Generator().manual_seed(0))
        loss = resolve_object(role.specialization_cls)(args)
        worker = LanguageWorker(role, model, loss, args, plugin_host().hook)
        metrics = worker.backward(batch)
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        assert len(gradients) == len(list(model.parameters()))
        return metrics, gradients

    return run


def assert_same(result: Result, expected: Result, tolerance: float) -> None:
    assert result[0] == pytest.approx(expected[0], rel=tolerance, abs=tolerance)
    for gradient, wanted in zip(result[1], expected[1], strict=True):
        assert float((gradient - wanted).norm()) <= tolerance * float(wanted.norm())


CUTS = [{"micro_batch_size": 1}, {"micro_batch_size": 2}, {"micro_batch_size": 3}, {"max_tokens_per_gpu": 9}]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("recipe", LOSSES)
def test_the_cut_into_micro_batches_never_shows(step: Any, recipe: str, aggregation: str, dtype: torch.dtype) -> None:
    whole = step(recipe, samples(), dtype, loss_aggregation=aggregation)
    for cut in CUTS:
        assert_same(step(recipe, samples(), dtype, loss_aggregation=aggregation, **cut), whole, TOLERANCES[dtype])


@pytest.mark.parametrize("order", [[5, 4, 3, 2, 1, 0], [3, 0, 5, 2, 1, 4]])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("recipe", LOSSES)
def test_the_order_of_the_samples_never_shows(step: Any, recipe: str, aggregation: str, order: Sequence[int]) -> None:
    expected = step(recipe, samples(), loss_aggregation=aggregation)
    for size in (2, None):
        shuffled = step(recipe, select(samples(), order), loss_aggregation=aggregation, micro_batch_size=size)
        assert_same(shuffled, expected, 1e-10)


@pytest.mark.parametrize("filling", [float("nan"), float("inf"), 1e4])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("recipe", LOSSES)
def test_what_stands_in_a_masked_slot_never_shows(step: Any, recipe: str, aggregation: str, filling: float) -> None:
    expected = step(recipe, samples(), loss_aggregation=aggregation)
    batch = samples()
    filled = [key for key in response_keys() if key in batch and key != "loss_masks"]
    assert filled == ["rollout_log_probs", "log_probs", "ref_log_probs", "values", "advantages", "returns"]
    for key in filled:
        for values, mask in zip(batch[key], batch["loss_masks"], strict=True):
            values[mask == 0] = filling
    metrics, gradients = step(recipe, batch, loss_aggregation=aggregation)
    assert metrics == expected[0]
    assert all(torch.equal(g, e) for g, e in zip(gradients, expected[1], strict=True))


def one_prompt() -> Batch:
    """Four samples of one prompt of three tokens, which a packed forward runs once."""
    batch = select(samples(), [3, 0, 2, 5])
    for position, response in enumerate(batch["response_lengths"]):
        batch["tokens"][position] = torch.cat([torch.tensor([4, 9, 3]), batch["tokens"][position][-response:]])
        batch["total_lengths"][position] = 3 + response
    return batch


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("recipe", LOSSES)
def test_the_cut_of_a_group_with_one_prompt_never_shows(
    step: Any, recipe: str, aggregation: str, dtype: torch.dtype
) -> None:
    """A packed fp32 forward runs the prompt once for all its responses, an fp64 one for each."""
    whole = step(recipe, one_prompt(), dtype, loss_aggregation=aggregation)
    for cut in CUTS:
        part = step(recipe, one_prompt(), dtype, loss_aggregation=aggregation, **cut)
        assert_same(part, whole, TOLERANCES[dtype])


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_the_siblings_of_a_rollout_weigh_as_one(step: Any, aggregation: str) -> None:
    """A prompt token, and two responses of one rollout, against one sample with both and a masked gap between."""
    tokens = [[2, 3, 4], [2, 3, 4, 5, 6, 7]]
    cut = [
        Sample(index=0, rollout_id=0, tokens=tokens[0], response_length=2),
        Sample(index=1, rollout_id=0, tokens=tokens[1], response_length=2),
    ]
    whole = [Sample(index=0, tokens=tokens[1], response_length=5, loss_mask=[1, 1, 0, 1, 1])]
    results = [
        step("sft", samples_to_batch(s, mask_truncated=False, reward_key=None)[0], loss_aggregation=aggregation)
        for s in (cut, whole)
    ]
    assert_same(results[0], results[1], SINGLE)


def test_the_gradient_is_that_of_the_textbook_loss(step: Any, checkpoint: Path) -> None:
    """Plain cross-entropy of each sequence alone, under the model's own attention."""
    from transformers import AutoModelForCausalLM

    batch = samples()
    _, gradients = step("sft", batch, loss_aggregation="token_mean")
    model = AutoModelForCausalLM.from_pretrained(checkpoint, attn_implementation="eager", dtype=torch.float64)
    losses = []
    for tokens, mask, response in zip(batch["tokens"], MASKS, batch["response_lengths"], strict=True):
        labels = tokens.clone()
        labels[: len(tokens) - response] = -100
        labels[len(tokens) - response :][torch.tensor(mask) == 0] = -100
        logits = model(input_ids=tokens[None]).logits[0, :-1]
        losses.append(torch.nn.functional.cross_entropy(logits, labels[1:], reduction="sum", ignore_index=-100))
    (torch.stack(losses).sum() / sum(map(sum, MASKS))).backward()
    for ours, parameter in zip(gradients, model.parameters(), strict=True):
        assert float((ours - parameter.grad).norm()) <= SINGLE * float(ours.norm())
