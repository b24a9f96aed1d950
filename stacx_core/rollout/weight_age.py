"""Tokens that older weights sampled than those that are about to be trained."""

from __future__ import annotations

from collections.abc import Sequence

from stacx_core.data.sample import Sample
from stacx_core.errors import EngineError


def token_ages(sample: Sample, rollout: int) -> list[int]:
    """How many updates the weights behind each response token lag behind those that rollout ``rollout`` trains.

    Raises:
        EngineError: A label is none that Stacx gave, which is the number of rollouts completed.
    """
    try:
        return [rollout - int(version) for version in sample.token_versions or ()]
    except ValueError as error:
        raise EngineError(
            f"{sample.describe()}: a server labels its weights otherwise than Stacx did: {error}"
        ) from error


def mask_older(samples: Sequence[Sample], rollout: int, staleness: int = 0) -> None:
    """Set the loss mask of tokens to 0 that weights sampled which lag behind by more than ``staleness`` updates.

    Raises:
        EngineError: As :func:`token_ages`.
    """
    for sample in samples:
        ages = token_ages(sample, rollout)
        sample.loss_mask = [int(mask and age <= staleness) for mask, age in zip(sample.mask, ages, strict=True)]


def age_metrics(samples: Sequence[Sample], rollout: int, staleness: int = 0) -> dict[str, float]:
    """How old the tokens of a rollout are.

    Returns:
        ``partial_responses``, those with a token of weights that lag behind by more than ``staleness`` updates;
        ``offpolicy_token_frac``, the share of such tokens; ``weight_age_mean`` and ``weight_age_max`` of all tokens,
        in rollouts.

    Raises:
        EngineError: As :func:`token_ages`.
    """
    of_samples = [token_ages(sample, rollout) for sample in samples]
    ages = [age for own in of_samples for age in own]
    count = max(len(ages), 1)
    return {
        "partial_responses": float(sum(max(own, default=0) > staleness for own in of_samples)),
        "offpolicy_token_frac": sum(age > staleness for age in ages) / count,
        "weight_age_mean": sum(ages) / count,
        "weight_age_max": float(max(ages, default=0)),
    }
