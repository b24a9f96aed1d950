"""A sync between two real processes that share nothing but a group of two."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from stacx_core.config import DataSync
from stacx_core.data.batch import Batch
from stacx_core.errors import BatchError
from stacx_core.testing.ranks import Ranks
from stacx_core.trainer.ray.pairs import Pair, PairChannel

EXCHANGE = DataSync("critic", "policy", ("values",), mode="exchange", reverse_keys=("log_probs", "likeliest"))
LENGTHS = [2, 0, 3]


def column(start: float, *shape: int) -> list[Tensor]:
    """An entry of shape ``[R, ...]`` per sample."""
    return [torch.full((length, *shape), start + length) for length in LENGTHS]


@dataclass(frozen=True)
class SyncJob:
    """Rank 0 has the critic, rank 1 the policy.

    Args:
        name: Of the group.
        batches: Of both.
    """

    name: str
    batches: tuple[Batch, Batch]

    def run(self, rank: int, ranks: int) -> Any:
        store = dist.distributed_c10d._get_default_store()
        pair = Pair(store, self.name, bool(rank), torch.device("cpu"), timedelta(seconds=60))
        role, batch = ("critic", "policy")[rank], dict(self.batches[rank])
        try:
            PairChannel("tiny", EXCHANGE, role, pair).transfer({role: batch})
        except BatchError as error:
            return str(error)
        return batch


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks() as processes:
        yield processes


def test_both_ends_have_what_the_other_brought(ranks: Ranks) -> None:
    values, log_probs, likeliest = column(0.5), column(-1.0), [entry.long() for entry in column(7.0, 4)]
    critic = {"response_lengths": LENGTHS, "values": values}
    policy = {"response_lengths": LENGTHS, "log_probs": log_probs, "likeliest": likeliest}
    for batch in ranks.run(SyncJob("fine", (critic, policy))):
        assert batch.keys() == {"response_lengths", "values", "log_probs", "likeliest"}
        for key, entries in (("values", values), ("log_probs", log_probs), ("likeliest", likeliest)):
            assert [entry.dtype for entry in batch[key]] == [entry.dtype for entry in entries]
            assert all(torch.equal(a, b) for a, b in zip(batch[key], entries, strict=True))


@pytest.mark.parametrize("lacking", ["values", "log_probs"])
def test_both_ends_raise_the_same_error(ranks: Ranks, lacking: str) -> None:
    critic: Batch = {"response_lengths": LENGTHS, "values": column(0.5)}
    policy: Batch = {"response_lengths": LENGTHS, "log_probs": column(-1.0), "likeliest": column(7.0, 4)}
    owner = critic if lacking in critic else policy
    del owner[lacking]
    first, second = ranks.run(SyncJob(f"without {lacking}", (critic, policy)))
    assert first == second
    assert f"did not produce '{lacking}'" in first
