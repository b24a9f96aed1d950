"""Who shares processes with whom, how many there are, and which flags are refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from stacx_core import TRAINING_CONFIGS, Modality, ModelRole, TrainingConfig
from stacx_core.errors import ConfigError
from stacx_core.host_knobs import HOST_KNOBS
from stacx_core.knobs import Args
from stacx_core.trainer import pools
from stacx_core.trainer.pools import Pool, check_offload, check_role_workers, pools_of

MEGATRON = {"backend": "megatron", "tensor_model_parallel_size": 2}


@pytest.fixture
def args_of() -> Callable[..., Args]:
    """The default arguments of a recipe with some of them given by flags."""

    def build(recipe: str, **given: Any) -> Args:
        knobs = (*HOST_KNOBS, *TRAINING_CONFIGS[recipe].knobs)
        values = {knob.name: knob.default for knob in knobs}
        origins = {name: "flag" if name in given else "default" for name in values}
        return Args({**values, **given}, origins)

    return build


@pytest.fixture
def check(args_of: Callable[..., Args]) -> Callable[..., Args]:
    return lambda recipe, **given: check_role_workers(TRAINING_CONFIGS[recipe], args_of(recipe, **given))


@pytest.mark.parametrize(("given", "kind"), [({}, "local"), (MEGATRON, "ray"), ({"role_workers": "ray"}, "ray")])
def test_megatron_is_what_asks_for_ray(check: Any, given: dict[str, Any], kind: str) -> None:
    assert check("grpo", **given).role_workers == kind


@pytest.mark.parametrize(
    ("recipe", "given", "expected"),
    [
        ("grpo", {"role_workers": "ray"}, [Pool("policy", ("policy",), (1,))]),
        ("grpo", MEGATRON, [Pool("policy", ("policy",), (2,))]),
        ("ppo", MEGATRON, [Pool("policy", ("policy",), (2,)), Pool("critic", ("critic",), (2,))]),
        ("self_distill", MEGATRON, [Pool("policy", ("policy", "teacher"), (2,))]),
        (
            "ppo",
            {**MEGATRON, "num_nodes": 2, "num_gpus_per_node": 4, "ray_address": "auto"},
            [Pool("policy", ("policy",), (4,)), Pool("critic", ("critic",), (4,))],
        ),
        (
            "ppo",
            {**MEGATRON, "num_nodes": 4, "num_gpus_per_node": 1, "ray_address": "auto"},
            [Pool("policy", ("policy",), (1, 1)), Pool("critic", ("critic",), (1, 1))],
        ),
        (
            "ppo",
            {"backend": "megatron", "num_nodes": 2, "num_gpus_per_node": 3, "ray_address": "auto"},
            [Pool("policy", ("policy",), (3,)), Pool("critic", ("critic",), (3,))],
        ),
    ],
)
def test_processes_are_shared_out_equally(check: Any, recipe: str, given: dict[str, Any], expected: list[Pool]) -> None:
    assert pools_of(TRAINING_CONFIGS[recipe], check(recipe, **given)) == expected


REFUSED = {
    "leave --role-workers local out, or use ray": ("grpo", {"backend": "megatron", "role_workers": "local"}),
    "--num-nodes has no effect without --role-workers ray": ("grpo", {"num_nodes": 2}),
    "--max-restarts has no effect without --role-workers ray": ("grpo", {"max_restarts": 1}),
    "--num-nodes 2 needs a Ray cluster": ("grpo", {"role_workers": "ray", "num_nodes": 2}),
    r"3 process\(es\) .* cannot be shared out equally among the 2 pool\(s\) .*\(policy, critic\); .* multiple of 2": (
        "ppo",
        {"backend": "megatron", "num_gpus_per_node": 3},
    ),
    r"3 process\(es\) .* do not divide into replicas of 2": ("grpo", {**MEGATRON, "num_gpus_per_node": 3}),
    "with --backend torch each has one process": ("grpo", {"role_workers": "ray", "num_gpus_per_node": 2}),
    "--num-nodes 3 does not divide the 4 processes": ("ppo", {**MEGATRON, "num_nodes": 3, "ray_address": "auto"}),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_shared_out_or_would_be_ignored_is_refused(check: Any, message: str) -> None:
    recipe, given = REFUSED[message]
    with pytest.raises(ConfigError, match=message):
        check(recipe, **given)


@pytest.mark.parametrize(
    ("recipe", "given", "effect"),
    [
        ("grpo", {}, False),
        ("grpo", {"use_kl_loss": True, "kl_loss_coef": 0.1, "ref_load": "reference"}, True),
        ("ppo", {}, True),
        ("ppo", {"role_workers": "ray"}, False),
        ("ppo", {"role_workers": "ray", "kl_coef": 0.1, "ref_load": "reference"}, True),
        ("self_distill", {"role_workers": "ray"}, True),
    ],
)
def test_roles_are_offloaded_only_where_a_process_has_two(
    check: Any, recipe: str, given: dict[str, Any], effect: bool
) -> None:
    args = check(recipe, offload_roles=True, **given)
    with nullcontext() if effect else pytest.raises(ConfigError, match=f"{recipe!r} holds more than one model"):
        check_offload(TRAINING_CONFIGS[recipe], args)


def test_without_ray_the_extra_is_named(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'stacx-core\[ray\]'"):
        check("grpo", role_workers="ray")


@pytest.mark.parametrize("given", [{"role_workers": "ray"}, MEGATRON])
def test_models_of_another_modality_are_trained_in_one_process(args_of: Any, given: dict[str, Any]) -> None:
    """A modality that offers every knob of the host is told which of them do not apply to it."""
    reference = "package.module:name"
    points = Modality("points", reference, reference, reference, reference)
    config = TrainingConfig("points", (ModelRole("line", reference),), modality=points)
    with pytest.raises(ConfigError, match="recipe 'points' is of modality 'points', and --role-workers ray"):
        check_role_workers(config, args_of("sft", **given))
    assert check_role_workers(config, args_of("sft")).role_workers == "local"
