"""Forward passes before training: which role computes which log-probs."""

from __future__ import annotations

from collections.abc import Mapping

from stacx_core.config import TrainingConfig
from stacx_core.data.batch import Batch
from stacx_core.knobs import Args
from stacx_core.trainer.worker import RoleWorker

POLICY_KEY = "log_probs"
REFERENCE_KEY = "ref_log_probs"


def reads(worker: RoleWorker, key: str, args: Args) -> bool:
    """Whether the role's loss reads the batch key under these arguments."""
    knobs = worker.role.reads.get(key)
    return knobs is not None and (not knobs or any(args.get(knob) for knob in knobs))


def run_forwards(
    config: TrainingConfig,
    args: Args,
    workers: Mapping[str, RoleWorker],
    reference: RoleWorker | None,
    batches: Mapping[str, Batch],
) -> None:
    """Add to each role's batch the log-probs it reads or sends on.

    A role scores itself for ``log_probs``; the in-process reference (``--ref-load``) scores for ``ref_log_probs``; the
    source of a sync scores for each log-prob key it sends.
    """
    for name, worker in workers.items():
        if reads(worker, POLICY_KEY, args):
            batches[name][POLICY_KEY] = worker.score(batches[name])
        if reference is not None and reads(worker, REFERENCE_KEY, args):
            batches[name][REFERENCE_KEY] = reference.score(batches[name])
    for sync in config.syncs:
        for key in sync.keys:
            if key.endswith("log_probs") and key not in batches[sync.src]:
                batches[sync.src][key] = workers[sync.src].score(batches[sync.src])
