"""Steps of several processes on batches that are hard to share: few samples, long ones, every aggregation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stacx_core.aggregations import AGGREGATIONS
from stacx_core.data.batch import Batch, samples_to_batch
from stacx_core.data.sample import Sample
from stacx_core.recipes import TRAINING_CONFIGS
from stacx_core.testing.parallel import LAYOUTS, Update, UpdateJob, difference, make_models
from stacx_core.testing.ranks import Ranks
from stacx_core.testing.rows import VOCABULARY
from stacx_core.testing.variants import default_variant

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

BUDGET = 40
LENGTHS = {
    "one micro-batch for one process, four for the other": [10] * 4 + [40] * 4,
    "two samples for two processes": [10, 12],
    "one sample for two processes": [9],
    "longer than the budget": [45, 10, 10, 50],
}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> UpdateJob:
    """An update of sft on tiny models."""
    config = TRAINING_CONFIGS["sft"]
    models = make_models(tmp_path_factory.mktemp("models"))
    args = default_variant(config).args.replace(
        hf_checkpoint=models["lm"], lr=1e-3, adam_eps=1e-3, num_steps_per_rollout=1, max_tokens_per_gpu=BUDGET
    )
    return UpdateJob(config, "test", args, {})


@pytest.fixture(scope="module", params=["DP=2", "PP=2", "CP=2"])
def layout(request: pytest.FixtureRequest) -> Iterator[tuple[str, Ranks]]:
    """Its name, and its processes."""
    with Ranks(60.0, LAYOUTS[request.param][0]) as ranks:
        yield request.param, ranks


def batch_of(lengths: Sequence[int]) -> Batch:
    """Samples of these lengths, of which all tokens but the first two are trained."""
    generator = torch.Generator().manual_seed(0)
    samples = [
        Sample(
            index=index,
            group_index=index,
            tokens=torch.randint(VOCABULARY, (length,), generator=generator).tolist(),
            response_length=length - 2,
        )
        for index, length in enumerate(lengths)
    ]
    return samples_to_batch(samples, mask_truncated=False, reward_key=None)[0]


def compared(job: UpdateJob, layout: tuple[str, Ranks], lengths: Sequence[int], **knobs: object) -> str:
    """What differs between one process and several."""
    name, ranks = layout
    given = job.args.replace(rollout_batch_size=len(lengths), global_batch_size=len(lengths), **knobs)
    alone = replace(job, args=given, batch=batch_of(lengths))
    expected = alone.run()
    assert isinstance(expected, Update)
    return difference(expected, ranks.run(alone.spread(LAYOUTS[name][1]))[0])


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_every_cut_ends_and_counts_every_token_once(
    job: UpdateJob, layout: tuple[str, Ranks], lengths: list[int]
) -> None:
    """No process waits for a micro-batch that the other does not have, and spare ones weigh nothing."""
    assert compared(job, layout, lengths) == ""


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_every_aggregation_is_of_the_whole_step(job: UpdateJob, layout: tuple[str, Ranks], aggregation: str) -> None:
    """Means are over all samples or tokens of the step, whoever has them."""
    assert compared(job, layout, [4, 9, 17, 30, 5], loss_aggregation=aggregation) == ""


def test_activations_that_are_computed_again_change_nothing(job: UpdateJob, layout: tuple[str, Ranks]) -> None:
    """Not kept within the layers, with fewer bytes and the same gradient."""
    assert compared(job, layout, [4, 9, 17], gradient_checkpointing=True) == ""


def test_rows_come_back_in_the_callers_order(job: UpdateJob, tmp_path: Path) -> None:
    """Log-probs of samples that two processes share, by position in the batch."""
    scores = ScoreJob(job.spread({}), batch_of([12, 5, 40, 7, 33]))
    alone = ScoreJob(job, scores.batch).run()
    with Ranks(60.0, 2) as ranks:
        for found in ranks.run(scores):
            assert [len(row) for row in found] == [10, 3, 38, 5, 31]
            for row, expected in zip(found, alone, strict=True):
                torch.testing.assert_close(row, expected, rtol=0, atol=1e-5)


class ScoreJob:
    """The policy's log-probs of a batch."""

    def __init__(self, job: UpdateJob, batch: Batch) -> None:
        self.job = job
        self.batch = batch

    def run(self, rank: int = 0, ranks: int = 1) -> list[torch.Tensor]:
        """Per sample ``[R]``."""
        return self.job.learner(ranks).policy.score(self.batch)
