"""The loss of a mixture: imitate the tokens that the teacher wrote, distil on those that the student wrote."""

from __future__ import annotations

import torch
from torch import Tensor

from stacx_core import TEACHER_TOKEN, BatchError
from stacx_core.objectives import kl_estimate


def written_by_teacher(teacher_log_probs: Tensor) -> Tensor:
    """Which tokens carry the sentinel of the teacher.

    Args:
        teacher_log_probs: ``[N]``, 0 where the loss mask is 0.

    Returns:
        ``[N]`` bool.

    Raises:
        BatchError: a value is neither a log-prob nor the sentinel, or not finite.
    """
    by_teacher = teacher_log_probs == TEACHER_TOKEN
    corrupt = ~(by_teacher | (teacher_log_probs <= 1e-6)) | ~torch.isfinite(teacher_log_probs)
    if bool(corrupt.any()):
        at = int(corrupt.nonzero()[0])
        raise BatchError(
            f"teacher_log_probs holds {float(teacher_log_probs[at])} at response token {at} of its micro-batch; "
            f"a log-prob is finite and at most 0, and {TEACHER_TOKEN} marks a token that the teacher wrote"
        )
    return by_teacher


def mixed_loss(log_probs: Tensor, teacher_log_probs: Tensor, by_teacher: Tensor) -> Tensor:
    """Cross-entropy where the teacher wrote the token, the K3 estimate of KL(student || teacher) elsewhere.

    With student log-prob s and teacher log-prob T: ``-s`` for the teacher's tokens; ``exp(T - s) - 1 - (T - s)`` for
    the student's, the exponent clamped to +-20 and the result to +-10 (the gradient is 0 where a clamp acts). The
    gradient of the latter with respect to s is ``1 - exp(T - s)``: on the student's own samples that is in the mean
    the gradient of the *forward* KL(teacher || student), although the value estimates the reverse one.

    Args:
        log_probs: ``[N]`` of the student.
        teacher_log_probs: ``[N]``; what stands where ``by_teacher`` is set is not read.
        by_teacher: ``[N]`` bool, from :func:`written_by_teacher`.

    Returns:
        ``[N]`` in the dtype of ``log_probs``, for one reduction over both kinds of token.
    """
    # Without the stand-in the branch that is not taken would exponentiate the sentinel.
    teacher = torch.where(by_teacher, log_probs.detach(), teacher_log_probs)
    return torch.where(by_teacher, -log_probs, kl_estimate(log_probs, teacher, "low_var_kl"))
