"""Every rule of a recipe: what breaks it, and what the message says."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from stacx_core import BatchKey, DataSync, Knob, Modality, ModelRole, RecipeError, TrainingConfig
from stacx_core.config import resolve_object

LOSS = "package.module:Loss"
POLICY = ModelRole("policy", LOSS, sync_to_rollout=True)
CRITIC = ModelRole("critic", LOSS, head="scalar")
REFERENCE = ModelRole("ref", LOSS, trainable=False, pool="policy")
KNOB = Knob(name="odd_knob", type=float, default=1.0, help="Odd.", section="odd", minimum=0)


COUNT = Knob(name="odd_count", type=int, default=1, help="Odd.", section="odd")
INPUTS = BatchKey("inputs", "[R, 3] float32", "rollout", "points")
REFERENCES = dict.fromkeys(("setup", "worker", "check_rows", "sample"), "package.module:name")
POINTS = Modality("points", **REFERENCES, host_knobs=("lr",), batch_keys=(INPUTS,))


def build(*roles: ModelRole, **fields: Any) -> TrainingConfig:
    return TrainingConfig(**{"name": "algo", "roles": roles or (POLICY,), **fields})


def role(**fields: Any) -> ModelRole:
    return ModelRole(**{"name": "policy", "specialization_cls": LOSS, **fields})


def sync(src: Any, dst: Any, keys: Any, *fields: Any, **named: Any) -> DataSync:
    return DataSync(src, dst, keys, *fields, **named)


def shaped(**fields: Any) -> TrainingConfig:
    """A recipe of a modality with some fields of it changed."""
    return build(role(inputs_key="inputs"), modality=replace(POINTS, **fields))


def synced(*syncs: DataSync, roles: tuple[ModelRole, ...] = (POLICY, CRITIC, REFERENCE)) -> TrainingConfig:
    return build(*roles, syncs=syncs)


def any_function(*_: Any) -> dict[str, float]:
    return {}


def never(_: Any) -> bool:
    return False


BROKEN: dict[str, tuple[Callable[[], TrainingConfig], list[str]]] = {
    "no name": (lambda: build(name=""), ["''", "letters"]),
    "name with a colon": (lambda: build(name="a:b"), ["'a:b'"]),
    "no roles": (lambda: build(roles=()), ["roles is ()", "at least one ModelRole"]),
    "one role without a comma": (lambda: build(roles=POLICY), ["roles", "(ModelRole(...),)"]),
    "sync without a comma": (lambda: build(syncs=sync("a", "b", ("kl",))), ["syncs", "(DataSync(...),)"]),
    "empty role name": (lambda: build(role(name=" ")), ["roles[0].name", "non-empty"]),
    "repeated role name": (lambda: build(POLICY, role()), ["'policy'", "unique"]),
    "no trainable role": (lambda: build(role(trainable=False)), ["['policy']", "trainable=True"]),
    "no specialization": (lambda: build(role(specialization_cls=None)), ["specialization_cls is None"]),
    "dotted specialization": (
        lambda: build(role(specialization_cls="a.B")),
        ["'a.B'", "package.module:Class"],
    ),
    "flag that is a string": (lambda: build(role(trainable="no")), ["trainable is 'no'", "True or False"]),
    "unknown head": (lambda: build(role(head="value")), ["head is 'value'", "'lm' or 'scalar'"]),
    "unknown load_arg": (
        lambda: build(role(load_arg="ref_laod")),
        ["'ref_laod'", "did you mean 'ref_load'?"],
    ),
    "two rollout roles": (
        lambda: build(POLICY, role(name="other", sync_to_rollout=True)),
        ["['policy', 'other']", "at most one"],
    ),
    "frozen rollout role": (
        lambda: build(role(sync_to_rollout=True, trainable=False), CRITIC),
        ["sync_to_rollout", "frozen"],
    ),
    "override of no knob": (
        lambda: build(role(overrides={"lr": "critic_lr"})),
        ["roles['policy'].overrides is 'critic_lr'", "neither the host nor the recipe declares that knob"],
    ),
    "override that is no mapping": (lambda: build(role(overrides=("lr",))), ["overrides", "{'lr': 'critic_lr'}"]),
    "frozen for a number": (lambda: build(role(frozen_for=3)), ["frozen_for is 3", "'num_critic_only_steps'"]),
    "frozen for a knob of text": (
        lambda: build(role(frozen_for="rm_type")),
        ["frozen_for is 'rm_type'", "whole-number knob"],
    ),
    "frozen for a while and for ever": (
        lambda: build(POLICY, role(name="ref", trainable=False, frozen_for="num_rollout")),
        ["frozen_for", "trainable=False is never trained"],
    ),
    "unknown parallelism": (lambda: build(supports=("tensor",)), ["supports", "tensor_parallel"]),
    "pool is no role": (
        lambda: build(POLICY, role(name="ref", pool="polcy")),
        ["'polcy'", "did you mean 'policy'?"],
    ),
    "pool of itself": (lambda: build(role(pool="policy")), ["policy -> policy"]),
    "pool cycle": (
        lambda: build(role(name="a", pool="b"), role(name="b", pool="c"), role(name="c", pool="a")),
        ["'a'", "a -> b -> c -> a"],
    ),
    "unknown key read": (
        lambda: build(role(reads={"advantage": ()})),
        ["'advantage'", "did you mean 'advantages'?"],
    ),
    "condition without a comma": (lambda: build(role(reads={"kl": "ref_load"})), ["reads['kl']", "tuple"]),
    "unknown condition": (lambda: build(role(reads={"kl": ("ref_lod",)})), ["'ref_lod'", "'ref_load'"]),
    "condition without a knob": (lambda: build(role(reads={"kl": ("=x",)})), ["reads['kl']", "'knob=value'"]),
    "value of an unknown knob": (lambda: build(role(reads={"kl": ("ref_lod=x",)})), ["'ref_lod'", "'ref_load'"]),
    "values nobody delivers": (lambda: build(role(reads={"values": ()})), ["'values'", "add a DataSync"]),
    "stage that is no function": (lambda: build(role(prepare=(3,))), ["prepare is (3,)"]),
    "dangling source": (lambda: synced(sync("refs", "policy", ("kl",))), ["syncs[0].src", "'refs'", "'ref'"]),
    "dangling destination": (lambda: synced(sync("ref", "actor", ("kl",))), ["syncs[0].dst", "'actor'"]),
    "sync to itself": (lambda: synced(sync("ref", "ref", ("kl",))), ["different roles"]),
    "sync of nothing": (lambda: synced(sync("ref", "policy", ())), ["syncs[0].keys", "at least one"]),
    "keys without a comma": (lambda: synced(sync("ref", "policy", "kl")), ["'kl'", "('values',)"]),
    "unknown key": (lambda: synced(sync("ref", "policy", ("ref_logprobs",))), ["'ref_log_probs'"]),
    "unknown mode": (lambda: synced(sync("ref", "policy", ("kl",), "push")), ["'push'", "'inject'"]),
    "exchange one way": (lambda: synced(sync("critic", "policy", ("values",), "exchange")), ["reverse_keys"]),
    "inject both ways": (
        lambda: synced(sync("critic", "policy", ("values",), reverse_keys=("kl",))),
        ["reverse_keys is ('kl',)"],
    ),
    "key written twice": (
        lambda: synced(
            sync("ref", "policy", ("values",)),
            sync("policy", "critic", ("log_probs",), "exchange", reverse_keys=("values",)),
        ),
        ["syncs into 'policy' is 'values'", "keep one"],
    ),
    "condition that is no function": (
        lambda: synced(sync("ref", "policy", ("kl",), when=True)),
        ["syncs[0].when is True"],
    ),
    "unknown default": (
        lambda: build(defaults={"learning_rate": 1.0}),
        ["'learning_rate'", "declares that knob"],
    ),
    "default of another type": (lambda: build(defaults={"lr": "1e-6"}), ["defaults['lr']", "expected float"]),
    "default out of bounds": (
        lambda: build(knobs=(KNOB,), defaults={"odd_knob": -1.0}),
        ["below the minimum"],
    ),
    "unknown requirement": (lambda: build(requires=("prompt_date",)), ["did you mean 'prompt_data'?"]),
    "requirement without a comma": (lambda: build(requires="prompt_data"), ["requires is 'prompt_data'"]),
    "unknown rollout field": (lambda: build(rollout_fields=("teacher",)), ["rollout_fields is 'teacher'"]),
    "rollout that is no reference": (lambda: build(rollout="sampled"), ["rollout is 'sampled'"]),
    "knob that is none": (lambda: build(knobs=("beta",)), ["knobs is ('beta',)"]),
    "knob declared twice": (lambda: build(knobs=(KNOB, KNOB)), ["'odd_knob'", "declared already"]),
    "knob of the host": (
        lambda: build(knobs=(Knob(name="lr", type=float, default=1.0, help="", section="odd"),)),
        ["'lr'", "set its value in defaults"],
    ),
    "check that is no function": (lambda: build(check_args=3), ["check_args is 3"]),
    "modality that is its name": (lambda: build(modality="points"), ["modality is 'points'", "must be a Modality"]),
    "modality whose worker is no reference": (
        lambda: shaped(worker="Worker"),
        ["modality.worker is 'Worker'", "'package.module:name'"],
    ),
    "modality whose setup is a class": (lambda: shaped(setup=object), ["modality.setup", "object reference"]),
    "modality without check rows": (lambda: shaped(check_rows=None), ["modality.check_rows is None"]),
    "modality without samples": (lambda: shaped(sample=""), ["modality.sample is ''"]),
    "modality with a knob that the host lacks": (
        lambda: shaped(host_knobs=("lr", "wieght_decay")),
        ["modality.host_knobs is 'wieght_decay'", "did you mean 'weight_decay'?"],
    ),
    "modality with one host knob and no comma": (
        lambda: shaped(host_knobs="lr"),
        ["modality.host_knobs is 'lr'", "tuple"],
    ),
    "modality with the name of a knob": (lambda: shaped(knobs=("odd",)), ["modality.knobs is ('odd',)"]),
    "modality with a knob of the host": (
        lambda: shaped(knobs=(Knob(name="lr", type=float, default=1.0, help="", section="odd"),)),
        ["'lr'", "declared already"],
    ),
    "modality with a key that is a name": (lambda: shaped(batch_keys=("inputs",)), ["modality.batch_keys", "BatchKey"]),
    "modality with a key of an unknown stage": (
        lambda: shaped(batch_keys=(replace(INPUTS, producer="camera"),)),
        ["modality.batch_keys", "producers are"],
    ),
    "modality with a key of the host": (
        lambda: shaped(batch_keys=(INPUTS, replace(INPUTS, name="tokens"))),
        ["modality.batch_keys is 'tokens'", "the host has that key"],
    ),
    "modality without a unit": (lambda: shaped(unit=""), ["modality.unit is ''"]),
    "default of a knob that the modality does not use": (
        lambda: build(role(inputs_key="inputs"), modality=POINTS, defaults={"rollout_temperature": 0.5}),
        ["defaults is 'rollout_temperature'", "modality 'points' do not use"],
    ),
    "requirement of a knob that the modality does not use": (
        lambda: build(role(inputs_key="inputs"), modality=POINTS, requires=("label_key",)),
        ["requires is 'label_key'", "modality 'points' do not use"],
    ),
    "unknown inputs": (lambda: build(role(inputs_key="token")), ["inputs_key is 'token'", "did you mean 'tokens'?"]),
    "inputs of another modality": (lambda: build(role(inputs_key="inputs")), ["inputs_key is 'inputs'"]),
    "inputs that are no sequence of tokens": (
        lambda: build(role(inputs_key="advantages")),
        ["inputs_key is 'advantages'", "'tokens' or 'teacher_tokens'"],
    ),
    "trained every so many by a knob without a minimum": (
        lambda: build(role(trained_every="odd_count"), knobs=(COUNT,)),
        ["trained_every is 'odd_count'", "minimum=1"],
    ),
    "trained every so many by a number": (lambda: build(role(trained_every=2)), ["trained_every is 2"]),
    "trained every so many by no knob": (lambda: build(role(trained_every="evry")), ["trained_every is 'evry'"]),
    "never trained and trained now and then": (
        lambda: build(POLICY, role(name="ref", trainable=False, trained_every="num_rollout")),
        ["trained_every", "trainable=False is never trained"],
    ),
    "role whose condition is no function": (
        lambda: build(role(when="use_critic")),
        ["when is 'use_critic'", "function"],
    ),
    "stateful and trained": (lambda: build(role(stateful=True)), ["stateful is True", "trainable=False"]),
    "stateful by a word": (lambda: build(POLICY, role(name="a", stateful="yes")), ["stateful is 'yes'"]),
}


@pytest.mark.parametrize(("make", "words"), BROKEN.values(), ids=list(BROKEN))
def test_a_malformed_recipe_names_recipe_field_value_and_remedy(make: Any, words: Any) -> None:
    with pytest.raises(RecipeError) as caught:
        make()
    assert str(caught.value).startswith("recipe ")
    for word in words:
        assert word in str(caught.value)


def actor_critic() -> TrainingConfig:
    return TrainingConfig(
        name="actor_critic",
        roles=[
            role(sync_to_rollout=True, reads={"values": (), "kl": ["ref_load"]}, prepare=(any_function,)),
            CRITIC,
        ],  # type: ignore[arg-type]
        syncs=(
            DataSync("critic", "policy", ("values",), "exchange", reverse_keys=("log_probs",)),
            DataSync("policy", "critic", ("ref_log_probs",), when=never),
        ),
        defaults={"lr": 1e-5, "odd_knob": 2},
        knobs=(KNOB,),
        check_args="package.module:check",
    )


def test_a_sound_recipe_is_frozen_through_and_through() -> None:
    config = actor_critic()
    assert isinstance(config.roles, tuple)
    assert config.roles[0].reads["kl"] == ("ref_load",)
    with pytest.raises(AttributeError):
        config.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.defaults["lr"] = 1.0  # type: ignore[index]


def test_a_recipe_survives_pickling() -> None:
    config = actor_critic()
    copy = pickle.loads(pickle.dumps(config))
    assert copy == config
    assert hash(copy) == hash(config)


def test_frozen_fields_do_not_follow_the_mapping_they_came_from() -> None:
    defaults = {"lr": 1.0}
    config = build(defaults=defaults)
    defaults["lr"] = 2.0
    assert config.defaults["lr"] == 1.0


def test_pools_may_be_shared_by_several_roles() -> None:
    build(POLICY, role(name="ref", pool="policy"), role(name="teacher", pool="ref"))


def test_a_modality_has_its_own_keys_and_part_of_the_knobs() -> None:
    config = build(role(inputs_key="inputs"), modality=POINTS, knobs=(KNOB,))
    assert [knob.name for knob in config.offered_knobs] == ["lr", "odd_knob"]
    assert {knob.name for knob in config.resolved_knobs} > {"lr", "odd_knob", "rollout_temperature"}
    assert config.batch_keys["inputs"] == INPUTS
    assert "tokens" in config.batch_keys
    assert pickle.loads(pickle.dumps(config)) == config


def test_the_copy_of_a_language_recipe_is_one_too() -> None:
    copy = pickle.loads(pickle.dumps(build()))
    with pytest.raises(RecipeError, match="token sequences"):
        replace(copy, roles=(role(inputs_key="advantages"),))


def test_a_role_that_follows_may_be_what_generates() -> None:
    build(role(), role(name="average", trainable=False, stateful=True, sync_to_rollout=True))


def test_a_reference_is_resolved() -> None:
    assert resolve_object("stacx_core.config:ModelRole.__init__") is ModelRole.__init__
    assert resolve_object(any_function) is any_function


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("stacx_core.config.ModelRole", "write 'package.module:attribute'"),
        ("stacx_core.confg:ModelRole", "'stacx_core.confg' cannot be imported"),
        ("stacx_core.config:ModelRoll", "did you mean 'ModelRole'"),
    ],
)
def test_a_reference_that_cannot_be_resolved_says_why(reference: Any, words: Any) -> None:
    with pytest.raises(RecipeError, match=words):
        resolve_object(reference)


def test_a_parallelism_that_is_not_claimed_is_refused() -> None:
    from stacx_core import ConfigError
    from stacx_core.trainer.parallelism import check_supported

    config = build(supports=("data_parallel",))
    check_supported(config, "data_parallel")
    with pytest.raises(ConfigError, match="recipe 'algo' does not support tensor_parallel; it supports data_parallel"):
        check_supported(config, "tensor_parallel")
