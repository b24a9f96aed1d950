"""That one step has one loss and one gradient, however its samples are cut, packed, ordered or distributed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from stacx_core.batch_keys import BatchKey
from stacx_core.data.batch import Batch, response_keys, select
from stacx_core.testing.ranks import StepJob
from stacx_core.testing.results import NotApplicable, check
from stacx_core.testing.rows import Row
from stacx_core.testing.subject import Outcome
from stacx_core.testing.trial import Trial, during, require_same

SIZES = (1, 2, 3)
BUDGETS = (9, 16)


@check("every")
def micro_batch_split(trial: Trial) -> None:
    """Loss, gradient and metrics are the same with 1, 2, 3 or all samples in a micro-batch.

    Finds: means and statistics taken within a micro-batch, divisions by its number of samples or tokens.
    """
    for size in SIZES:
        change = f"with micro-batches of {size}"
        with during(change):
            found = trial.subject.step(trial.prepared, trial.outputs, micro_batch_size=size)
        require_same(found, trial.outcome, change)


@check("every")
def packing(trial: Trial) -> None:
    """Loss, gradient and metrics do not depend on which samples share a pack, or on their order in it.

    Finds: rows read across the border of two packed samples, offsets counted from the start of the pack.
    """
    for budget in BUDGETS:
        change = f"with packs of up to {budget} tokens"
        with during(change):
            found = trial.subject.step(trial.prepared, trial.outputs, max_tokens_per_gpu=budget)
        require_same(found, trial.outcome, change)
    backwards = select(trial.prepared, range(len(trial.prepared["response_lengths"]))[::-1])
    require_same(trial.subject.step(backwards, trial.outputs), trial.outcome, "with one pack in reverse order")


@check("every")
def sample_order(trial: Trial) -> None:
    """Each sample's gradient is the same when the whole batch is in another order before any stage.

    Finds: group statistics by position, keys matched to samples by position.
    """
    for name, order in _orders(len(trial.rows)):
        change = f"with the samples in {name} order"
        with during(change):
            found = trial.run([trial.rows[position] for position in order])
        require_same(found, trial.outcome, change)


def _orders(count: int) -> list[tuple[str, list[int]]]:
    shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(1)).tolist()
    return [("reverse", list(range(count))[::-1]), ("shuffled", shuffled)]


@check("every", waivable=True)
def siblings(trial: Trial) -> None:
    """Cutting a rollout into two samples with one rollout id changes neither the loss nor any token's gradient.

    Finds: averages over samples where the rollout counts, denominators other than `rollout_mask_sums`.
    """
    whole = trial.prepared
    if "pair_ids" in whole:
        raise NotApplicable("a preference pair is compared as a whole")
    outputs, pieces = dict(trial.outputs), []
    for position, index in enumerate(whole["sample_indices"]):
        cut = whole["response_lengths"][position] // 2
        if cut == 0:
            pieces.append(select(whole, [position]))
            continue
        first, second = _halves(index)
        keys = trial.subject.config.batch_keys
        pieces += [_piece(keys, whole, position, 0, cut, first), _piece(keys, whole, position, cut, None, second)]
        output = outputs.pop(index)
        if "tokens" in whole:
            end = whole["total_lengths"][position] - whole["response_lengths"][position] + cut
            outputs[first], outputs[second] = output[:end], output
        else:
            outputs[first], outputs[second] = output[:cut], output[cut:]
    _require_whole(trial, trial.subject.step(_joined(pieces), outputs), "with each rollout cut into two samples")


@check("defaults", waivable=True)
def siblings_in_stages(trial: Trial) -> None:
    """Cutting a rollout into two samples before the stages run changes neither the loss nor any token's gradient.

    Finds: estimators in which a rollout of two samples votes twice.
    """
    if not trial.subject.role.prepare:
        raise NotApplicable("the role has no stages")
    if "pair_ids" in trial.prepared:
        raise NotApplicable("a preference pair is compared as a whole")
    pieces: list[Row] = []
    for row in trial.rows:
        cut = row.sample.response_length // 2
        pieces += [row] if cut == 0 else row.cut(cut, _halves(row.index))
    change = "with each rollout cut into two samples before the stages"
    with during(change):
        found = trial.run(pieces)
    _require_whole(trial, found, change)


def _require_whole(trial: Trial, found: Outcome, change: str) -> None:
    """Raise `Wrong` unless the two samples of each cut one have its gradient between them."""
    gradients = dict(found.gradients)
    for index in trial.outputs:
        first, second = _halves(index)
        if first in gradients:
            gradients[index] = _put_together(gradients[first], gradients[second], len(trial.outputs[index]))
    require_same(replace(found, gradients=gradients), trial.outcome, change, metrics=False)


def _put_together(first: Tensor, second: Tensor, length: int) -> Tensor:
    """The gradient of a sample from those of its halves, of which the second may begin with the first's rows."""
    if len(second) < length:
        return torch.cat([first, second])
    whole = second.clone()
    whole[: len(first)] += first
    return whole


def _halves(index: int) -> tuple[int, int]:
    """The numbers of the two samples that one is cut into."""
    return 2 * index + 1000, 2 * index + 1001


def _piece(
    keys: Mapping[str, BatchKey], batch: Batch, position: int, start: int, stop: int | None, index: int
) -> Batch:
    """One sample with the positions `start` to `stop` of its response; earlier tokens belong to its prompt."""
    piece = select(batch, [position])
    for key in response_keys(keys):
        if key in piece:
            piece[key] = [piece[key][0][start:stop]]
    length = len(piece["loss_masks"][0])
    piece |= {"response_lengths": [length], "sample_indices": [index]}
    if "tokens" not in batch:
        return piece
    end = batch["total_lengths"][position] - batch["response_lengths"][position] + start + length
    return {
        **piece,
        "tokens": [batch["tokens"][position][:end]],
        "total_lengths": [end],
    }


def _joined(pieces: Sequence[Batch]) -> Batch:
    return {
        key: [item for piece in pieces for item in piece[key]] if isinstance(value, list) else value
        for key, value in pieces[0].items()
    }


@check("every", shrinks=False)
def data_parallel(trial: Trial) -> None:
    """Two processes with half of the micro-batches each, and their sums over gloo, give what one process gives.

    Finds: statistics within a rank, collectives that only some ranks reach, counts that are summed twice.
    """
    if "data_parallel" not in trial.subject.config.supports:
        raise NotApplicable("the recipe does not list data_parallel in supports")
    answers = trial.ranks.run(StepJob(trial.subject, trial.prepared, trial.outputs, micro_batch_size=2))
    for rank, answer in enumerate(answers):
        require_same(answer, trial.outcome, f"after the sums on rank {rank} of {len(answers)}")
