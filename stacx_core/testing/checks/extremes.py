"""That a policy far from another one gives large numbers and no overflow."""

from __future__ import annotations

import torch

from stacx_core.testing.checks.edges import LOG_PROB_KEYS
from stacx_core.testing.results import NotApplicable, Wrong, check
from stacx_core.testing.trial import Trial, during

EXTREMES = (-1e4, 1e4)


@check("main", waivable=True)
def extreme_log_ratios(trial: Trial) -> None:
    """Log-probs 1e4 away from the model's own give a finite loss and gradient.

    Finds: `exp` of a log-ratio that was not clamped: infinity, and NaN where it meets a zero.
    """
    subject, asked = trial.subject, False
    for key in LOG_PROB_KEYS:
        for value in EXTREMES:
            batch = subject.batch(trial.rows)
            if key not in batch or (key == "teacher_log_probs" and value > 0):
                continue
            asked = True
            for values, mask in zip(batch[key], batch["loss_masks"], strict=True):
                values[mask.nonzero()[:1]] = value
            with during(f"with {key} at {value:g}"):
                outcome = subject.step(subject.prepare(batch), trial.outputs)
            for index, gradient in outcome.gradients.items():
                if not torch.isfinite(gradient).all():
                    raise Wrong(f"with {key} at {value:g}, the gradient of sample {index} has NaN or infinity in it")
    if not asked:
        raise NotApplicable("the role reads no log-probs of another model")
