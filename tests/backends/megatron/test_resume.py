"""A run that is saved in one layout of processes goes on in another as if it had not been stopped."""

from __future__ import annotations

import copy
import os
import re
import resource
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader, load
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from stacx_core.config import TrainingConfig
from stacx_core.data.batch import Batch
from stacx_core.errors import CheckpointError
from stacx_core.knobs import Args
from stacx_core.plugins import plugin_host
from stacx_core.testing.parallel import LAYOUTS, SECONDS, TOLERANCE, initialize_once, make_models, update_job
from stacx_core.testing.ranks import Ranks
from stacx_core.testing.rows import VOCABULARY
from stacx_core.testing.variants import default_variant
from tiny_models import make

pytest.importorskip("megatron.core")

from stacx_core.backends.megatron.checkpoints.files import check_files

SAVED_AFTER, STEPS = 3, 5


@dataclass(frozen=True)
class Step:
    """What a step reports, and what it makes of the weights."""

    metrics: dict[str, float]
    weights: dict[str, Tensor]


@dataclass(frozen=True)
class TrainJob:
    """Steps of a recipe on the same rollout.

    Args:
        resume: Checkpoint to go on from; else the run begins anew.
        save: Checkpoint to write when so many steps are done, or at once after resuming.
    """

    config: TrainingConfig
    args: Args
    batch: Batch
    resume: Path | None = None
    save: Path | None = None

    def run(self, rank: int, ranks: int) -> list[Step]:
        """What each step reports."""
        from stacx_core.trainer.roles import local_learner

        initialize_once(self.args, ranks)
        learner = local_learner(self.config, self.args, self.resume, STEPS)
        if self.resume and self.save:
            learner.save(self.save)
        found = []
        for completed in range(SAVED_AFTER if self.resume else 0, STEPS):
            metrics = learner.update(copy.deepcopy(self.batch), completed)
            weights = {
                f"{name}.{weight}": tensor.clone()
                for name, worker in learner.workers.items()
                for weight, tensor in worker.weights()
            }
            found.append(Step(metrics, weights))
            if completed + 1 == SAVED_AFTER and self.save and not self.resume:
                learner.save(self.save)
        learner.finish_save()
        return found


@dataclass(frozen=True)
class FullDiskJob:
    """A save of which the first process can write no file of more than so many bytes."""

    training: TrainJob
    limit: int

    def run(self, rank: int, ranks: int) -> str:
        """What each process is told."""
        from stacx_core.trainer.roles import local_learner

        assert self.training.save is not None
        learner = local_learner(self.training.config, self.training.args, None, STEPS)
        learner.update(copy.deepcopy(self.training.batch), 0)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.training.save.mkdir(exist_ok=True)
        try:
            if rank == 0:
                resource.setrlimit(resource.RLIMIT_FSIZE, (self.limit, hard))
            learner.save(self.training.save)
            learner.finish_save()
        except Exception as error:
            return str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        return ""


def job(recipe: str, models: Mapping[str, str], layout: str, **given: Any) -> TrainJob:
    """Steps of a recipe in a layout; what is given is a field of the job, or a knob."""
    made = update_job(plugin_host().find(recipe).config, default_variant(plugin_host().find(recipe).config), models)
    fields = {name: given.pop(name, None) for name in ("resume", "save")}
    args = made.args.replace("test", **{"backend": "megatron", **LAYOUTS[layout][1], **given})
    return TrainJob(made.config, args, made.batch, **fields)


@dataclass(frozen=True)
class Runs:
    """What runs reported, by name, and their checkpoints in folders of the same names."""

    steps: dict[str, list[Step]]
    folder: Path
    problems: dict[str, list[str]]


SHARDED = "DP=2 sharded optimizer"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Unbroken runs, and runs that go on from their middle in another layout, by two processes of each layout."""
    folder = tmp_path_factory.mktemp("resume")
    models = make_models(folder / "models")
    make("qwen3-moe", folder / "experts", vocab_size=VOCABULARY)
    experts = {**models, "lm": str(folder / "experts")}
    jobs: dict[str, TrainJob] = {}

    def saved(name: str, recipe: str, layout: str, **knobs: Any) -> None:
        own = experts if name.startswith("experts") else models
        jobs[name] = job(recipe, own, layout, save=folder / name, **knobs)

    def resumed(name: str, recipe: str, layout: str, **knobs: Any) -> None:
        own = experts if name.startswith("experts") else models
        jobs[f"{name} in {layout}"] = job(recipe, own, layout, resume=folder / name, **knobs)

    steps: dict[str, list[Step]] = {}

    def run(ranks: Ranks) -> None:
        for name, each in jobs.items():
            steps[name] = ranks.run(each)[0]
        jobs.clear()

    with Ranks(SECONDS, 2) as replicas:
        saved("sharded", "sft", SHARDED)
        saved("bf16", "sft", SHARDED, dtype="bf16", async_save=True)
        run(replicas)
        resumed("sharded", "sft", "TP=2")
        resumed("bf16", "sft", "TP=2", dtype="bf16", save=folder / "bf16 again")
        saved("tensor", "ppo", "TP=2")
        with Ranks(SECONDS, 2) as ranks:
            run(ranks)
        saved("pipeline", "sft", "PP=2", async_save=True)
        with Ranks(SECONDS, 2) as ranks:
            run(ranks)
        resumed("pipeline", "sft", "CP=2")
        with Ranks(SECONDS, 2) as ranks:
            run(ranks)
        saved("experts", "sft", "DP=2", expert_model_parallel_size=2)
        with Ranks(SECONDS, 2) as ranks:
            run(ranks)
        resumed("tensor", "ppo", "DP=2")
        resumed("tensor", "ppo", SHARDED)
        resumed("experts", "sft", SHARDED)
        run(replicas)
        size = (folder / "sharded" / "policy" / "model.safetensors").stat().st_size
        full = job("sft", models, "DP=2", save=folder / "full", async_save=True)
        problems = {
            "model": replicas.run(FullDiskJob(full, size // 2)),
            "shards": replicas.run(FullDiskJob(full, size * 3 // 2)),
        }
    return Runs(steps, folder, problems)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("tensor", "DP=2"),
        ("tensor", SHARDED),
        ("pipeline", "CP=2"),
        ("sharded", "TP=2"),
        ("experts", SHARDED),
    ],
)
def test_a_run_goes_on_in_another_layout(runs: Runs, name: str, layout: str) -> None:
    unbroken, found = runs.steps[name][SAVED_AFTER:], runs.steps[f"{name} in {layout}"]
    assert len(found) == len(unbroken) == STEPS - SAVED_AFTER
    for before, after in zip(unbroken, found, strict=True):
        assert after.metrics == pytest.approx(before.metrics, rel=TOLERANCE, abs=TOLERANCE)
        assert after.weights.keys() == before.weights.keys()
        for weight, tensor in before.weights.items():
            assert float((after.weights[weight] - tensor).norm() / tensor.norm()) <= TOLERANCE, weight


def test_fp32_weights_and_moments_of_a_bf16_model_are_restored_to_the_bit(runs: Runs) -> None:
    (first, second) = (states(runs.folder / name / "policy.optimizer") for name in ("bf16", "bf16 again"))
    kinds = {key.split(".")[2] for key in first}
    assert kinds == {"fp32_param", "exp_avg", "exp_avg_sq"}
    assert first.keys() == second.keys()
    for key, tensor in first.items():
        padded = second[key]
        assert padded[: len(tensor)].equal(tensor), key
        assert not padded[len(tensor) :].any(), key
    assert {tensor.dtype for tensor in first.values()} == {torch.float32}
    weights = [load_file(runs.folder / name / "policy" / "model.safetensors") for name in ("bf16", "bf16 again")]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])
    rounded = first["optimizer.state.fp32_param.decoder.final_layernorm.weight"].bfloat16()
    assert rounded.equal(weights[0]["model.norm.weight"])


def states(folder: Path) -> dict[str, Tensor]:
    """The tensors of a sharded checkpoint, whole."""
    reader = FileSystemReader(folder)
    found = {
        key: torch.empty(described.size, dtype=described.properties.dtype)
        for key, described in reader.read_metadata().state_dict_metadata.items()
    }
    load(found, storage_reader=reader, no_dist=True)
    return found


def test_every_process_is_told_that_the_disk_of_one_is_full(runs: Runs) -> None:
    for problem in runs.problems["model"]:
        assert re.search(r"cannot write .*full/policy: .*File too large", problem)
    for problem in runs.problems["shards"]:
        assert re.search(r"cannot write .*full/policy.optimizer: rank 0: ", problem)


def test_transformers_loads_the_model(runs: Runs) -> None:
    model, problems = AutoModelForCausalLM.from_pretrained(runs.folder / "tensor" / "policy", output_loading_info=True)
    assert not any(problems.values())
    expected = runs.steps["tensor"][SAVED_AFTER - 1].weights
    assert all(value.equal(expected[f"policy.{name}"]) for name, value in model.state_dict().items())
    assert model.generation_config.pad_token_id == 0
    critic = AutoModelForSequenceClassification.from_pretrained(runs.folder / "tensor" / "critic")
    assert critic.score.weight.equal(expected["critic.score.weight"])


def lose_a_file(folder: Path) -> str:
    (folder / "__1_0.distcp").unlink()
    return "__1_0.distcp is missing"


def cut_a_file(folder: Path) -> str:
    os.truncate(folder / "__0_0.distcp", 100)
    return "__0_0.distcp is truncated"


def lose_the_index(folder: Path) -> str:
    (folder / ".metadata").unlink()
    return ".metadata is missing"


@pytest.mark.parametrize("harm", [lose_a_file, cut_a_file, lose_the_index])
def test_the_damaged_file_is_named(runs: Runs, tmp_path: Path, harm: Callable[[Path], str]) -> None:
    shutil.copytree(runs.folder / "tensor" / "policy.optimizer", tmp_path / "copy")
    check_files(tmp_path / "copy")
    problem = harm(tmp_path / "copy")
    with pytest.raises(CheckpointError, match=re.escape(problem)):
        check_files(tmp_path / "copy")
