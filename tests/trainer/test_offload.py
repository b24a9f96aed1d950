"""Roles that take turns on the device: one is there at a time, and nothing of what they compute changes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stacx_core.hookspecs import SyncChannel
from stacx_core.recipes import TRAINING_CONFIGS
from stacx_core.testing.parallel import UpdateJob, make_models, update_job
from stacx_core.testing.ranks import Ranks
from stacx_core.testing.variants import EVERYTHING, variants
from stacx_core.trainer.learner import LocalLearner
from stacx_core.trainer.offload import AtHand
from stacx_core.trainer.roles import RolesHere
from stacx_core.trainer.worker import RoleWorker

ROLES = ("policy", "critic", "reference")


@dataclass(frozen=True)
class Result:
    """What three updates made of the roles.

    Attributes:
        metrics: Of each update, and of an evaluation.
        state: Role -> its weights and moments.
        seen: At every forward pass, bytes on the device by role.
        between: The same when all was done.
    """

    metrics: list[dict[str, float]]
    state: dict[str, list[Tensor]]
    seen: list[tuple[str, dict[str, int]]]
    between: dict[str, int]


@dataclass(frozen=True)
class OffloadJob:
    """Three updates, a save and an evaluation of ppo with a reference, in one process."""

    job: UpdateJob
    folder: Path

    def run(self, rank: int = 0, ranks: int = 1) -> Result:
        """What came of it."""
        learner = self.job.learner(ranks)
        workers = workers_of(learner)
        seen: list[tuple[str, dict[str, int]]] = []
        for name, worker in workers.items():
            embedding = next(m for m in worker.model.modules() if type(m).__name__.endswith("Embedding"))
            embedding.register_forward_pre_hook(lambda *_, name=name: seen.append((name, bytes_of(workers))))
        metrics = [learner.update(copy.deepcopy(self.job.batch), completed) for completed in range(2)]
        learner.save(self.folder)
        learner.finish_save()
        metrics.append(learner.update(copy.deepcopy(self.job.batch), completed=2))
        metrics.append(learner.evaluate(copy.deepcopy(self.job.batch)))
        between = bytes_of(workers)
        learner.turns.give(*workers.values())
        state = {name: [tensor.clone() for tensor in worker.kept()] for name, worker in workers.items()}
        return Result(metrics, state, seen, between)


def workers_of(learner: LocalLearner) -> dict[str, RoleWorker]:
    """All models of the process by name."""
    assert learner.reference is not None
    return {**learner.workers, "reference": learner.reference}


def bytes_of(workers: dict[str, RoleWorker]) -> dict[str, int]:
    """The memory that each role has on the device, gradients included."""
    found = {}
    for name, worker in workers.items():
        tensors = list(worker.kept())
        tensors += [p.grad for p in worker.model.parameters() if p.grad is not None]
        tensors += [] if worker.optimizer is None else list(worker.optimizer.gradient_buffers())
        storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
        found[name] = sum(storages.values())
    return found


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> UpdateJob:
    """An update of ppo with a reference, on tiny models."""
    config = TRAINING_CONFIGS["ppo"]
    variant = next(variant for variant in variants(config) if variant.name == EVERYTHING)
    made = update_job(config, variant, make_models(tmp_path_factory.mktemp("models")))
    return replace(made, args=made.args.replace(num_critic_only_steps=0))


@pytest.fixture(scope="module")
def process() -> Iterator[Ranks]:
    """One process, with Megatron's groups of one."""
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    with Ranks(120.0, 1) as ranks:
        yield ranks


def results(job: UpdateJob, folder: Path, process: Ranks | None = None) -> tuple[Result, Result]:
    """With roles in turn, and side by side."""
    jobs = [
        OffloadJob(
            replace(job, args=job.args.replace(offload_roles=turns, output_dir=str(folder))), folder / str(turns)
        )
        for turns in (True, False)
    ]
    first, second = [one.run() if process is None else process.run(one)[0] for one in jobs]
    return first, second


def check(turns: Result, together: Result) -> None:
    """One role is on the device at a time, the policy between calls, and all numbers are the same."""
    assert {name for name, _ in turns.seen} == set(ROLES)
    for name, here in turns.seen:
        assert {role for role in ROLES if here[role]} == {name}
    assert {role for role in ROLES if turns.between[role]} == {"policy"}
    assert all(all(here.values()) for _, here in together.seen)
    assert turns.metrics == together.metrics
    assert any(value for value in turns.metrics[1].values())
    for role, tensors in together.state.items():
        assert len(tensors) > 10
        for found, expected in zip(turns.state[role], tensors, strict=True):
            assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_torch_backend(job: UpdateJob, tmp_path: Path, dtype: str) -> None:
    check(*results(replace(job, args=job.args.replace(dtype=dtype)), tmp_path))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("sharded", [False, True])
def test_megatron(job: UpdateJob, process: Ranks, tmp_path: Path, dtype: str, sharded: bool) -> None:
    """Also with parameters that are views into the distributed optimizer's buffers."""
    spread = job.spread({"dtype": dtype, "use_distributed_optimizer": sharded})
    check(*results(spread, tmp_path, process))


@pytest.fixture
def learner(job: UpdateJob) -> LocalLearner:
    """Roles in turn."""
    return replace(job, args=job.args.replace(offload_roles=True)).learner(1)


def test_a_role_comes_back_as_it_was_loaded(job: UpdateJob, learner: LocalLearner) -> None:
    """Also one whose weights were a file mapped into memory."""
    critic = learner.workers["critic"]
    learner.turns.give(critic)
    alone = replace(job, args=job.args.replace(offload_roles=False)).learner(1).workers["critic"]
    assert all(map(torch.equal, critic.model.parameters(), alone.model.parameters()))


class Noting(SyncChannel):
    """Notes what is on the device when it is asked to do something."""

    def __init__(self, workers: dict[str, RoleWorker]) -> None:
        self.workers = workers
        self.here: list[int] = []

    def after_update(self, completed: int) -> None:
        """Called after an update."""
        self.here += bytes_of(self.workers).values()


def test_a_plugins_channel_has_the_roles_at_hand_when_it_is_made_and_when_it_runs(learner: LocalLearner) -> None:
    """The reference is nobody's role, and stays away."""
    workers = workers_of(learner)
    roles = RolesHere("plugin", learner.workers, (), learner.turns)
    assert not bytes_of(workers)["critic"]
    assert roles["policy"] is learner.policy
    assert [name for name, here in bytes_of(workers).items() if here] == ["policy", "critic"]
    learner.turns.give(learner.policy)
    channel = Noting(dict(learner.workers))
    at_hand = AtHand(channel, learner.turns, learner.workers.values())
    at_hand.transfer({})
    assert not bytes_of(workers)["critic"]
    at_hand.after_update(1)
    assert len(channel.here) == 2
    assert all(channel.here)


def test_a_run_that_samples_evaluates_saves_and_is_resumed(
    train: Any, metrics: Any, rewards: Path, checkpoint: Path, sums: Path, tmp_path: Path
) -> None:
    """The engine finds the policy where it left it, and a checkpoint is copied before its role leaves."""
    flags = ["--rm-type", "fatal_rewards:digits", "--n-samples-per-prompt", "4", "--eval-prompt-data", sums]
    flags += ["--eval-interval", "1", "--ref-load", checkpoint, "--kl-coef", "0.1", "--num-steps-per-rollout", "2"]
    turns = ["--offload-roles", "--async-save", "--save-interval", "1"]
    runs = [("together", ["4"]), ("turns", ["2", *turns]), ("turns", ["4", *turns, "--resume"])]
    for output, more in runs:
        done = train("ppo", *flags, "--num-rollout", *more, output=output)
        assert done.code == 0, done.err
    assert metrics(tmp_path / "turns") == metrics(tmp_path / "together")
    for role in ("policy", "critic"):
        files = [tmp_path / run / f"checkpoints/latest/{role}/model.safetensors" for run in ("turns", "together")]
        assert files[0].read_bytes() == files[1].read_bytes()
