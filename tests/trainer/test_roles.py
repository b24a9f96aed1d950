"""Two roles in one run: a scalar head, an exchange between them, and a role that is not trained at first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stacx_core import (
    Args,
    Batch,
    CausalDecoderSpecialization,
    DataSync,
    Knob,
    ModelRole,
    ScalarHeadSpecialization,
    TrainingConfig,
)
from stacx_core.backends.model import load_model
from stacx_core.data.batch import samples_to_batch
from stacx_core.data.packing import pack
from stacx_core.data.sample import Sample
from stacx_core.trainer.factory import create_trainer
from stacx_core.trainer.plan import complete
from stacx_core.trainer.roles import role_args

SEEN: list[Batch] = []


class Critic(ScalarHeadSpecialization):
    """Regression of every value on 1."""

    def compute_loss(self, model_output: Tensor, batch: Batch, reducer: Any) -> tuple[Tensor, dict[str, Tensor]]:
        values = self.response_values(model_output, batch)
        return reducer((values - 1.0).square()), {"value": self.mean_pair(values, batch)}


class Policy(CausalDecoderSpecialization):
    """Cross-entropy, of a batch that is kept for the test to look at."""

    def compute_loss(self, model_output: Tensor, batch: Batch, reducer: Any) -> tuple[Tensor, dict[str, Tensor]]:
        SEEN.append(batch)
        return super().compute_loss(model_output, batch, reducer)


CONFIG = TrainingConfig(
    "two",
    roles=(
        ModelRole("policy", Policy, sync_to_rollout=True, reads={"values": ()}, frozen_for="warm_up"),
        ModelRole(
            "critic", Critic, head="scalar", reads={"log_probs": (), "values": ()}, overrides={"lr": "critic_lr"}
        ),
    ),
    syncs=(DataSync("critic", "policy", ("values",), mode="exchange", reverse_keys=("log_probs",)),),
    rollout="stacx_core.rollout.dataset:DatasetRollout",
    knobs=(
        Knob("critic_lr", float, None, "Learning rate of the critic.", "two"),
        Knob("warm_up", int, 0, "Rollouts in which only the critic is trained.", "two"),
    ),
)


@pytest.fixture
def arguments(checkpoint: Path, sums: Path, host_args: Callable[..., Args], tmp_path: Path) -> Callable[..., Args]:
    """Completed arguments of the two-role recipe."""

    def build(**given: Any) -> Args:
        files = {"hf_checkpoint": str(checkpoint), "prompt_data": str(sums), "output_dir": str(tmp_path / "run")}
        own = {knob.name: knob.default for knob in CONFIG.knobs}
        run = {"label_key": "label", "rollout_batch_size": 4, "num_rollout": 3, "lr": 1e-3}
        return complete(CONFIG, host_args(**{**files, **own, **run, **given}))

    return build


def test_both_roles_learn_and_each_gets_what_the_other_computes(arguments: Any, metrics: Any, tmp_path: Path) -> None:
    SEEN.clear()
    create_trainer(CONFIG, arguments(critic_lr=1e-2)).train()
    rows = metrics(tmp_path / "run")
    assert rows[0]["train/critic/loss"] == 1.0
    assert rows[0]["train/critic/value"] == 0.0
    assert rows[2]["train/critic/loss"] < 0.9
    assert [row["train/critic/lr"] for row in rows] == [1e-2] * 3
    assert [row["train/policy/lr"] for row in rows] == [1e-3] * 3
    first = SEEN[0]
    assert [len(values) for values in first["values"]] == first["response_lengths"]
    assert all(bool((values == 0).all()) for values in first["values"])
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints" / "latest").iterdir() if path.is_dir()) == [
        "critic",
        "policy",
    ]


def test_a_role_is_frozen_for_its_first_rollouts(arguments: Any, metrics: Any, tmp_path: Path) -> None:
    create_trainer(CONFIG, arguments(warm_up=2, lr_decay_style="linear")).train()
    rows = metrics(tmp_path / "run")
    assert ["train/policy/updates" in row for row in rows] == [False, False, True]
    assert rows[2]["train/policy/updates"] == 1.0
    assert rows[2]["train/policy/lr"] == 1e-3, "the schedule of a role counts its own updates"
    assert [row["train/critic/updates"] for row in rows] == [1.0, 2.0, 3.0]


def test_a_run_with_two_roles_resumes_where_it_stopped(arguments: Any, metrics: Any, tmp_path: Path) -> None:
    unbroken = arguments(warm_up=1, output_dir=str(tmp_path / "unbroken"))
    create_trainer(CONFIG, unbroken).train()
    create_trainer(CONFIG, arguments(warm_up=1).replace(num_rollout=2)).train()
    create_trainer(CONFIG, arguments(warm_up=1, resume="auto")).train()
    assert metrics(tmp_path / "run") == metrics(tmp_path / "unbroken")


def test_an_override_that_is_unset_leaves_the_host_knob(arguments: Any) -> None:
    critic = CONFIG.roles[1]
    assert role_args(critic, arguments()).lr == 1e-3
    assert role_args(critic, arguments(critic_lr=5e-4)).lr == 5e-4


def packed(checkpoint: Path) -> tuple[torch.nn.Module, Batch]:
    model = load_model(str(checkpoint), torch.float32, torch.device("cpu"), "scalar")
    samples = [
        Sample(tokens=[3, 4, 5, 6], response_length=2, loss_mask=[1, 0]),
        Sample(tokens=[7, 8, 9], response_length=1),
    ]
    return model, pack(samples_to_batch(samples, mask_truncated=False, reward_key=None)[0], "cpu")


def test_a_value_belongs_to_the_state_before_its_token(checkpoint: Path, host_args: Any) -> None:
    """Rows 0-3 and 4-6: the responses start at tokens 2 and 6, so their states are rows 1, 2 and 5."""
    _, batch = packed(checkpoint)
    output = torch.arange(7.0)[:, None].requires_grad_()
    values = Critic(host_args()).response_values(output, batch)
    assert values.tolist() == [1.0, 0.0, 5.0], "the second token is masked"
    values.sum().backward()
    assert output.grad is not None
    assert output.grad[:, 0].tolist() == [0, 1, 0, 0, 0, 1, 0]
    assert Critic(host_args()).last_token_values(output, batch).tolist() == [3.0, 6.0]


def test_a_scalar_head_starts_at_zero_and_is_kept(checkpoint: Path, tmp_path: Path) -> None:
    model, _ = packed(checkpoint)
    assert model.score.weight.shape == (1, 32)
    assert not model.score.weight.any()
    torch.nn.init.ones_(model.score.weight)
    model.save_pretrained(tmp_path / "critic")
    again = load_model(str(tmp_path / "critic"), torch.float32, torch.device("cpu"), "scalar")
    assert torch.equal(again.score.weight, torch.ones(1, 32))
