"""How old the weights behind the tokens of a rollout are."""

from __future__ import annotations

import pytest

from stacx_core.data.sample import Sample
from stacx_core.rollout.weight_age import age_metrics, mask_older


def samples() -> list[Sample]:
    """Of rollout 7: three updates, one and none behind; then an answer with a masked token; then an empty one."""
    return [
        Sample(tokens=[1, 2, 3, 4], response_length=3, token_versions=["4", "6", "7"]),
        Sample(tokens=[1, 2, 3], response_length=2, token_versions=["7", "7"], loss_mask=[0, 1]),
        Sample(tokens=[1]),
    ]


@pytest.mark.parametrize(
    ("staleness", "masks", "share"),
    [(0, [[0, 0, 1], [0, 1], []], 2 / 5), (1, [[0, 1, 1], [0, 1], []], 1 / 5), (3, [[1, 1, 1], [0, 1], []], 0)],
)
def test_tokens_of_older_weights_than_allowed(staleness: int, masks: list[list[int]], share: float) -> None:
    aged = samples()
    mask_older(aged, 7, staleness)
    assert [sample.mask for sample in aged] == masks
    assert age_metrics(aged, 7, staleness) == {
        "partial_responses": float(share > 0),
        "offpolicy_token_frac": share,
        "weight_age_mean": 4 / 5,
    }


def test_a_rollout_of_nothing_has_no_age() -> None:
    assert set(age_metrics([], 7).values()) == {0.0}
