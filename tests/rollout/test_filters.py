"""Which groups of responses pass a filter, built in or the user's own."""

from __future__ import annotations

from typing import Any

import pytest

from stacx_core.data.sample import Sample
from stacx_core.errors import ConfigError
from stacx_core.rollout.filters import load_filter, reward_std


@pytest.mark.parametrize(
    ("rewards", "kept"),
    [
        ([0.0, 1.0], True),
        ([1.0, 1.0], False),
        ([0.5, 0.5 + 1e-9], False),
        ([{"a": 1.0, "b": 0.0}, {"a": 1.0, "b": 2.0}], True),
    ],
)
def test_a_group_is_kept_when_its_rewards_differ(rewards: list[Any], kept: bool) -> None:
    assert reward_std([Sample(reward=reward) for reward in rewards]) is kept


def test_a_removed_response_has_no_vote() -> None:
    assert not reward_std([Sample(reward=1.0), Sample(reward=1.0), Sample(reward=0.0, remove_sample=True)])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("reward_sdt", r"did you mean 'reward_std'.*package.module:function"),
        ("no_such_module:f", "no_such_module"),
        ("stacx_core.rollout.filters:BUILT_IN", "is of type dict; it must be a function"),
    ],
)
def test_a_wrong_filter_is_a_config_error(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_filter(name)
