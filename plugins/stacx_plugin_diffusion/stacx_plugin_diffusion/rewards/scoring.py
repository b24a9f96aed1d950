"""Applying a reward to media, with every failure named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from stacx_core import RewardError, StacxError

Score = Callable[[Tensor, list[str]], Any]
"""One number for each of ``[B, C, H, W]`` fp32 in [0, 1] and its prompt: a tensor, an array or a list of B."""


class MediaReward:
    """A reward whose result can be relied on.

    Args:
        name: For messages.
        score: Computes it.
    """

    def __init__(self, name: str, score: Score) -> None:
        self.name = name
        self._score = score

    @torch.no_grad()
    def __call__(self, media: Tensor, prompts: Sequence[str]) -> Tensor:
        """Rewards ``[B]`` fp32 in ordinary memory, NaN where there is none.

        There is none where the reward is not finite, and where the media are not: these are not shown to it.

        Args:
            media: ``[B, C, H, W]`` fp32 in [0, 1].
            prompts: B texts.

        Raises:
            RewardError: It raised, or returned anything but B numbers.
        """
        if len(prompts) != len(media):
            raise RewardError(f"reward {self.name}: {len(prompts)} prompts for {len(media)} samples")
        rewards = torch.full((len(media),), torch.nan)
        shown = torch.isfinite(media).flatten(1).all(dim=1).cpu()
        if shown.any():
            rows = shown.nonzero()[:, 0].tolist()
            rewards[shown] = self._checked(media[shown.to(media.device)], [prompts[row] for row in rows])
        rewards[~rewards.isfinite()] = torch.nan
        return rewards

    def _checked(self, media: Tensor, prompts: list[str]) -> Tensor:
        try:
            values = torch.as_tensor(self._score(media, prompts)).detach().float().cpu()
        except StacxError:
            raise
        except (Exception, SystemExit) as error:
            raise RewardError(f"reward {self.name}: {type(error).__name__}: {error}") from error
        if values.shape != (len(media),):
            raise RewardError(
                f"reward {self.name} returned the shape {list(values.shape)} for {len(media)} samples; "
                f"it must return one number for each, [{len(media)}]"
            )
        return values
