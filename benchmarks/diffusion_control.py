"""A reward that tells nothing of the sample it is given to."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stacx_plugin_diffusion.rewards.digit_classifier import digit_classifier

DEALER = torch.Generator().manual_seed(0)


def dealt_to_others(media: Tensor, prompts: Sequence[str]) -> Tensor:
    """``[B]``: the true probabilities of the B samples, each given to one of them at random."""
    earned = digit_classifier(media, prompts)
    return earned[torch.randperm(len(earned), generator=DEALER)]
