"""That a step goes the right way: towards what is chosen, and with the advantage on either side of a clip."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from stacx_core.data.batch import Batch
from stacx_core.testing.results import NotApplicable, Wrong, check
from stacx_core.testing.rows import Row, along_log_prob, log_probs_of
from stacx_core.testing.trial import Trial, during, require_tokens

UNCLIPPED = ((1.0, 0.5), (-1.0, 2.0))
"""Signs of the advantage and ratios at which the policy has moved the wrong way, so that no clip may hold it there."""


@check("every", waivable=True)
def preference(trial: Trial) -> None:
    """Where both sides of a pair are equally likely, a step makes the chosen one more likely and the rejected one less.

    Finds: chosen and rejected swapped, sides told by their order.
    """
    require_tokens(trial)
    subject = trial.subject
    if "is_chosen" not in subject.given_keys():
        raise NotApplicable("the role reads no is_chosen")
    rows = [_indifferent(row) for row in trial.rows]
    with during("where both sides of a pair are equally likely"):
        gradients = trial.run(rows).gradients
    for row in rows:
        sample, gradient = row.sample, gradients[row.index]
        if sample.is_chosen is None or not trial.outcome.gradients[row.index].any():
            continue  # Such as a sample that a roll-in adds for a baseline.
        lm = subject.role.head == "lm"
        slope = along_log_prob(sample, row.output, gradient) if lm else float(gradient.sum())
        if not (slope < 0 if sample.is_chosen else slope > 0):
            side, way = ("chosen", "more") if sample.is_chosen else ("rejected", "less")
            raise Wrong(f"a step does not make sample {row.index}, which is {side}, {way} likely: slope {slope:.4g}")


def _indifferent(row: Row) -> Row:
    """The row with every token equally likely, by every model."""
    output = torch.zeros_like(row.output)
    same = log_probs_of(row.sample, output).float()
    keys = {"log_probs": same, "rollout_log_probs": same, "ref_log_probs": same, "values": torch.zeros_like(same)}
    return replace(row, output=output, keys={**row.keys, **keys})


@check("every", waivable=True)
def clip_side(trial: Trial) -> None:
    """A token that became half as likely against a positive advantage, or twice as likely against a negative one, is
    still trained, in the direction of the advantage.

    Finds: the clipped branch alone, the smaller of the two branches, a sign.
    """
    require_tokens(trial)
    subject = trial.subject
    if subject.role.head != "lm" or not {"advantages", "log_probs"} <= {*subject.active_reads()}:
        raise NotApplicable("the role trains no policy on advantages and old log-probs")
    for sign, ratio in UNCLIPPED:
        usual, moved = _slopes(trial, 1.0, sign), _slopes(trial, ratio, sign)
        for index, slope in moved.items():
            if usual[index] != 0 and not slope * sign < 0:
                state = "is not trained" if slope == 0 else "is trained away from its advantage"
                raise Wrong(f"with ratio {ratio:g} and advantage {sign:g}, sample {index} {state}: slope {slope:.4g}")


def _slopes(trial: Trial, ratio: float, advantage: float) -> dict[int, float]:
    """Sample index -> how the loss from this advantage changes as the log-prob of its trained tokens rises."""
    subject, degree = trial.subject, trial.subject.args.rollout_temperature
    rows = [_moved(row, ratio, degree) for row in trial.rows]
    batch = trial.prepare(rows)
    with_it, without = (subject.step(_constant(batch, a), trial.outputs).gradients for a in (advantage, 0.0))
    return {
        row.index: along_log_prob(row.sample, row.output, with_it[row.index] - without[row.index], degree)
        for row in rows
    }


def _moved(row: Row, ratio: float, degree: float) -> Row:
    """The row with old log-probs to which the policy has this ratio."""
    own = log_probs_of(row.sample, row.output, degree)
    old = (own - math.log(ratio)).float()
    return replace(row, keys={**row.keys, "log_probs": old, "rollout_log_probs": old, "ref_log_probs": own.float()})


def _constant(batch: Batch, advantage: float) -> Batch:
    return {**batch, "advantages": [torch.full((n,), advantage) for n in batch["response_lengths"]]}
