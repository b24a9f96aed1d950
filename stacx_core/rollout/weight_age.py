"""Tokens that older weights sampled than those that are about to be trained."""

from __future__ import annotations

from collections.abc import Sequence

from stacx_core.data.sample import Sample


def token_ages(sample: Sample, rollout: int) -> list[int]:
    """How many updates the weights behind each response token lag behind those that rollout ``rollout`` trains."""
    return [rollout - int(version) for version in sample.token_versions or ()]


def mask_older(samples: Sequence[Sample], rollout: int, staleness: int = 0) -> None:
    """Set the loss mask of tokens to 0 that weights sampled which lag behind by more than ``staleness`` updates."""
    for sample in samples:
        ages = token_ages(sample, rollout)
        sample.loss_mask = [int(mask and age <= staleness) for mask, age in zip(sample.mask, ages, strict=True)]


def age_metrics(samples: Sequence[Sample], rollout: int, staleness: int = 0) -> dict[str, float]:
    """How old the tokens of a rollout are.

    Returns:
        ``partial_responses``, those with a token of weights that lag behind by more than ``staleness`` updates;
        ``offpolicy_token_frac``, the share of such tokens; ``weight_age_mean`` of all tokens, in rollouts.
    """
    of_samples = [token_ages(sample, rollout) for sample in samples]
    ages = [age for own in of_samples for age in own]
    count = max(len(ages), 1)
    return {
        "partial_responses": float(sum(max(own, default=0) > staleness for own in of_samples)),
        "offpolicy_token_frac": sum(age > staleness for age in ages) / count,
        "weight_age_mean": sum(ages) / count,
    }
