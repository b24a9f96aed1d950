"""One step of a recipe by one process and by several: the same loss, the same metrics, the same weights.

Tiny models are made at random, one update of the whole recipe is run by the torch backend, forward passes, syncs and
stages included, and then by Megatron-core in each layout, by real processes that talk over gloo.
"""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3ForSequenceClassification
from transformers.utils.logging import disable_progress_bar

from stacx_core.config import TrainingConfig
from stacx_core.data.batch import Batch
from stacx_core.errors import ConfigError
from stacx_core.knobs import Args
from stacx_core.modality import LANGUAGE
from stacx_core.planning.layout import Layout
from stacx_core.testing.ranks import RankError, Ranks
from stacx_core.testing.results import CheckResult
from stacx_core.testing.rows import VOCABULARY
from stacx_core.testing.subject import trained_subjects
from stacx_core.testing.variants import DEFAULTS, EVERYTHING, Variant, variants
from stacx_core.trainer.forwards import REFERENCE_KEY
from stacx_core.trainer.learner import LocalLearner
from stacx_core.trainer.parallelism import check_megatron, needs_megatron
from stacx_core.trainer.roles import local_learner
from stacx_core.trainer.syncs import active_syncs

TOLERANCE = 1e-5
"""Largest difference of a metric, absolute below 1 and relative above, and of a weight, relative to its norm."""

LEARNING_RATE = 1e-3
"""Also AdamW's eps: with less, its first step has the sign of gradients that are nothing but rounding."""

SECONDS = 120.0
"""Most that the processes may take over one update."""

TOKENS = 24
"""Of a micro-batch: a few for each process."""

LAYOUTS: Mapping[str, tuple[int, dict[str, Any]]] = {
    "TP=2": (2, {"tensor_model_parallel_size": 2}),
    "TP=2 SP": (2, {"tensor_model_parallel_size": 2, "sequence_parallel": True}),
    "PP=2": (2, {"pipeline_model_parallel_size": 2}),
    "DP=2": (2, {}),
    "CP=2": (2, {"context_parallel_size": 2}),
    "DP=2 sharded optimizer": (2, {"use_distributed_optimizer": True}),
    "TP=2 DP=2": (4, {"tensor_model_parallel_size": 2}),
    "PP=2 CP=2": (4, {"pipeline_model_parallel_size": 2, "context_parallel_size": 2}),
}
"""Name -> processes, and the knobs of the layout."""


@dataclass(frozen=True)
class Update:
    """What one update made of a recipe's roles."""

    metrics: dict[str, float]
    weights: dict[str, dict[str, Tensor]]


@dataclass(frozen=True)
class UpdateJob:
    """One update of a recipe.

    Args:
        config: The recipe.
        variant: Name of the arguments.
        args: Completed, with the models' folders and the layout in place.
        batch: The rollout.
    """

    config: TrainingConfig
    variant: str
    args: Args
    batch: Batch

    def spread(self, knobs: Mapping[str, Any]) -> UpdateJob:
        """The same update by Megatron-core, in the layout of these knobs."""
        return replace(self, args=self.args.replace(backend="megatron", **knobs))

    def run(self, rank: int = 0, ranks: int = 1) -> Update | None:
        """The update; ``None`` on other ranks than the first."""
        learner = self.learner(ranks)
        metrics = learner.update(copy.deepcopy(self.batch), completed=0)
        weights = {name: dict(worker.weights()) for name, worker in learner.workers.items() if worker.optimizer}
        return Update(metrics, weights) if rank == 0 else None

    def learner(self, ranks: int) -> LocalLearner:
        """The recipe's roles, or this process's part of them."""
        disable_progress_bar()
        torch.manual_seed(0)
        if self.args.backend == "megatron":
            initialize_once(self.args, ranks)
        return local_learner(self.config, self.args, None, num_rollout=1)


def initialize_once(args: Args, ranks: int) -> None:
    """Megatron's groups of the layout, which all jobs of these processes have."""
    from stacx_core.backends.megatron.compat import install

    install()
    from megatron.core import parallel_state

    from stacx_core.backends.megatron.layout import initialize

    if not parallel_state.model_parallel_is_initialized():
        initialize(Layout.of(args, ranks), args.seed)


def check_parallel(
    configs: Sequence[TrainingConfig], layouts: Sequence[str] = tuple(LAYOUTS)
) -> list[tuple[CheckResult, ...]]:
    """What several processes make of recipes, compared with what one does.

    The processes of a layout are started once for all recipes.

    Args:
        configs: The recipes.
        layouts: Names from :data:`LAYOUTS`.

    Returns:
        For each recipe one result per layout, of its defaults and of everything switched on together; of recipes
        of another modality than language, that it does not apply.

    Raises:
        ConfigError: Megatron-core is not installed, or none of the recipes is of language models.
    """
    compared = [config for config in configs if config.modality == LANGUAGE]
    if not compared:
        raise ConfigError(f"--parallel does not apply: {'; '.join(map(_why_not, configs))}; leave it out")
    needs_megatron()
    disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        models = make_models(Path(folder))
        jobs = [[update_job(config, variant, models) for variant in _variants(config)] for config in compared]
        alone = [[job.run() for job in of_recipe] for of_recipe in jobs]
        columns = [_layout(name, jobs, alone) for name in layouts]
    found = iter(zip(*columns, strict=True))
    return [next(found) if config in compared else _not_compared(config, layouts) for config in configs]


def _not_compared(config: TrainingConfig, layouts: Sequence[str]) -> tuple[CheckResult, ...]:
    return tuple(CheckResult(config.name, layout, "not applicable", _why_not(config)) for layout in layouts)


def _why_not(config: TrainingConfig) -> str:
    return (
        f"recipe {config.name!r} is of modality {config.modality.name!r}, and Megatron-core runs language models alone"
    )


def _variants(config: TrainingConfig) -> list[Variant]:
    """The recipe's defaults, and everything switched on together."""
    return [variant for variant in variants(config) if variant.name in (DEFAULTS, EVERYTHING)]


def _layout(
    name: str, jobs: Sequence[Sequence[UpdateJob]], alone: Sequence[Sequence[Update | None]]
) -> list[CheckResult]:
    """The result of each recipe in one layout, by the processes of which it is made."""
    count, knobs = LAYOUTS[name]
    with Ranks(SECONDS, count) as ranks:
        return [
            _result(name, [job.spread(knobs) for job in of_recipe], ranks, expected)
            for of_recipe, expected in zip(jobs, alone, strict=True)
        ]


def _result(layout: str, jobs: Sequence[UpdateJob], ranks: Ranks, alone: Sequence[Update | None]) -> CheckResult:
    recipe = jobs[0].config.name
    for job, expected in zip(jobs, alone, strict=True):
        assert expected is not None
        try:
            check_megatron(job.config, job.args)
            problem = difference(expected, ranks.run(job)[0])
        except ConfigError as error:
            return CheckResult(recipe, layout, "not applicable", str(error))
        except RankError as error:
            problem = str(error)
        if problem:
            return CheckResult(recipe, layout, "fail", problem, f"arguments: {job.variant}")
    return CheckResult(recipe, layout, "pass")


def update_job(config: TrainingConfig, variant: Variant, models: Mapping[str, str]) -> UpdateJob:
    """A run of one step of AdamW, with models of the right kind in all places."""
    batch = _batch(config, variant)
    frozen = {role.load_arg: models["reference"] for role in config.roles if role.load_arg and not role.trainable}
    trained = {role.load_arg: models[role.head] for role in config.roles if role.load_arg and role.trainable}
    rollouts = len(set(batch["rollout_ids"]))
    args = variant.args.replace(
        **{"hf_checkpoint": models["lm"], "ref_load": models["reference"], **frozen, **trained},
        optimizer="adamw",
        lr=LEARNING_RATE,
        adam_eps=LEARNING_RATE,
        rollout_batch_size=rollouts,
        global_batch_size=rollouts,
        n_samples_per_prompt=1,
        num_steps_per_rollout=1,
        max_tokens_per_gpu=TOKENS,
    )
    return UpdateJob(config, variant.name, args, batch)


def make_models(folder: Path) -> dict[str, str]:
    """Tiny random models with norms and heads that are no ones and zeros: a policy, one near it, one with values."""
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        initializer_range=0.2,
        tie_word_embeddings=False,
        pad_token_id=0,
    )
    config.num_labels = 1
    kinds = {"lm": Qwen3ForCausalLM, "reference": Qwen3ForCausalLM, "scalar": Qwen3ForSequenceClassification}
    for name, kind in kinds.items():
        torch.manual_seed(0)
        model = cast(Any, kind)(copy.deepcopy(config))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape) * (0.05 if name == "lm" else 0.06))
        model.save_pretrained(folder / name)
    return {name: str(folder / name) for name in kinds}


def _batch(config: TrainingConfig, variant: Variant) -> Batch:
    """What a rollout brings: no key that a role computes or another one sends."""
    batch: Batch = {}
    for subject in trained_subjects(config, variant.name, variant.args):
        rows = subject.rows()
        if any(role.inputs_key != "tokens" for role in config.roles):
            prompts = [[1, *row.sample.tokens[: row.sample.prompt_length]] for row in rows]
            rows = tuple(row.with_sample(teacher_prompt=ids) for row, ids in zip(rows, prompts, strict=True))
        batch |= subject.batch(rows)
    synced = {key for sync in active_syncs(config, variant.args) for key in (*sync.keys, *sync.reverse_keys)}
    computed = {role.own_key for role in config.roles} | {REFERENCE_KEY} | synced
    return {key: value for key, value in batch.items() if key not in computed}


def difference(expected: Update, found: Update) -> str:
    """What differs first, in words; empty when nothing does."""
    if expected.metrics.keys() != found.metrics.keys():
        odd = sorted(expected.metrics.keys() ^ found.metrics.keys())
        return f"one process reports other metrics than these: {', '.join(odd)}"
    for name, value in expected.metrics.items():
        if not math.isclose(found.metrics[name], value, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            return f"{name} is {found.metrics[name]:.8g}, in one process {value:.8g}"
    for role, weights in expected.weights.items():
        for name, tensor in weights.items():
            off = float((found.weights[role][name] - tensor).norm() / tensor.norm())
            if not off <= TOLERANCE:
                return f"after the step, {name} of role {role!r} differs by {off:.2g} of its norm"
    return ""
