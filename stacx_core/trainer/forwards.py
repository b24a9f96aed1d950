"""Forward passes before training: which role computes which log-probs and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stacx_core.config import DataSync, ModelRole
from stacx_core.data.batch import Batch
from stacx_core.knobs import Args
from stacx_core.trainer.offload import Turns
from stacx_core.trainer.worker import RoleWorker

REFERENCE_KEY = "ref_log_probs"


def reads(role: ModelRole, key: str, args: Args) -> bool:
    """Whether the role's loss reads the batch key under these arguments."""
    conditions = role.reads.get(key)
    return conditions is not None and (not conditions or any(_holds(condition, args) for condition in conditions))


def _holds(condition: str, args: Args) -> bool:
    """Whether a knob is set, or for "knob=value" has that value."""
    knob, asks, value = condition.partition("=")
    return str(args.get(knob)) == value if asks else bool(args.get(knob))


def run_forwards(
    args: Args,
    workers: Mapping[str, RoleWorker],
    reference: RoleWorker | None,
    syncs: Sequence[DataSync],
    batches: Mapping[str, Batch],
    turns: Turns,
) -> None:
    """Add to each role's batch what it reads or sends on and a forward pass computes.

    A role's own pass gives ``log_probs``, or ``values`` from a scalar head; the in-process reference (``--ref-load``)
    gives ``ref_log_probs``; a frozen role gives whatever its syncs send, see
    :meth:`stacx_core.trainer.worker.RoleWorker.tell`. A key that a sync delivers is left to it.
    """
    sent = {(sync.src, key) for sync in syncs for key in sync.keys}
    sent |= {(sync.dst, key) for sync in syncs for key in sync.reverse_keys}
    received = {(sync.dst, key) for sync in syncs for key in sync.keys}
    received |= {(sync.src, key) for sync in syncs for key in sync.reverse_keys}
    for name, worker in workers.items():
        role, batch = worker.role, batches[name]
        read = {(name, key) for key in role.reads if reads(role, key, args)} - received
        wanted = {key for owner, key in read | sent if owner == name}
        own = {key for key in wanted if worker.tells(key)}
        if own:
            turns.give(worker)
            batch.update(worker.tell(batch, own))
        if REFERENCE_KEY in wanted - own and reference is not None:
            turns.give(reference)
            batch[REFERENCE_KEY] = reference.score(batch)
