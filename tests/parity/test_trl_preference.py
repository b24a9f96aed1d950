"""The preference losses of TRL 1.16.0 against ours, from the same tokens and weights.

TRL's side is a real trainer of each kind, ``DPOTrainer``, ``CPOTrainer``, ``ORPOTrainer``, ``KTOTrainer`` and
``RewardTrainer``, whose own code pads and scores. Ours is the worker that trains, on packed tokens. The reference is
the checkpoint; the policy has moved away from it.

Where the two differ by design:

- A supervised term is in TRL a mean over the tokens of all chosen responses, in ours over pairs of the mean of each.
  They are the same for one pair, so such losses are compared as the mean of TRL's losses of single pairs.
- TRL's sigmoid loss has no label smoothing. Its ``aot`` has, and is for a single pair the smoothed sigmoid loss.
- TRL's ``orpo`` takes the supervised term over the prompt as well. A prompt of one token adds nothing to it.
- TRL measures KTO's baseline z in each batch with the policy as it is, we once per rollout before its first update;
  here that is the same moment.
- A pair with a side on which nothing is trained counts in TRL as evidence of 0. We leave it out; there is none here.

TRL has neither ``ipo`` on sums with a reference nor ``simpo`` with one; all other losses of ours are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stacx_core.config import resolve_object
from stacx_core.data.batch import Batch, samples_to_batch
from stacx_core.data.sample import Sample
from stacx_plugin_preference.kto import MISMATCHED
from stacx_plugin_preference.rows import MARGIN

pytest.importorskip("trl", reason="trl is not installed; `nox -s trl` installs it and runs these tests")

PROMPTS = [[2, 3, 4], [5, 6], [9]]
CHOSEN = [[7, 8, 9, 10], [3], [4, 5, 6]]
REJECTED = [[7, 7], [7, 7, 7, 8, 9, 2], [5, 5, 3]]
CHOSEN_MASKS = [[1, 1, 0, 1], [1], [1, 1, 1]]
REJECTED_MASKS = [[0, 1], [1, 1, 1, 1, 1, 0], [1, 1, 1]]
PAIRS = range(3)
SHORT_PROMPT = [2]
ROWS = [{"prompt": "1+1=", "chosen": "2", "rejected": "3"}] * 2
"""What a TRL trainer insists on being given; the batches are made here."""


def make_batch(pairs: Sequence[int] = PAIRS, margins: Sequence[float] = (), prompt: list[int] | None = None) -> Batch:
    """The pairs, as our roll-in would leave them."""
    samples = []
    for i in pairs:
        for is_chosen, response, mask in ((True, CHOSEN, CHOSEN_MASKS), (False, REJECTED, REJECTED_MASKS)):
            samples.append(
                Sample(
                    index=len(samples),
                    rollout_id=i,
                    tokens=[*(prompt or PROMPTS[i]), *response[i]],
                    response_length=len(response[i]),
                    loss_mask=None if prompt else mask[i],
                    pair_id=i,
                    is_chosen=is_chosen,
                    metadata={MARGIN: margins[i]} if margins else {},
                )
            )
    return samples_to_batch(samples, mask_truncated=False, reward_key=None)[0]


def aligned(prompts: Sequence[list[int]], masks: Sequence[list[int]], width: int) -> Tensor:
    """Masks of responses ``[B, width]``, 0 on prompts and on padding."""
    rows = [[0] * len(prompt) + mask for prompt, mask in zip(prompts, masks, strict=True)]
    return torch.tensor([row + [0] * (width - len(row)) for row in rows])


@pytest.fixture
def make_trainer(checkpoint: Path, tokenizer: Any, trl_options: dict[str, Any], move: Any) -> Callable[..., Any]:
    """A TRL trainer whose policy starts at the checkpoint and has moved on."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM

    def build(trainer_class: Any, config_class: Any, seed: int = 1, rows: Any = ROWS, **given: Any) -> Any:
        trainer = trainer_class(
            model=AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32),
            args=config_class(**trl_options, **given),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
        )
        move(trainer.model, seed).train()
        return trainer

    return build


@pytest.fixture
def ours(make_worker: Any, move: Any, backward: Any) -> Callable[..., Any]:
    """Our loss of a batch and its gradient, after the same move of the policy."""

    def run(batch: Batch, seed: int = 1, **given: Any) -> Any:
        worker = make_worker("dpo", **given)
        batch["ref_log_probs"] = worker.score(batch)
        move(worker.model, seed)
        batch["log_probs"] = worker.score(batch)
        for stage in worker.role.prepare:
            resolve_object(stage)(batch, worker.args)
        return backward(worker, batch)

    return run


def dpo_loss(trainer: Any, pairs: Sequence[int]) -> Tensor:
    """TRL's loss of some pairs."""
    chosen, rejected = ([all_of[i] for i in pairs] for all_of in (CHOSEN, REJECTED))
    prompts = [PROMPTS[i] for i in pairs]
    examples = [
        {"prompt_ids": prompt, "chosen_ids": better, "rejected_ids": worse}
        for prompt, better, worse in zip(prompts, chosen, rejected, strict=True)
    ]
    inputs = trainer.data_collator(examples)
    masks = [masks[i] for masks in (CHOSEN_MASKS, REJECTED_MASKS) for i in pairs]
    inputs["completion_mask"] = aligned(prompts * 2, masks, inputs["input_ids"].shape[1])
    loss: Tensor = trainer._compute_loss(trainer.model, inputs, False)
    return loss


DPO = {
    "sigmoid": ({"loss_type": ["sigmoid"]}, {"dpo_loss_type": "sigmoid"}),
    "hinge": ({"loss_type": ["hinge"]}, {"dpo_loss_type": "hinge"}),
    "ipo": ({"loss_type": ["ipo"]}, {"dpo_loss_type": "ipo"}),
    "robust": (
        {"loss_type": ["robust"], "label_smoothing": 0.1},
        {"dpo_loss_type": "robust", "dpo_label_smoothing": 0.1},
    ),
}
"""Name -> TRL's settings and ours."""

SINGLE_DPO = {
    "cdpo": ({"loss_type": ["aot"], "label_smoothing": 0.1}, {"dpo_label_smoothing": 0.1}),
    "sigmoid with sft": (
        {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.5]},
        {"dpo_sft_coef": 0.5},
    ),
    "hinge with sft": (
        {"loss_type": ["hinge", "sft"], "loss_weights": [1.0, 2.0]},
        {"dpo_loss_type": "hinge", "dpo_sft_coef": 2.0},
    ),
}
"""The same for losses that are compared pair by pair."""


@pytest.mark.parametrize("beta", [0.1, 0.5])
@pytest.mark.parametrize("name", DPO)
def test_a_loss_of_pairs_is_that_of_trl(
    make_trainer: Any, ours: Any, trl_backward: Any, assert_same: Any, name: str, beta: float
) -> None:
    from trl import DPOConfig, DPOTrainer

    settings, knobs = DPO[name]
    trainer = make_trainer(DPOTrainer, DPOConfig, beta=beta, **settings)
    theirs = trl_backward(trainer.model, [dpo_loss(trainer, PAIRS)])
    assert_same(ours(make_batch(), dpo_beta=beta, **knobs), theirs)


@pytest.mark.parametrize("name", SINGLE_DPO)
def test_a_loss_of_single_pairs_is_that_of_trl(
    make_trainer: Any, ours: Any, trl_backward: Any, assert_same: Any, name: str
) -> None:
    from trl import DPOConfig, DPOTrainer

    settings, knobs = SINGLE_DPO[name]
    trainer = make_trainer(DPOTrainer, DPOConfig, beta=0.3, **settings)
    theirs = trl_backward(trainer.model, [dpo_loss(trainer, [i]) / len(PAIRS) for i in PAIRS])
    assert_same(ours(make_batch(), dpo_beta=0.3, **knobs), theirs)


def without_reference(
    trainer: Any, prompts: Sequence[list[int]], pairs: Sequence[int], all_trained: bool = False
) -> Tensor:
    """The loss of some pairs in one of TRL's trainers that have no reference."""
    inputs: dict[str, Tensor] = {}
    for side, responses, masks in (("chosen", CHOSEN, CHOSEN_MASKS), ("rejected", REJECTED, REJECTED_MASKS)):
        rows = [torch.tensor([*prompts[i], *responses[i]]) for i in pairs]
        ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=trainer.processing_class.pad_token_id)
        trained = [[1] * len(masks[i]) if all_trained else masks[i] for i in pairs]
        mask = aligned([prompts[i] for i in pairs], trained, ids.shape[1])
        inputs[f"{side}_input_ids"] = ids
        inputs[f"{side}_attention_mask"] = nn.utils.rnn.pad_sequence([torch.ones_like(r) for r in rows], True)
        inputs[f"{side}_labels"] = ids.masked_fill(mask == 0, -100)
    loss: Tensor = trainer.compute_loss(trainer.model, inputs)
    return loss


@pytest.mark.parametrize("sft", [0.0, 0.5])
def test_simpo_is_that_of_trl(make_trainer: Any, ours: Any, trl_backward: Any, assert_same: Any, sft: float) -> None:
    from trl.experimental.cpo import CPOConfig, CPOTrainer

    trainer = make_trainer(CPOTrainer, CPOConfig, loss_type="simpo", beta=2.0, simpo_gamma=0.8, cpo_alpha=sft)
    losses = [without_reference(trainer, PROMPTS, [i]) / len(PAIRS) for i in PAIRS]
    theirs = trl_backward(trainer.model, losses)
    knobs = {"dpo_loss_type": "simpo", "dpo_beta": 2.0, "simpo_gamma": 0.8, "dpo_sft_coef": sft}
    assert_same(ours(make_batch(), **knobs), theirs)


def test_simpo_of_a_batch_is_that_of_trl(make_trainer: Any, ours: Any, trl_backward: Any, assert_same: Any) -> None:
    from trl.experimental.cpo import CPOConfig, CPOTrainer

    trainer = make_trainer(CPOTrainer, CPOConfig, loss_type="simpo", beta=2.0, simpo_gamma=0.8, cpo_alpha=0.0)
    theirs = trl_backward(trainer.model, [without_reference(trainer, PROMPTS, PAIRS)])
    assert_same(ours(make_batch(), dpo_loss_type="simpo", dpo_beta=2.0, simpo_gamma=0.8), theirs)


def test_orpo_is_that_of_trl(make_trainer: Any, ours: Any, trl_backward: Any, assert_same: Any) -> None:
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    trainer = make_trainer(ORPOTrainer, ORPOConfig, beta=0.4)
    prompts = [SHORT_PROMPT] * len(PAIRS)
    losses = [without_reference(trainer, prompts, [i], all_trained=True) / len(PAIRS) for i in PAIRS]
    theirs = trl_backward(trainer.model, losses)
    assert_same(ours(make_batch(prompt=SHORT_PROMPT), dpo_loss_type="orpo", orpo_lambda=0.4), theirs)


RESPONSES = [*CHOSEN, *REJECTED]
RESPONSE_MASKS = [*CHOSEN_MASKS, *REJECTED_MASKS]
DESIRABLE = [True, True, True, False, False, False]


def unpaired_batch() -> Batch:
    """Responses with their twins of the row before, which share no prompt."""
    samples = []
    for i, desirable in enumerate(DESIRABLE):
        for j, notes in ((i, {}), (i - 1, {MISMATCHED: True})):
            samples.append(
                Sample(
                    index=len(samples),
                    rollout_id=i,
                    tokens=[*PROMPTS[i % 3], *RESPONSES[j]],
                    response_length=len(RESPONSES[j]),
                    loss_mask=RESPONSE_MASKS[j],
                    is_chosen=desirable,
                    metadata=notes,
                )
            )
    return samples_to_batch(samples, mask_truncated=False, reward_key=None)[0]


@pytest.mark.parametrize(("seed", "baseline"), [(1, "positive"), (2, "zero")])
def test_kto_is_that_of_trl(
    make_trainer: Any, ours: Any, trl_backward: Any, assert_same: Any, seed: int, baseline: str
) -> None:
    from trl import KTOConfig, KTOTrainer

    rows = [{"prompt": "1+1=", "completion": "2", "label": True}] * 2
    given = {"beta": 0.3, "desirable_weight": 1.5, "undesirable_weight": 0.5, "per_device_train_batch_size": 2}
    trainer = make_trainer(KTOTrainer, KTOConfig, seed, rows, **given)
    prompts = [PROMPTS[i % 3] for i in range(len(DESIRABLE))]
    inputs = trainer.data_collator(
        [
            {
                "prompt_ids": prompts[i],
                "completion_ids": RESPONSES[i],
                "KL_completion_ids": RESPONSES[i - 1],
                "label": d,
            }
            for i, d in enumerate(DESIRABLE)
        ]
    )
    shifted = [RESPONSE_MASKS[i - 1] for i in range(len(DESIRABLE))]
    inputs["completion_mask"] = aligned(prompts, RESPONSE_MASKS, inputs["input_ids"].shape[1])
    inputs["KL_completion_mask"] = aligned(prompts, shifted, inputs["KL_input_ids"].shape[1])
    theirs = trl_backward(trainer.model, [trainer._compute_loss(trainer.model, inputs, False)])
    knobs = {"dpo_loss_type": "kto", "dpo_beta": 0.3, "kto_desirable_weight": 1.5, "kto_undesirable_weight": 0.5}
    assert_same(ours(unpaired_batch(), seed, **knobs), theirs)
    assert (trainer._metrics["train"]["kl"][-1] > 0) == (baseline == "positive")


@pytest.mark.parametrize("margins", [[], [0.5, 0.0, 2.0]])
@pytest.mark.parametrize("center", [0.0, 0.3])
def test_a_reward_model_is_that_of_trl(
    checkpoint: Path,
    tokenizer: Any,
    trl_options: dict[str, Any],
    make_worker: Any,
    move: Any,
    backward: Any,
    trl_backward: Any,
    assert_same: Any,
    margins: list[float],
    center: float,
) -> None:
    from datasets import Dataset
    from transformers import AutoModelForSequenceClassification
    from trl import RewardConfig, RewardTrainer

    trainer = RewardTrainer(
        model=AutoModelForSequenceClassification.from_pretrained(checkpoint, dtype=torch.float32, num_labels=1),
        args=RewardConfig(**trl_options, center_rewards_coefficient=center or None),
        train_dataset=Dataset.from_list([{"chosen": "1+1=2", "rejected": "1+1=3"}] * 2),
        processing_class=tokenizer,
    )
    worker = make_worker("reward_model", rm_center_coef=center)
    for model in (trainer.model, worker.model):
        nn.init.zeros_(model.score.weight)
        move(model, seed=1, by=0.2)
    examples = [
        {"chosen_ids": [*PROMPTS[i], *CHOSEN[i]], "rejected_ids": [*PROMPTS[i], *REJECTED[i]]}
        | ({"margin": margins[i]} if margins else {})
        for i in PAIRS
    ]
    theirs = trl_backward(trainer.model, [trainer.compute_loss(trainer.model, trainer.data_collator(examples))])
    assert_same(backward(worker, make_batch(margins=margins)), theirs)
