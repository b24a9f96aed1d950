"""The policy losses and advantages of TRL 1.16.0 against ours, from the same tokens, rewards and weights.

TRL's side is a real ``GRPOTrainer``. Its ``rollout_func`` hands it the token ids, so that its own code pads them,
scores them under the old policy and the reference, turns rewards into advantages and importance ratios, and computes
the loss. Ours is the worker that trains, on packed tokens. The weights move between scoring and loss, so that ratios
differ from 1 and clips are active.

Where the two differ by design:

- TRL divides by ``std + 1e-4``, we by ``std + 1e-6``. The losses are compared on TRL's advantages, and the advantages
  with the factor ``(std + 1e-6) / (std + 1e-4)``.
- TRL's ``scale_rewards="batch"`` divides the reward minus the mean of its group by the deviation of all raw rewards;
  our ``reinforce_pp_baseline`` whitens it over the trained tokens, so with the mean m and the variance v of what it
  divides. ``(ours sqrt(v + 1e-8) + m) / (std of rewards + 1e-4)`` is TRL's.
- The loss is a mean over the step in both; a step of n batches is in TRL the sum of losses that are already over n.
- TRL's ``delta`` is our ``eps_clip_c`` as long as it is above ``1 + epsilon_high``, as TRL recommends. Below that TRL
  bounds the ratio by ``1 + epsilon_high`` where A < 0, and by ``delta`` where A > 0 too; ours follows Ye et al. 2020.
- TRL's ``epsilon_high`` of ``cispo`` is the largest weight, ours is how far it is above 1.
- TRL adds the mean entropy of a token whatever the loss type, we reduce entropies like the loss; with a mean over
  tokens they are the same.
- With sequence ratios, TRL's unbiased KL is weighted by the ratio of the sequence, ours by that of the token.
- Where the engine delivers log-probs, TRL measures from them how far off-policy a sequence is, we from the policy
  before the first update. Without them both do the latter.
- In TRL a response that is not trained on votes in the statistics of its group; in ours it does not.
- ``bnpo`` averages the token means of the batches of a step, so it is compared on a step of one batch. The other types
  are also compared on a step of two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stacx_core.config import resolve_object
from stacx_core.data.batch import Batch, samples_to_batch
from stacx_core.data.sample import Sample
from stacx_core.knobs import Args
from stacx_core.recipes import TRAINING_CONFIGS

pytest.importorskip("trl", reason="trl is not installed; `nox -s trl` installs it and runs these tests")

PROMPTS = [[2, 3, 4], [2, 3, 4], [2, 3, 4], [5, 6], [5, 6], [5, 6]]
RESPONSES = [[7, 8, 9, 10], [3], [4, 5, 6], [7, 7, 7, 8, 9, 2], [5, 5], [2, 3]]
MASKS = [[1, 1, 0, 1], [1], [0, 1, 1], [1, 1, 1, 1, 1, 0], [0, 0], [1, 0]]
REWARDS = [0.0, 1.0, 0.5, 0.0, 2.0, 1.5]
GROUP = 3
LONGEST = 8
TEMPERATURE = 0.7


@dataclass(frozen=True)
class Setting:
    """The same loss in the words of both: a TRL configuration; our recipe and its knobs."""

    trl: dict[str, Any]
    recipe: str
    ours: dict[str, Any]


def setting(loss_type: str, recipe: str, aggregation: str, trl: dict[str, Any], ours: dict[str, Any]) -> Setting:
    return Setting({"loss_type": loss_type, **trl}, recipe, {"loss_aggregation": aggregation, **ours})


CLIP_HIGHER = {"epsilon": 0.1, "epsilon_high": 0.3}, {"eps_clip": 0.1, "eps_clip_high": 0.3}
DUAL_CLIP = {"delta": 1.5}, {"eps_clip_c": 1.5}
KL = (
    {"beta": 0.3, "use_bias_correction_kl": False},
    {"use_kl_loss": True, "kl_loss_coef": 0.3, "kl_loss_type": "k3"},
)
UNBIASED_KL = {**KL[0], "use_bias_correction_kl": True}, {**KL[1], "use_unbiased_kl": True}
ENTROPY = {"entropy_coef": 0.05}, {"entropy_coef": 0.05}
OPSM = {"off_policy_mask_threshold": 0.7}, {"use_opsm": True, "opsm_delta": 0.7}
GSPO = (
    {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    {"eps_clip": 3e-4, "eps_clip_high": 4e-4},
)
CISPO = {"epsilon_high": 1.2}, {"eps_clip": 1.0, "eps_clip_high": 0.2}
NOTHING: tuple[dict[str, Any], dict[str, Any]] = {}, {}


def together(*terms: tuple[dict[str, Any], dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    return {k: v for term in terms for k, v in term[0].items()}, {k: v for term in terms for k, v in term[1].items()}


STEPS = {
    "sample mean": setting("grpo", "grpo", "sample_mean", *NOTHING),
    "dapo": setting("dapo", "dapo", "token_mean", *CLIP_HIGHER),
    "constant": setting("dr_grpo", "grpo", "constant", *NOTHING),
    "sum of each sequence": setting("luspo", "grpo", "seq_mean_token_sum", *NOTHING),
    "gspo": setting("grpo", "gspo", "sample_mean", *GSPO),
    "cispo": setting("cispo", "cispo", "token_mean", *CISPO),
}
"""Settings whose loss in TRL, too, does not depend on how a step is cut into batches."""

LOSSES = {
    **STEPS,
    "token mean": setting("bnpo", "grpo", "token_mean", *NOTHING),
    "clip higher": setting("grpo", "grpo", "sample_mean", *CLIP_HIGHER),
    "dual clip": setting("grpo", "grpo", "sample_mean", *DUAL_CLIP),
    "kl": setting("grpo", "grpo", "sample_mean", *KL),
    "unbiased kl": setting("dr_grpo", "grpo", "constant", *UNBIASED_KL),
    "entropy": setting("bnpo", "grpo", "token_mean", *ENTROPY),
    "off-policy sequences": setting("grpo", "grpo", "sample_mean", *OPSM),
    "gspo with kl": setting("grpo", "gspo", "sample_mean", *together(GSPO, KL)),
    "cispo with kl": setting("cispo", "cispo", "token_mean", *together(CISPO, KL)),
    "all terms": setting("dapo", "grpo", "token_mean", *together(CLIP_HIGHER, DUAL_CLIP, UNBIASED_KL, ENTROPY)),
}

ACTIVE = {"dual clip": "dual_clipfrac", "off-policy sequences": "opsm_frac"}
"""What must have acted on some tokens, where it is not the clip."""

BOUNDS = {"vllm_importance_sampling_clip_min": 0.98, "vllm_importance_sampling_clip_max": 1.15}
CORRECTIONS = {
    "token_truncate": {"tis_level": "token", "tis_mode": "clip"},
    "token_mask": {"tis_level": "token", "tis_mode": "mask"},
    "sequence_truncate": {"tis_level": "sequence", "tis_mode": "clip"},
    "sequence_mask": {"tis_level": "sequence", "tis_mode": "mask"},
}
"""TRL's correction for the engine -> ours."""


def make_batch() -> Batch:
    """The samples, as our roll-in would leave them."""
    samples = [
        Sample(
            index=i,
            group_index=i // GROUP,
            tokens=[*PROMPTS[i], *response],
            response_length=len(response),
            loss_mask=MASKS[i],
            reward=REWARDS[i],
        )
        for i, response in enumerate(RESPONSES)
    ]
    return samples_to_batch(samples, mask_truncated=False, reward_key=None)[0]


@pytest.fixture
def make_trainer(checkpoint: Path, tokenizer: Any, trl_options: dict[str, Any]) -> Callable[..., Any]:
    """TRL's trainer on the checkpoint, in a run of two batches per rollout or one, with two updates per rollout."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    def build(
        batches: int = 1, engine: list[list[float]] | None = None, rewards: list[float] = REWARDS, **given: Any
    ) -> Any:
        def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
            return {"prompt_ids": PROMPTS, "completion_ids": RESPONSES, "logprobs": engine, "env_mask": MASKS}

        config = GRPOConfig(
            **trl_options,
            per_device_train_batch_size=len(PROMPTS) // batches,
            gradient_accumulation_steps=batches,
            num_generations=GROUP,
            num_iterations=2,
            max_completion_length=LONGEST,
            temperature=TEMPERATURE,
            **given,
        )
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32),
            reward_funcs=lambda **_: rewards,
            args=config,
            train_dataset=Dataset.from_list([{"prompt": "1+1="}] * 2),
            processing_class=tokenizer,
            rollout_func=rollout,
        )
        # What `train` sets before the first step; and the engine's part in the loss, without the engine.
        trainer.current_gradient_accumulation_steps = batches
        trainer.use_vllm, trainer._last_loaded_step = engine is not None, trainer.state.global_step
        trainer.model.train()
        return trainer

    return build


@pytest.fixture
def compare(
    make_trainer: Any, make_worker: Any, move: Any, backward: Any, trl_backward: Any, assert_same: Any
) -> Callable[..., Any]:
    """Compare a setting on a step of some batches; returns our metrics."""
    from trl.trainer.utils import split_tensor_dict

    def run(case: Setting, batches: int = 1, noise: float | None = None) -> dict[str, float]:
        given = {"rollout_temperature": TEMPERATURE, "rollout_max_response_len": LONGEST, **case.ours}
        worker = make_worker(case.recipe, micro_batch_size=len(PROMPTS) // batches, **given)
        batch = make_batch()
        batch["ref_log_probs"] = worker.score(batch)
        move(worker.model, seed=1)
        batch["log_probs"] = worker.score(batch)
        engine = None if noise is None else disturbed(batch["log_probs"], noise)
        if engine is not None:
            batch["rollout_log_probs"] = [torch.tensor(values) for values in engine]

        trainer = make_trainer(batches, engine, **case.trl)
        move(trainer.model, seed=1)
        inputs = trainer._generate_and_score_completions([{"prompt": "1+1="}] * len(PROMPTS))
        take_over(inputs, batch)

        move(worker.model, seed=2, by=0.02)
        move(trainer.model, seed=2, by=0.02)
        parts = split_tensor_dict(inputs, batches)
        theirs = trl_backward(trainer.model, [trainer._compute_loss(trainer.model, part) for part in parts])
        result = backward(worker, batch)
        assert_same(result, theirs)
        return result.metrics

    return run


def take_over(inputs: dict[str, Tensor], batch: Batch) -> None:
    """Put TRL's advantages and log-probs into our batch, once these are found to be ours up to rounding.

    Two fp32 forwards differ by about 1e-6, which a ratio of sequences sums up and a small loss makes visible.
    """
    for ours, theirs in (("log_probs", "old_per_token_logps"), ("ref_log_probs", "ref_per_token_logps")):
        if theirs in inputs:
            found = [row[: len(response)] for row, response in zip(inputs[theirs], RESPONSES, strict=True)]
            for values, expected in zip(batch[ours], found, strict=True):
                torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-6)
            batch[ours] = found
    batch["advantages"] = [a.repeat(len(r)) for a, r in zip(inputs["advantages"], RESPONSES, strict=True)]


def disturbed(log_probs: list[Tensor], noise: float) -> list[list[float]]:
    """Log-probs of an engine that is off by some noise."""
    draw = torch.Generator().manual_seed(5)
    return [(values + noise * torch.randn(len(values), generator=draw)).tolist() for values in log_probs]


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_and_its_gradient_are_those_of_trl(compare: Any, name: str) -> None:
    metrics = compare(LOSSES[name])
    active = ACTIVE.get(name, "cispo_clipfrac" if LOSSES[name].recipe == "cispo" else "clipfrac")
    assert 0 < metrics[active] < 1


@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_two_batches_is_that_of_trl(compare: Any, name: str) -> None:
    compare(STEPS[name], batches=2)


@pytest.mark.parametrize("recipe", ["grpo", "gspo", "cispo"])
@pytest.mark.parametrize("mode", CORRECTIONS)
def test_the_correction_for_the_engine_is_that_of_trl(compare: Any, mode: str, recipe: str) -> None:
    loss_type, terms = {"grpo": ("grpo", NOTHING), "gspo": ("grpo", GSPO), "cispo": ("cispo", CISPO)}[recipe]
    aggregation = "token_mean" if recipe == "cispo" else "sample_mean"
    correction = (
        {"vllm_importance_sampling_mode": mode, **BOUNDS},
        {"use_tis": True, "tis_clip_low": 0.98, "tis_clip": 1.15, **CORRECTIONS[mode]},
    )
    metrics = compare(setting(loss_type, recipe, aggregation, *together(terms, correction, KL)), noise=0.3)
    assert 0 < metrics["tis_clipfrac"] < 1


def own_advantages(
    make_worker: Any, recipe: str, rewards: list[float], **given: Any
) -> tuple[Tensor, dict[str, float]]:
    """Our advantage of each sample ``[B]``, all of whose tokens are trained, and the metrics of the stages."""
    args: Args = make_worker(recipe, rollout_max_response_len=LONGEST, **given).args
    batch = make_batch()
    batch["rewards"] = rewards
    batch["loss_masks"] = [torch.ones(len(response), dtype=torch.int32) for response in RESPONSES]
    metrics = {}
    for stage in TRAINING_CONFIGS[recipe].roles[0].prepare:
        metrics |= resolve_object(stage)(batch, args)
    return torch.stack([values[0] for values in batch["advantages"]]), metrics


def trl_advantages(make_trainer: Any, rewards: list[float], **given: Any) -> Tensor:
    inputs = make_trainer(rewards=rewards, **given)._generate_and_score_completions([{"prompt": "1+1="}] * len(PROMPTS))
    advantages: Tensor = inputs["advantages"]
    return advantages


SETS_OF_REWARDS = {
    "apart": [1.0, 0.0, 0.5, 0.0, 2.0, 1.5],
    "close": [0.001, 0.0, 0.0, 0.001, 0.002, 0.0],
    "flat group": [1.0, 1.0, 1.0, 0.25, -4.0, 0.0],
}


@pytest.mark.parametrize("name", SETS_OF_REWARDS)
def test_advantages_scaled_by_group_are_those_of_trl(make_trainer: Any, make_worker: Any, name: str) -> None:
    rewards = SETS_OF_REWARDS[name]
    ours, _ = own_advantages(make_worker, "grpo", rewards)
    deviation = torch.tensor(rewards).view(-1, GROUP).std(1).repeat_interleave(GROUP)
    factor = (deviation + 1e-6) / (deviation + 1e-4)
    expected = trl_advantages(make_trainer, rewards, scale_rewards="group")
    torch.testing.assert_close(ours * factor, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", SETS_OF_REWARDS)
def test_advantages_without_scale_are_those_of_trl(make_trainer: Any, make_worker: Any, name: str) -> None:
    rewards = SETS_OF_REWARDS[name]
    ours, _ = own_advantages(make_worker, "grpo", rewards, disable_grpo_std_normalization=True)
    expected = trl_advantages(make_trainer, rewards, scale_rewards="none")
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", SETS_OF_REWARDS)
def test_advantages_scaled_by_batch_are_those_of_trl(make_trainer: Any, make_worker: Any, name: str) -> None:
    rewards = SETS_OF_REWARDS[name]
    ours, metrics = own_advantages(make_worker, "reinforce_pp_baseline", rewards)
    mean, deviation = metrics["whitening_mean"], metrics["whitening_std"]
    centred = ours * (deviation**2 + 1e-8) ** 0.5 + mean
    expected = trl_advantages(make_trainer, rewards, scale_rewards="batch")
    torch.testing.assert_close(centred / (torch.tensor(rewards).std() + 1e-4), expected, rtol=1e-5, atol=1e-6)
