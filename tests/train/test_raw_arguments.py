"""Flags that are read before the command line is parsed, in every spelling that the parser takes."""

from __future__ import annotations

import pytest

from stacx_core.cli.train_options import flag_text, flag_texts
from stacx_core.data.sample import Sample
from stacx_core.errors import RewardError
from stacx_core.rewards import score


@pytest.mark.parametrize("spelling", [["-c", "a.toml"], ["-ca.toml"], ["--config", "a.toml"], ["--config=a.toml"]])
def test_the_config_file_is_found(spelling: list[str]) -> None:
    assert flag_texts(["--lr", "1", *spelling], "--config", "-c") == ["a.toml"]


def test_an_empty_value_is_not_a_missing_one() -> None:
    assert flag_text(["--plugins", ""], "--plugins") == ""
    assert flag_text(["--lr", "1"], "--plugins") is None


def test_a_reward_that_exits_is_a_reward_that_failed() -> None:
    def leave(sample: Sample) -> float:
        raise SystemExit(0)

    with pytest.raises(RewardError):
        score([Sample(index=3, tokens=[1, 2], response_length=1)], leave)
