"""That a loss is a proper number, the same each time, and leaves its inputs alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stacx_core.testing.results import Wrong, check
from stacx_core.testing.snapshots import equal, snapshot
from stacx_core.testing.subject import Probe, Returned
from stacx_core.testing.trial import Trial, require_same, show

BF16_TOLERANCE = 1e-4
"""Both losses are of the same rounded output: only arithmetic in bf16, off by up to 2^-8, sets them apart."""


class CheckedProbe(Probe):
    """Says at once what is wrong with a loss, before it is differentiated."""

    def __init__(self, dtypes: tuple[torch.dtype, ...]) -> None:
        super().__init__()
        self.dtypes = dtypes

    def compute_loss(self, **inputs: Any) -> Returned:
        """Call the hook and look at what it returns."""
        result = super().compute_loss(**inputs)
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
            raise Wrong(f"compute_loss returned {type(result).__name__}; it must return (loss, dictionary of metrics)")
        loss = result[0]
        if not isinstance(loss, Tensor) or loss.dim() != 0:
            shape = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise Wrong(f"the loss is {shape}, not 0-d: hand every per-token term to the reducer")
        if loss.dtype not in self.dtypes:
            raise Wrong(f"the loss is {loss.dtype} for {inputs['model_output'].dtype} output; sum it in torch.float32")
        if not loss.requires_grad:
            raise Wrong("the loss has no gradient: it does not depend on the model's output")
        return result


@check("every", applies_to_failing=True)
def loss_value(trial: Trial) -> None:
    """The loss is 0-d, float32 for float32 output, and finite, and so is its gradient.

    Finds: terms that were never reduced, losses cut off from the model, sums in low precision.
    """
    subject = trial.subject
    single, double = (torch.float32,), (torch.float32, torch.float64)
    subject.step(trial.prepared, trial.outputs, probe=CheckedProbe(single), cast_to=torch.float32)
    outcome = subject.step(trial.prepared, trial.outputs, probe=CheckedProbe(double))
    for index, gradient in outcome.gradients.items():
        if not torch.isfinite(gradient).all():
            raise Wrong(f"the gradient of sample {index} is {show(gradient[~torch.isfinite(gradient)])} in places")


@check("defaults", shrinks=False)
def something_is_trained(trial: Trial) -> None:
    """The default arguments give a gradient that is not zero.

    Finds: coefficients and switches without which nothing is learnt, advantages that cancel.
    """
    if not any(gradient.any() for gradient in trial.outcome.gradients.values()):
        raise Wrong("the gradient of the whole batch is zero: the loss trains nothing")


@check("main")
def bf16_output(trial: Trial) -> None:
    """With bf16 output the loss is float32, and near the loss of the same output in float32.

    Finds: logarithms, exponentials and sums computed in the precision of the model.
    """
    subject = trial.subject
    rounded = {index: output.bfloat16().double() for index, output in trial.outputs.items()}
    probe = CheckedProbe((torch.float32,))
    low = subject.step(trial.prepared, rounded, probe=probe, cast_to=torch.bfloat16)
    high = subject.step(trial.prepared, rounded, cast_to=torch.float32)
    if abs(low.loss - high.loss) > BF16_TOLERANCE * abs(high.loss) + 1e-6:
        raise Wrong(f"the loss is {low.loss:.6g} with bf16 output and {high.loss:.6g} with the same in float32")


@check("main")
def deterministic(trial: Trial) -> None:
    """The same inputs give the same bits.

    Finds: random numbers in a stage or a loss, state kept from call to call.
    """
    require_same(trial.run(trial.rows), trial.run(trial.rows), "the second time", tolerance=0)
    loss = trial.subject.specialization()
    twice = [trial.subject.step(trial.prepared, trial.outputs, specialization=loss) for _ in range(2)]
    require_same(twice[1], twice[0], "when the same object is called again", tolerance=0)


class ComparingProbe(Probe):
    """Compares the batch after each call with what it was before."""

    def compute_loss(self, **inputs: Any) -> Returned:
        """Call the hook between two looks at the batch and the output."""
        batch = inputs["batch"]
        before = {key: snapshot(value) for key, value in batch.items()}
        output = inputs["model_output"].detach().clone()
        result = super().compute_loss(**inputs)
        for key in before.keys() | batch.keys():
            if key not in batch or key not in before:
                raise Wrong(f"compute_loss {'adds' if key in batch else 'removes'} the batch key {key!r}")
            if not equal(before[key], batch[key]):
                raise Wrong(f"compute_loss changes the batch key {key!r} in place; work on a copy")
        if not torch.equal(output, inputs["model_output"].detach()):
            raise Wrong("compute_loss changes the model's output in place; work on a copy")
        return result


@check("every")
def batch_unchanged(trial: Trial) -> None:
    """`compute_loss` changes neither the batch nor the model's output.

    Finds: in-place arithmetic, which spoils the next micro-batch, update or retry.
    """
    trial.subject.step(trial.prepare(trial.rows), trial.outputs, probe=ComparingProbe())
