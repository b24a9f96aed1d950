"""What a recipe is made of: `ModelRole`, `DataSync` and `TrainingConfig`.

All three are frozen, picklable and free of torch. A `TrainingConfig` checks the whole recipe when it is
built, so that a malformed recipe fails when its plugin is loaded and never in the middle of a run.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from stacx_core.batch_keys import BATCH_KEYS, BatchKey
from stacx_core.errors import RecipeError, nearest
from stacx_core.host_knobs import HOST_KNOBS
from stacx_core.modality import LANGUAGE, Modality

if TYPE_CHECKING:
    from stacx_core.knobs import Args, Knob

PARALLELISMS = ("data_parallel", "tensor_parallel", "context_parallel", "pipeline_parallel")
"""Ways to spread a role over processes, as `TrainingConfig.supports` names them."""

OBJECT_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class FrozenMapping(Mapping[str, Any]):
    """A read-only copy of a mapping that pickles and hashes (by its keys)."""

    def __init__(self, items: Mapping[str, Any]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items))

    def __repr__(self) -> str:
        return repr(self._items)


def _freeze(config: object, *names: str) -> None:
    """Replace lists by tuples and mappings by frozen copies; the checks name what is neither."""
    for name in names:
        value = getattr(config, name)
        if isinstance(value, Mapping):
            value = FrozenMapping({k: tuple(v) if isinstance(v, list) else v for k, v in value.items()})
        elif isinstance(value, list):
            value = tuple(value)
        object.__setattr__(config, name, value)


@dataclass(frozen=True)
class ModelRole:
    """One model of a recipe.

    Args:
        name: unique within the recipe.
        specialization_cls: the class that computes the loss, or an object reference "package.module:Class",
            which is resolved when the trainer is built.
        sync_to_rollout: push this role's weights to the rollout engine after every step; one role at most.
        trainable: False for a frozen model.
        pool: name of the role whose devices this one shares.
        load_arg: knob that names this role's checkpoint; None, or that knob unset, means `hf_checkpoint`.
        head: "lm" for logits over the vocabulary, "scalar" for one value per position. Models of another modality
            than language have what their worker gives them; leave it.
        reads: batch key -> conditions any of which makes the role read it, each a knob that is set ("use_tis") or
            has a value ("dpo_loss_type=kto"); () means always.
        prepare: whole-batch stages in order, run before any split: functions `(batch, args) -> metrics`, or
            references to them. They add keys such as `advantages` to the batch in place.
        overrides: host knob -> knob of the recipe that this role uses in its place when it is set, as in
            {"lr": "critic_lr"}.
        stateful: True for a model that is not trained but whose weights change all the same, by a channel of
            `build_syncs`, such as an average of another role's; it is kept in checkpoints, and in fp32 whatever the
            precision of the run.
        inputs_key: batch key of what the role's forward passes read; for language models the sequences of tokens,
            each of which ends in the sample's response.
        frozen_for: name of a whole-number knob; the role is not trained in that many first rollouts.
        trained_every: name of a whole-number knob; the role is trained in every so many-th rollout alone, in all of
            them while the knob is unset.
        when: the role takes part only if this holds for the resolved args; None means always.
    """

    name: str
    specialization_cls: type | str
    sync_to_rollout: bool = False
    trainable: bool = True
    pool: str | None = None
    load_arg: str | None = None
    head: Literal["lm", "scalar"] = "lm"
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    prepare: tuple[str | Callable[[dict[str, Any], Args], dict[str, float]], ...] = ()
    overrides: Mapping[str, str] = field(default_factory=dict)
    frozen_for: str | None = None
    trained_every: str | None = None
    when: Callable[[Args], bool] | None = None
    stateful: bool = False
    inputs_key: str = "tokens"

    def __post_init__(self) -> None:
        _freeze(self, "reads", "prepare", "overrides")

    @property
    def own_key(self) -> str:
        """The batch key that the role's own forward pass writes."""
        return "values" if self.head == "scalar" else "log_probs"


@dataclass(frozen=True)
class DataSync:
    """Batch keys that one role's forward pass computes and another role trains on.

    Args:
        src, dst: names of two roles of the recipe.
        keys: batch keys that go from `src` to `dst`.
        mode: "inject" is one way and happens before `dst` trains. "exchange" is both ways and happens after
            both forward passes, before either role's `prepare` stages.
        reverse_keys: keys that go from `dst` to `src`; "exchange" needs some, "inject" has none.
        when: the sync is made only if this holds for the resolved args; None means always.
    """

    src: str
    dst: str
    keys: tuple[str, ...]
    mode: Literal["inject", "exchange"] = "inject"
    reverse_keys: tuple[str, ...] = ()
    when: Callable[[Args], bool] | None = None

    def __post_init__(self) -> None:
        _freeze(self, "keys", "reverse_keys")


@dataclass(frozen=True)
class TrainingConfig:
    """A recipe: its roles, what they exchange, how data is collected, and the knobs it brings.

    Args:
        name: the name users pass to `--algorithm`; equals the name given to `@recipe`.
        roles: the models; at least one of them trainable.
        syncs: what the roles hand to each other.
        description: one line for `stacx list-recipes`.
        family: groups related recipes in listings.
        defaults: knob name -> value used where the user left the knob unset.
        requires: knobs the user must set.
        rollout: object reference of the roll-in protocol.
        rollout_fields: batch keys the rollout must deliver.
        knobs: the knobs this recipe declares beside the host's.
        check_args: called with the resolved args before a run; raises `ConfigError` on a bad combination.
        supports: kinds of parallelism under which the recipe's losses are right, of `PARALLELISMS`; a run that
            asks for another kind is refused.
        modality: what the samples are made of, and what loads and runs the models that read them.

    Raises:
        RecipeError: naming the recipe, the field, the value and what would be right.
    """

    name: str
    roles: tuple[ModelRole, ...]
    syncs: tuple[DataSync, ...] = ()
    description: str = ""
    family: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    rollout: str = "stacx_core.rollout.sampled:SampledRollout"
    rollout_fields: tuple[str, ...] = ()
    knobs: tuple[Knob, ...] = ()
    check_args: Callable[[Args], None] | str | None = None
    supports: tuple[str, ...] = PARALLELISMS
    modality: Modality = LANGUAGE

    def __post_init__(self) -> None:
        from stacx_core.config_checks import check_recipe

        _freeze(self, "roles", "syncs", "defaults", "requires", "rollout_fields", "knobs", "supports")
        check_recipe(self)

    @property
    def resolved_knobs(self) -> tuple[Knob, ...]:
        """Every knob that a run has a value of: the host's, the modality's, and the recipe's own."""
        return (*HOST_KNOBS, *self.modality.knobs, *self.knobs)

    @property
    def offered_knobs(self) -> tuple[Knob, ...]:
        """Those that a user can set: all but the host's that the modality does not use, which keep their defaults."""
        used = self.modality.host_knobs
        return tuple(k for k in self.resolved_knobs if used is None or k.name in used or k not in HOST_KNOBS)

    @property
    def batch_keys(self) -> Mapping[str, BatchKey]:
        """Every key of a batch by name: the host's and the modality's."""
        return {**BATCH_KEYS, **{key.name: key for key in self.modality.batch_keys}}


def resolve_object(reference: Any) -> Any:
    """Import what "package.module:attribute" names; anything but a string is returned as it is.

    Raises:
        RecipeError: the reference is malformed, its module cannot be imported, or lacks the attribute.
    """
    if not isinstance(reference, str):
        return reference
    if not OBJECT_REFERENCE.fullmatch(reference):
        raise RecipeError(f"{reference!r} is no object reference: write 'package.module:attribute'")
    module_name, _, path = reference.partition(":")
    try:
        target: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise RecipeError(f"cannot resolve {reference!r}: {module_name!r} cannot be imported: {error}") from error
    for attribute in path.split("."):
        if not hasattr(target, attribute):
            close = nearest(attribute, dir(target))
            raise RecipeError(f"cannot resolve {reference!r}: {module_name!r} has no {attribute!r}{close}")
        target = getattr(target, attribute)
    return target
