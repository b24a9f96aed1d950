"""Batches at the edge: groups of one, equal rewards, nothing to train on, removed and truncated samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from stacx_core.data.sample import SampleStatus
from stacx_core.errors import StacxError
from stacx_core.testing.results import NotApplicable, Wrong, check
from stacx_core.testing.rows import Row
from stacx_core.testing.subject import Subject
from stacx_core.testing.trial import Trial, during, require_same, require_same_gradients, show

LOG_PROB_KEYS = ("log_probs", "rollout_log_probs", "ref_log_probs", "teacher_log_probs")


def _one_token(row: Row) -> Row:
    while row.sample.response_length > 1:
        row = row.without_response_token(row.sample.response_length - 1)
    return row


EDGES: dict[str, Callable[[Sequence[Row]], list[Row]]] = {
    "every group has one sample": lambda rows: [row.with_sample(group_index=50 + row.index) for row in rows],
    "all rewards are equal": lambda rows: [row.with_sample(reward=0.1) for row in rows],
    "one sample has an empty mask": lambda rows: [_masked(rows[0]), *rows[1:]],
    "every response was cut at the limit": lambda rows: [_cut(row) for row in rows],
    "every response has one token": lambda rows: [_one_token(row) for row in rows],
}


def _cut(row: Row) -> Row:
    return row if row.sample.removed else row.with_sample(status=SampleStatus.TRUNCATED)


def _masked(row: Row) -> Row:
    return row.with_sample(loss_mask=[0] * row.sample.response_length)


@check("main")
def edge_batches(trial: Trial) -> None:
    """Loss and gradient stay finite in groups of one, with equal rewards, an empty mask, only truncated responses, or
    responses of one token.

    Finds: divisions by a standard deviation or a count of zero, statistics of nothing.
    """
    for name, change in EDGES.items():
        with during(f"when {name}"):
            outcome = trial.run(change(trial.rows))
        for index, gradient in outcome.gradients.items():
            if not torch.isfinite(gradient).all():
                raise Wrong(f"when {name}, the gradient of sample {index} has NaN or infinity in it")


@check("every")
def nothing_to_train(trial: Trial) -> None:
    """A micro-batch without a trained token gives a loss of 0 with a gradient of zero, and keeps its graph.

    Finds: 0/0 in means, losses cut off from the model, which would stop one process of many.
    """
    change = "when no token of the micro-batch is trained"
    masks = [torch.zeros_like(mask) for mask in trial.prepared["loss_masks"]]
    with during(change):
        outcome = trial.subject.step({**trial.prepared, "loss_masks": masks}, trial.outputs)
    if outcome.loss != 0:
        raise Wrong(f"{change}, the loss is {outcome.loss:.6g}, not 0")
    for index, gradient in outcome.gradients.items():
        if (gradient != 0).any():
            raise Wrong(f"{change}, the gradient of sample {index} is {show(gradient[gradient != 0])} in places")


@check("main", shrinks=False)
def removed_samples(trial: Trial) -> None:
    """A removed sample changes nothing for the others, whatever its reward, and as if it were not there.

    Finds: rewards of removed samples in a baseline or a group's statistics, NaN spreading from them.
    """
    if "pair_ids" in trial.prepared:
        raise NotApplicable("pairs are removed as pairs")
    removed = [row for row in trial.rows if row.sample.removed]
    others = [row for row in trial.rows if not row.sample.removed]
    if not removed or not others:
        return
    expected = trial.run(others).numerators()
    for reward in (None, 100.0):
        rows = [row.with_sample(reward=reward) if row.sample.removed else row for row in trial.rows]
        found = trial.run(rows).numerators()
        require_same_gradients(found, expected, f"beside a removed sample with reward {reward}")


@check("defaults", shrinks=False)
def groups_by_id(trial: Trial) -> None:
    """Group statistics follow `group_indices`: other numbers or neighbours change nothing, an all-equal group gets 0.

    Finds: statistics by reshaping to equal groups, noise of equal rewards divided by a tiny deviation.
    """
    if "group_indices" not in trial.subject.active_reads():
        raise NotApplicable("the role reads no group_indices")
    renamed = [row.with_sample(group_index=97 - 7 * (row.sample.group_index or 0)) for row in trial.rows]
    require_same(trial.run(renamed), trial.outcome, "with other group numbers")
    dealt = sorted(trial.rows, key=lambda row: (row.index % 3, row.index))
    require_same(trial.run(dealt), trial.outcome, "with the members of the groups far apart")
    flat = [row.with_sample(reward=0.1 + 0.2 * (row.sample.group_index or 0)) for row in trial.rows]
    prepared = trial.prepare(flat)
    for row, values, mask in zip(flat, prepared.get("advantages", ()), prepared["loss_masks"], strict=False):
        if (values[mask.bool()] != 0).any():
            raise Wrong(
                f"every group's rewards are equal, and the advantage of sample {row.index} is {show(values)}, not 0"
            )


@check("main")
def non_finite_inputs(trial: Trial) -> None:
    """A NaN or infinite log-prob of a trained token, or a NaN reward, stops the step with an error that says so.

    Finds: stages that replace or swallow what is not a number, and train on it.
    """
    subject = trial.subject
    for key in LOG_PROB_KEYS:
        for value in (math.nan, -math.inf):
            for which in (0, -1):
                batch = subject.batch(trial.rows)
                if key in batch and _spoil(batch[key], batch["loss_masks"], which, value):
                    _require_refusal(subject, batch, trial, f"{key} is {value} at a trained token", value)
    if "rewards" in subject.given_keys():
        trained = next((row for row in trial.rows if not row.sample.removed), None)
        rows = [row.with_sample(reward=math.nan) if row is trained else row for row in trial.rows]
        if trained is not None:
            try:
                subject.batch(rows)
            except StacxError:
                return
            raise Wrong("a reward is NaN, and the batch is made all the same")


def _spoil(values: list[torch.Tensor], masks: list[torch.Tensor], which: int, value: float) -> bool:
    """Put a value at a trained token of the first or last sample that has one."""
    trained = [position for position, mask in enumerate(masks) if mask.any()]
    if trained:
        values[trained[which]][int(masks[trained[which]].nonzero()[0])] = value
    return bool(trained)


def _require_refusal(subject: Subject, batch: dict[str, object], trial: Trial, what: str, value: float) -> None:
    try:
        outcome = subject.step(subject.prepare(batch), trial.outputs)
    except StacxError:
        return
    finite = all(bool(torch.isfinite(gradient).all()) for gradient in outcome.gradients.values())
    if math.isnan(value) or not finite:
        raise Wrong(f"{what}, and the step is taken all the same, with loss {outcome.loss:.6g}")
