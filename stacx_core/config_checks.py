"""The rules a recipe must keep, checked when it is built.

Each rule is a generator of problems `(field, value, what would be right)`. They run in order and the first
problem ends the check, so a later rule may rely on all earlier ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from stacx_core.batch_keys import BATCH_KEYS, PRODUCERS, BatchKey
from stacx_core.config import OBJECT_REFERENCE, PARALLELISMS, DataSync, FrozenMapping, ModelRole, TrainingConfig
from stacx_core.errors import ConfigError, RecipeError, nearest
from stacx_core.host_knobs import HOST_KNOBS
from stacx_core.knobs import Knob
from stacx_core.modality import LANGUAGE, Modality

RECIPE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")

Problem = tuple[str, object, str]


def check_recipe(config: TrainingConfig) -> None:
    """Raise `RecipeError` for the first rule the recipe breaks."""
    rules = (_names, _modality, _own_fields, _roles, _rollout_push, _pools, _syncs, _written_once, _readable, _knobs)
    for rule in rules:
        for where, value, right in rule(config):
            raise RecipeError(f"recipe {config.name!r}: {where} is {value!r}; {right}")


def _names(config: TrainingConfig) -> Iterator[Problem]:
    if not isinstance(config.name, str) or not RECIPE_NAME.fullmatch(config.name):
        yield "name", config.name, "use letters, digits, '_', '-' and '.', as in 'my_algo'"
    for where, kind in (("roles", ModelRole), ("syncs", DataSync)):
        value = getattr(config, where)
        if not isinstance(value, tuple) or not all(isinstance(item, kind) for item in value):
            yield where, value, f"it must be a tuple of {kind.__name__}, as in ({kind.__name__}(...),)"
    if not config.roles:
        yield "roles", config.roles, "a recipe needs at least one ModelRole"


def _modality(config: TrainingConfig) -> Iterator[Problem]:
    modality = config.modality
    if not isinstance(modality, Modality):
        yield "modality", modality, "it must be a Modality"
    for where in ("setup", "worker", "check_rows", "sample"):
        if not _is_reference(getattr(modality, where)):
            yield f"modality.{where}", getattr(modality, where), "it must be an object reference 'package.module:name'"
    for where in ("name", "unit"):
        if not isinstance(getattr(modality, where), str) or not getattr(modality, where):
            yield f"modality.{where}", getattr(modality, where), "it must be a word, as in 'token'"
    yield from _modality_parts(modality)


def _modality_parts(modality: Modality) -> Iterator[Problem]:
    host = {knob.name for knob in HOST_KNOBS}
    if modality.host_knobs is not None and not _is_tuple_of(_is_identifier, modality.host_knobs):
        yield "modality.host_knobs", modality.host_knobs, "it must be a tuple of knob names or None, as in ('lr',)"
    for name in modality.host_knobs or ():
        if name not in host:
            yield "modality.host_knobs", name, f"the host has no such knob{nearest(name, host)}"
    if not _is_tuple_of(lambda knob: isinstance(knob, Knob), modality.knobs):
        yield "modality.knobs", modality.knobs, "it must be a tuple of Knob, as in (Knob(...),)"
    if not _is_tuple_of(lambda key: isinstance(key, BatchKey) and key.producer in PRODUCERS, modality.batch_keys):
        yield "modality.batch_keys", modality.batch_keys, f"it must be a tuple of BatchKey; producers are {PRODUCERS}"
    for key in modality.batch_keys:
        if key.name in BATCH_KEYS:
            yield "modality.batch_keys", key.name, "the host has that key already; give this one another name"


def _own_fields(config: TrainingConfig) -> Iterator[Problem]:
    for where in ("description", "family"):
        if not isinstance(getattr(config, where), str):
            yield where, getattr(config, where), "it must be a string"
    if not isinstance(config.defaults, FrozenMapping) or not all(map(_is_identifier, config.defaults)):
        yield "defaults", config.defaults, "it must map knob names to values, as in {'eps_clip': 0.2}"
    if not _is_tuple_of(_is_identifier, config.requires):
        yield "requires", config.requires, "it must be a tuple of knob names, as in ('ref_load',)"
    if not _is_reference(config.rollout):
        yield "rollout", config.rollout, "it must be an object reference 'package.module:Class'"
    yield from _batch_keys(config, "rollout_fields", config.rollout_fields)
    if not _is_tuple_of(lambda knob: isinstance(knob, Knob), config.knobs):
        yield "knobs", config.knobs, "it must be a tuple of Knob, as in (Knob(...),)"
    if config.check_args is not None and not _is_function(config.check_args):
        yield "check_args", config.check_args, "it must be a function of args or an object reference to one"
    if not _is_tuple_of(lambda kind: kind in PARALLELISMS, config.supports):
        yield "supports", config.supports, f"it must be a tuple of {', '.join(PARALLELISMS)}"


def _roles(config: TrainingConfig) -> Iterator[Problem]:
    for index, role in enumerate(config.roles):
        if not isinstance(role.name, str) or not role.name.strip():
            yield f"roles[{index}].name", role.name, "a role needs a non-empty name, as in 'policy'"
    for name in _repeated([role.name for role in config.roles]):
        yield "roles", name, "role names must be unique"
    for role in config.roles:
        for where, value, right in _role_fields(config, role):
            yield f"roles[{role.name!r}].{where}", value, right
    if not any(role.trainable for role in config.roles):
        yield "roles", [role.name for role in config.roles], "at least one role must have trainable=True"


def _role_fields(config: TrainingConfig, role: ModelRole) -> Iterator[Problem]:
    if not isinstance(role.specialization_cls, type) and not _is_reference(role.specialization_cls):
        yield "specialization_cls", role.specialization_cls, "it must be a class or 'package.module:Class'"
    for where in ("sync_to_rollout", "trainable", "stateful"):
        if not isinstance(getattr(role, where), bool):
            yield where, getattr(role, where), "it must be True or False"
    if role.load_arg is not None and not _is_identifier(role.load_arg):
        yield "load_arg", role.load_arg, "it must be the name of a knob, as in 'ref_load'"
    if role.head not in ("lm", "scalar"):
        yield "head", role.head, "it must be 'lm' or 'scalar'"
    if not isinstance(role.reads, FrozenMapping):
        yield "reads", role.reads, "it must map batch keys to tuples of knob names, as in {'rewards': ()}"
    yield from _batch_keys(config, "reads", tuple(role.reads))
    for key, knobs in role.reads.items():
        if not _is_tuple_of(_is_condition, knobs):
            yield f"reads[{key!r}]", knobs, "it must be a tuple of 'knob' or 'knob=value', () for always"
    if not _is_tuple_of(_is_function, role.prepare):
        yield "prepare", role.prepare, "it must be a tuple of functions or object references to them"
    if not isinstance(role.overrides, FrozenMapping) or not all(map(_is_identifier, role.overrides.values())):
        yield "overrides", role.overrides, "it must map host knobs to knobs, as in {'lr': 'critic_lr'}"
    if role.stateful and role.trainable:
        yield "stateful", True, "a trained role is kept in checkpoints anyway: leave it out, or set trainable=False"
    if role.when is not None and not callable(role.when):
        yield "when", role.when, "it must be a function of args or None"
    yield from _batch_keys(config, "inputs_key", (role.inputs_key,))
    if config.modality == LANGUAGE and not config.batch_keys[role.inputs_key].element.startswith("[L"):
        yield "inputs_key", role.inputs_key, "it must be a batch key of token sequences: 'tokens' or 'teacher_tokens'"
    for where in ("frozen_for", "trained_every"):
        if getattr(role, where) is not None and not _is_identifier(getattr(role, where)):
            yield where, getattr(role, where), "it must be the name of a knob, as in 'num_critic_only_steps'"


def _rollout_push(config: TrainingConfig) -> Iterator[Problem]:
    pushed = [role for role in config.roles if role.sync_to_rollout]
    if len(pushed) > 1:
        yield "sync_to_rollout", [role.name for role in pushed], "at most one role may push its weights"
    for role in pushed:
        if not role.trainable and not role.stateful:
            yield (
                f"roles[{role.name!r}].sync_to_rollout",
                True,
                "a frozen role has no new weights to push: set trainable=True or sync_to_rollout=False",
            )


def _pools(config: TrainingConfig) -> Iterator[Problem]:
    pools = {role.name: role.pool for role in config.roles if role.pool is not None}
    names = [role.name for role in config.roles]
    for name, pool in pools.items():
        if pool not in names:
            yield f"roles[{name!r}].pool", pool, f"it must name a role: {names}{nearest(str(pool), names)}"
    for name in pools:
        path = [name]
        while path[-1] in pools and path.count(path[-1]) == 1:
            path.append(pools[path[-1]])
        if path.count(path[-1]) > 1:
            yield f"roles[{name!r}].pool", pools[name], f"pool sharing is a cycle: {' -> '.join(path)}"


def _syncs(config: TrainingConfig) -> Iterator[Problem]:
    names = [role.name for role in config.roles]
    for index, sync in enumerate(config.syncs):
        for where, value, right in _sync_fields(config, sync, names):
            yield f"syncs[{index}].{where}", value, right


def _sync_fields(config: TrainingConfig, sync: DataSync, names: list[str]) -> Iterator[Problem]:
    for where, end in (("src", sync.src), ("dst", sync.dst)):
        if end not in names:
            yield where, end, f"it must be a role of the recipe: {names}{nearest(str(end), names)}"
    if sync.src == sync.dst:
        yield "dst", sync.dst, "src and dst must be different roles"
    if sync.mode not in ("inject", "exchange"):
        yield "mode", sync.mode, "it must be 'inject' or 'exchange'"
    if sync.keys == ():
        yield "keys", sync.keys, "a sync must carry at least one batch key, as in ('ref_log_probs',)"
    yield from _batch_keys(config, "keys", sync.keys)
    yield from _batch_keys(config, "reverse_keys", sync.reverse_keys)
    if sync.mode == "exchange" and not sync.reverse_keys:
        yield (
            "reverse_keys",
            sync.reverse_keys,
            "an exchange needs the keys that go back (one way is 'inject')",
        )
    if sync.mode == "inject" and sync.reverse_keys:
        yield (
            "reverse_keys",
            sync.reverse_keys,
            "an inject goes one way: leave it empty (both ways is 'exchange')",
        )
    if sync.when is not None and not callable(sync.when):
        yield "when", sync.when, "it must be a function of args or None"


def _written_once(config: TrainingConfig) -> Iterator[Problem]:
    for role, key in _repeated(_deliveries(config)):
        yield f"syncs into {role!r}", key, "two syncs write this key to this role; keep one"


def _readable(config: TrainingConfig) -> Iterator[Problem]:
    delivered = set(_deliveries(config))
    for role in config.roles:
        for key in role.reads:
            other_role_only = config.batch_keys[key].producer == "sync" and role.head != "scalar"
            if other_role_only and (role.name, key) not in delivered:
                right = f"nothing writes it for this role: add a DataSync that delivers it to {role.name!r}"
                yield f"roles[{role.name!r}].reads", key, right


def _knobs(config: TrainingConfig) -> Iterator[Problem]:
    for name in _repeated([knob.name for knob in config.resolved_knobs]):
        yield (
            "knobs",
            name,
            "it is declared already; give the knob another name, or set its value in defaults",
        )
    known = {knob.name: knob for knob in config.offered_knobs}
    for where, name in _knob_names(config):
        if name not in known and any(knob.name == name for knob in config.resolved_knobs):
            yield where, name, f"recipes of modality {config.modality.name!r} do not use that knob"
        elif name not in known:
            yield where, name, f"neither the host nor the recipe declares that knob{nearest(name, known)}"
    yield from _counting_knobs(config, known)
    for name, value in config.defaults.items():
        try:
            known[name].validate(value, f"defaults[{name!r}]")
        except ConfigError as error:
            yield f"defaults[{name!r}]", value, str(error)


def _counting_knobs(config: TrainingConfig, known: dict[str, Knob]) -> Iterator[Problem]:
    for role in config.roles:
        for where in ("frozen_for", "trained_every"):
            name = getattr(role, where)
            if name is not None and known[name].type is not int:
                yield f"roles[{role.name!r}].{where}", name, "it must name a whole-number knob"
            if name is not None and not role.trainable:
                yield f"roles[{role.name!r}].{where}", name, "a role with trainable=False is never trained"
        if role.trained_every is not None and not known[role.trained_every].minimum:
            yield f"roles[{role.name!r}].trained_every", role.trained_every, "its knob needs minimum=1"


def _knob_names(config: TrainingConfig) -> Iterator[tuple[str, str]]:
    """Every place that names a knob, with the name."""
    yield from (("defaults", name) for name in config.defaults)
    yield from (("requires", name) for name in config.requires)
    for role in config.roles:
        if role.load_arg is not None:
            yield f"roles[{role.name!r}].load_arg", role.load_arg
        for where in ("frozen_for", "trained_every"):
            if getattr(role, where) is not None:
                yield f"roles[{role.name!r}].{where}", getattr(role, where)
        for pair in role.overrides.items():
            yield from ((f"roles[{role.name!r}].overrides", name) for name in pair)
        for key, conditions in role.reads.items():
            names = (condition.partition("=")[0] for condition in conditions)
            yield from ((f"roles[{role.name!r}].reads[{key!r}]", name) for name in names)


def _deliveries(config: TrainingConfig) -> list[tuple[str, str]]:
    """Every (role, batch key) that a sync writes."""
    forward = [(sync.dst, key) for sync in config.syncs for key in sync.keys]
    return forward + [(sync.src, key) for sync in config.syncs for key in sync.reverse_keys]


def _batch_keys(config: TrainingConfig, where: str, keys: Any) -> Iterator[Problem]:
    if not _is_tuple_of(lambda key: isinstance(key, str), keys):
        yield where, keys, "it must be a tuple of batch keys, as in ('values',)"
    for key in keys:
        if key not in config.batch_keys:
            yield where, key, f"no such batch key{nearest(key, config.batch_keys)}; see stacx_core.batch_keys"


def _is_tuple_of(check: Any, value: Any) -> bool:
    return isinstance(value, tuple) and all(map(check, value))


def _is_identifier(value: Any) -> bool:
    return isinstance(value, str) and value.isidentifier()


def _is_condition(value: Any) -> bool:
    return isinstance(value, str) and value.partition("=")[0].isidentifier()


def _is_reference(value: Any) -> bool:
    return isinstance(value, str) and OBJECT_REFERENCE.fullmatch(value) is not None


def _is_function(value: Any) -> bool:
    return callable(value) or _is_reference(value)


def _repeated(items: list[Any]) -> list[Any]:
    return [item for index, item in enumerate(items) if item in items[:index]]
