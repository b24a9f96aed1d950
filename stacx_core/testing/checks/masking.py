"""That nothing reaches the loss from a token which is not trained on, and nothing goes back to it."""

from __future__ import annotations

import math

import torch

from stacx_core.data.batch import response_keys
from stacx_core.testing.results import Wrong, check
from stacx_core.testing.trial import Trial, during, require_same, show

GARBAGE = (math.nan, math.inf, 1e4)


@check("every")
def masked_rows(trial: Trial) -> None:
    """Rows of the output that predict no trained token have a gradient of exactly zero.

    Finds: a loss mask that is ignored, applied a position off, or multiplied in after the sum.
    """
    scalar = trial.subject.role.head == "scalar"
    masks = trial.subject.batch(trial.rows)["loss_masks"]
    for row, mask in zip(trial.rows, masks, strict=True):
        trained = torch.zeros(len(row.output), dtype=torch.bool)
        trained[row.first : row.first + len(mask)] = mask.bool()
        if row.sample.inputs is None:
            trained[-1] = scalar and bool(mask.any())  # The value of the finished text, which predicts nothing.
        gradient = trial.outcome.gradients[row.index]
        touched = (gradient != 0).view(len(gradient), -1).any(-1) & ~trained
        if touched.any():
            at = int(touched.nonzero()[0])
            place = at - row.first
            predicted = "a token of the prompt" if place < 0 else f"position {place} of the response, which has mask 0"
            predicted = "nothing" if place == row.sample.response_length else predicted
            raise Wrong(f"sample {row.index}: row {at} belongs to {predicted}; its gradient is {show(gradient[at])}")


@check("every", waivable=True)
def garbage_in_masked_slots(trial: Trial) -> None:
    """NaN, infinity or 1e4 in the masked slots of every response-aligned key changes no bit of loss and gradient.

    Finds: products with the mask instead of a selection (NaN times 0 is NaN), statistics over masked tokens.
    """
    subject = trial.subject
    for garbage in GARBAGE:
        batch = subject.batch(trial.rows)
        for key in response_keys(subject.config.batch_keys):
            for values, mask in zip(batch.get(key, ()), batch["loss_masks"], strict=False):
                if key != "loss_masks" and values.is_floating_point():
                    values[mask == 0] = garbage
        change = f"with {garbage} in masked slots"
        with during(change):
            found = subject.step(subject.prepare(batch), trial.outputs)
        require_same(found, trial.outcome, change, tolerance=0)
