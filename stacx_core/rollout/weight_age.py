"""Tokens that older weights sampled than those that are about to be trained."""

from __future__ import annotations

from collections.abc import Sequence

from stacx_core.data.sample import Sample
from stacx_core.errors import EngineError


def token_ages(sample: Sample, rollout: int) -> list[int]:
    """How many rollouts old the weights behind each response token are, when rollout ``rollout`` trains on it.

    Raises:
        EngineError: A label is none that Stacx gave, which is the number of rollouts completed.
    """
    try:
        return [rollout - int(version) for version in sample.token_versions or ()]
    except ValueError as error:
        raise EngineError(
            f"{sample.describe()}: a server labels its weights otherwise than Stacx did: {error}"
        ) from error


def mask_older(samples: Sequence[Sample], rollout: int) -> None:
    """Set the loss mask to 0 where weights sampled a token that are older than ``rollout``; nothing else changes."""
    for sample in samples:
        ages = token_ages(sample, rollout)
        sample.loss_mask = [int(mask and age <= 0) for mask, age in zip(sample.mask, ages, strict=True)]


def age_metrics(samples: Sequence[Sample], rollout: int) -> dict[str, float]:
    """Responses with a token of older weights, the share of such tokens, and the ages of all tokens in rollouts."""
    of_samples = [token_ages(sample, rollout) for sample in samples]
    ages = [age for ages in of_samples for age in ages]
    count = max(len(ages), 1)
    return {
        "partial_responses": float(sum(any(age > 0 for age in ages) for ages in of_samples)),
        "offpolicy_token_frac": sum(age > 0 for age in ages) / count,
        "weight_age_mean": sum(ages) / count,
        "weight_age_max": float(max(ages, default=0)),
    }
