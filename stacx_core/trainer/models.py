"""The models of a run beside its policy: whether they fit its tokens, and how long a sequence they take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stacx_core.backends.model import context_length, vocabulary_size
from stacx_core.config import DataSync, ModelRole, TrainingConfig
from stacx_core.errors import ConfigError
from stacx_core.knobs import Args
from stacx_core.rewards.loading import MODEL
from stacx_core.trainer.forwards import REFERENCE_KEY, reads
from stacx_core.trainer.syncs import active_syncs


@dataclass(frozen=True)
class OtherModel:
    """A model that reads the policy's tokens.

    Attributes:
        flag: What named it.
        checkpoint: Folder or hub id.
        compared: Its log-probs are compared with the policy's, so both must be over the same tokens.
    """

    flag: str
    checkpoint: str
    compared: bool = False


def active_roles(config: TrainingConfig, args: Args) -> list[ModelRole]:
    """The roles that are loaded: those whose weights change, that generate, and that a sync needs."""
    senders = {end for sync in active_syncs(config, args) for end in (sync.src, sync.dst)}
    taking_part = [role for role in config.roles if role.when is None or role.when(args)]
    return [r for r in taking_part if r.trainable or r.stateful or r.sync_to_rollout or r.name in senders]


def uses_reference(roles: Sequence[ModelRole], syncs: Sequence[DataSync], args: Args) -> bool:
    """Whether a role reads the log-probs of a reference that no sync brings."""
    synced = {sync.dst for sync in syncs if REFERENCE_KEY in sync.keys}
    return any(reads(role, REFERENCE_KEY, args) and role.name not in synced for role in roles)


def count_models(roles: Sequence[ModelRole], syncs: Sequence[DataSync], args: Args) -> int:
    """How many models a process with these roles holds: one each, and the reference that they read."""
    return len(roles) + uses_reference(roles, syncs, args)


def other_models(config: TrainingConfig, args: Args) -> list[OtherModel]:
    """The models that score or train on the rollouts in training beside the one of ``--hf-checkpoint``.

    Raises:
        ConfigError: ``--ref-load`` names one that nothing reads.
    """
    roles = active_roles(config, args)
    loads = {role.load_arg: role for role in roles if role.load_arg is not None and args.get(role.load_arg) is not None}
    found = [
        OtherModel(_flag(name), args.get(name), role.head == "lm" and not role.trainable)
        for name, role in loads.items()
    ]
    if args.ref_load is not None and "ref_load" not in loads:
        if not uses_reference(roles, active_syncs(config, args), args):
            raise ConfigError(f"--ref-load has no effect{_without(config)}; leave it out")
        found.append(OtherModel("--ref-load", args.ref_load, compared=True))
    return [*found, *scoring_models(args.rm_type, args)]


def scoring_models(rm_type: str | None, args: Args) -> list[OtherModel]:
    """The model of ``--rm-load`` where the reward of this name is one, else none."""
    return [OtherModel("--rm-load", args.rm_load)] if rm_type == MODEL and args.rm_load is not None else []


def check_vocabularies(policy: str, others: Sequence[OtherModel]) -> None:
    """Refuse a model that lacks some of the policy's tokens, or that is compared with it and has others.

    Raises:
        ConfigError: Naming both sizes.
    """
    size = vocabulary_size(policy)
    for other in others:
        own = vocabulary_size(other.checkpoint)
        if size is None or own is None or own == size or (own > size and not other.compared):
            continue
        need = "must have the same" if other.compared else "must have them all"
        raise ConfigError(
            f"{other.flag} {other.checkpoint!r} has a vocabulary of {own} tokens and the policy one of {size}; "
            f"it {need}"
        )


def shortest_context(policy: str, others: Sequence[OtherModel]) -> int | None:
    """Most tokens that the policy and every other model take, or ``None`` when no config says."""
    lengths = [context_length(checkpoint) for checkpoint in (policy, *(other.checkpoint for other in others))]
    return min((length for length in lengths if length is not None), default=None)


def _without(config: TrainingConfig) -> str:
    """What would make a role read the reference."""
    wanted = dict.fromkeys(knob for role in config.roles for knob in role.reads.get(REFERENCE_KEY, ()))
    return " without " + " or ".join(_flag(knob) for knob in wanted) if wanted else f" on recipe {config.name!r}"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
