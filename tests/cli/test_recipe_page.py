"""What `stacx show-recipe` says about a recipe with two roles."""

from __future__ import annotations

from typing import Any

from stacx_core import DataSync, Knob, ModelRole, TrainingConfig
from stacx_core.cli.recipe_page import recipe_page
from stacx_core.plugin_discovery import PluginRecord
from stacx_core.plugins import ProvidedRecipe

BETA = Knob(name="odd_beta", type=float, default=0.1, help="Odd.", section="odd")


def page() -> dict[str, Any]:
    policy = ModelRole(
        "policy",
        "pack.loss:Actor",
        sync_to_rollout=True,
        reads={
            "advantages": (),
            "values": (),
            "ref_log_probs": ("ref_load", "odd_beta=0.5"),
            "teacher_log_probs": (),
        },
        prepare=("pack.stages:first", "pack.stages:second"),
    )
    critic = ModelRole("critic", "pack.loss:Critic", head="scalar", reads={"values": (), "log_probs": ()})
    config = TrainingConfig(
        "odd",
        (policy, critic),
        syncs=(DataSync("critic", "policy", ("values",), "exchange", reverse_keys=("log_probs",)),),
        defaults={"loss_aggregation": "token_mean", "odd_beta": 0.5},
        rollout_fields=("teacher_log_probs",),
        knobs=(BETA,),
    )
    return recipe_page(ProvidedRecipe(config, PluginRecord("odd", "stacx-odd", "2.0", "pack"), "loaded"))


def test_who_writes_each_batch_key_in_the_order_of_the_stages() -> None:
    rows = [(row["role"], row["key"], row["written_by"], row["when"]) for row in page()["batch_keys"]]
    assert rows == [
        ("critic", "log_probs", "sync from policy (exchange)", []),
        ("critic", "values", "forward of critic", []),
        ("policy", "teacher_log_probs", "rollout", []),
        ("policy", "ref_log_probs", "forward", ["--ref-load", "--odd-beta 0.5"]),
        ("policy", "values", "sync from critic (exchange)", []),
        ("policy", "advantages", "advantages", []),
    ]


def test_pipeline_syncs_and_aggregation() -> None:
    shown = page()
    assert [row["stage"] for row in shown["advantage_pipeline"]] == [
        "pack.stages:first",
        "pack.stages:second",
    ]
    assert [row["text"] for row in shown["syncs"]] == ["critic <-> policy: values | log_probs"]
    assert (shown["aggregation"]["default"], shown["aggregation"]["recipe_default"]) == ("token_mean", True)
    assert shown["aggregation"]["formula"] == "sum_i sum_t x m / max(sum_i n_i, 1)"


def test_a_stage_is_explained_by_its_own_docstring(stacx: Any) -> None:
    import json

    stages = json.loads(stacx("show-recipe", "sft", "--json").out)["advantage_pipeline"]
    assert stages == []
    shown = page()["advantage_pipeline"][0]
    assert shown == {"role": "policy", "stage": "pack.stages:first", "does": ""}, "a module that cannot be found"


def test_knobs_carry_the_recipes_default_and_who_declares_them() -> None:
    first, *rest = page()["knobs"]
    assert (first["name"], first["default"], first["origin"]) == ("odd_beta", 0.5, "stacx-odd")
    assert {knob["origin"] for knob in rest} == {"stacx-core"}


def test_a_key_that_a_sync_always_sends_is_always_there() -> None:
    sent = {(row["role"], row["key"]): row["sent_to"] for row in page()["batch_keys"]}
    assert {place: to for place, to in sent.items() if to} == {("critic", "values"): ["policy"]}


def test_only_rollouts_that_are_rewarded_deliver_rewards(stacx: Any) -> None:
    assert "DatasetRollout, delivers tokens\n" in stacx("show-recipe", "sft").out
