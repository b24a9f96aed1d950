"""What roles hand to each other: the recipe's ``DataSync`` entries turned into channels.

An exchange is a conversation between two ends, each with its role's batch: first both say which keys they bring and how
long each sample is, then, if they agree, both hand over. An end is a generator that yields what it says and is sent
what the other said, so the same conversation runs between two roles of one process and between two processes. Both
ends hold both lists before a tensor moves: what one finds missing the other finds missing too, so that both raise and
neither waits for what will not come.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from stacx_core.config import DataSync, TrainingConfig
from stacx_core.data.batch import Batch
from stacx_core.errors import BatchError
from stacx_core.hookspecs import SyncChannel
from stacx_core.knobs import Args

Conversation = Generator[Any, Any, None]
"""Yields what this end says and is sent what the other end said."""


@dataclass(frozen=True)
class Offer:
    """What one end brings.

    Args:
        role: Its role.
        lengths: Key -> entries per sample; a key it should bring and lacks is not there.
        responses: Positions of the response per sample.
    """

    role: str
    lengths: dict[str, list[int]]
    responses: list[int]


def converse(recipe: str, role: str, batch: Batch, gives: Sequence[str], takes: Sequence[str]) -> Conversation:
    """One end of an exchange: add the keys of ``takes`` to ``batch``, and give those of ``gives``.

    Raises:
        BatchError: Either end lacks a key or has one of the wrong length, naming recipe, role, key and sample. Both
            ends raise the same error.
    """
    own = Offer(role, {k: [len(v) for v in batch[k]] for k in gives if k in batch}, list(batch["response_lengths"]))
    other: Offer = yield own
    for offer, keys in sorted(((own, gives), (other, takes)), key=lambda pair: pair[0].role):
        _check(recipe, offer, keys)
    if own.responses != other.responses:
        raise BatchError(
            f"recipe {recipe!r}: roles {own.role!r} and {other.role!r} hold different samples: response lengths "
            f"{own.responses[:4]}... and {other.responses[:4]}...; both need one order of the same samples"
        )
    given: dict[str, Any] = yield {key: batch[key] for key in gives}
    batch.update(given)


def _check(recipe: str, offer: Offer, keys: Sequence[str]) -> None:
    where = f"recipe {recipe!r}: role {offer.role!r}"
    for key in keys:
        if key not in offer.lengths:
            raise BatchError(f"{where} did not produce {key!r} for its sync")
        for position, (length, response) in enumerate(zip(offer.lengths[key], offer.responses, strict=True)):
            if length != response:
                raise BatchError(f"{where}: {key!r} of sample {position} has length {length}, expected {response}")


@dataclass(frozen=True)
class LocalChannel(SyncChannel):
    """Runs both ends of a sync in this process; an inject is an exchange in which one end gives nothing."""

    recipe: str
    sync: DataSync

    def transfer(self, batches: dict[str, Batch]) -> None:
        """Copy the keys from source to destination, and back for an exchange.

        Raises:
            BatchError: See :func:`converse`; nothing has moved.
        """
        sync = self.sync
        source = converse(self.recipe, sync.src, batches[sync.src], sync.keys, sync.reverse_keys)
        target = converse(self.recipe, sync.dst, batches[sync.dst], sync.reverse_keys, sync.keys)
        said = next(source), next(target)
        said = source.send(said[1]), target.send(said[0])
        for end, heard in ((source, said[1]), (target, said[0])):
            try:
                end.send(heard)
            except StopIteration:
                continue


def active_syncs(config: TrainingConfig, args: Args) -> list[DataSync]:
    """The syncs of the recipe that apply to these arguments, between roles that take part."""
    absent = {role.name for role in config.roles if role.when is not None and not role.when(args)}
    syncs = [sync for sync in config.syncs if not {sync.src, sync.dst} & absent]
    return [sync for sync in syncs if sync.when is None or sync.when(args)]
