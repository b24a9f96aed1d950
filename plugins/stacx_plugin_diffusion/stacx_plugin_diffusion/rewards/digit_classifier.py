"""How surely a picture is the digit that its prompt names."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from stacx_core import RewardError, nearest
from stacx_plugin_diffusion.digits import CLASSES, digits_split
from stacx_plugin_diffusion.extras import require


def digit_classifier(media: Tensor, prompts: Sequence[str]) -> Tensor:
    """``[B]``: the probability of the prompt's class.

    Args:
        media: ``[B, 1, 8, 8]`` in [0, 1].
        prompts: Each the name of a digit, ``zero`` to ``nine``.

    Raises:
        RewardError: Media of another shape, or another prompt.
        ConfigError: scikit-learn is not installed.
    """
    for prompt in prompts:
        if prompt not in CLASSES:
            raise RewardError(
                f"reward digit_classifier: {prompt!r} is none of {', '.join(CLASSES)}{nearest(prompt, CLASSES)}"
            )
    classes = torch.tensor([CLASSES.index(prompt) for prompt in prompts])
    return digit_probabilities(media)[torch.arange(len(media)), classes]


def digit_probabilities(media: Tensor) -> Tensor:
    """``[B, 10]`` fp32: the probability of each class, by a logistic regression on the 1500 digits of the train split.

    It is right for 97 % of the test split.

    Raises:
        RewardError: Media of another shape than ``[B, 1, 8, 8]``.
        ConfigError: scikit-learn is not installed.
    """
    if media.shape[1:] != (1, 8, 8):
        raise RewardError(f"reward digit_classifier: pictures are [1, 8, 8], not {list(media.shape[1:])}")
    weight, bias = _classifier()
    return ((media.double().cpu().clamp(0, 1) * 2 - 1).flatten(1) @ weight.T + bias).softmax(dim=-1).float()


@cache
def _classifier() -> tuple[Tensor, Tensor]:
    linear = require("sklearn.linear_model", "digits", "the reward digit_classifier")
    media, labels = digits_split("train")
    fitted = linear.LogisticRegression(C=0.05, max_iter=1000).fit(
        (media * 2 - 1).flatten(1).double().numpy(), labels.numpy()
    )
    return torch.from_numpy(fitted.coef_), torch.from_numpy(fitted.intercept_)
