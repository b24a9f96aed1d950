"""What a whole-batch stage must return."""

from __future__ import annotations

import math
from typing import Any

import pytest

from stacx_core import Args, ModelRole
from stacx_core.data.batch import Batch
from stacx_core.errors import RecipeError
from stacx_core.trainer.stages import run_stages


def role(*stages: Any) -> ModelRole:
    return ModelRole("policy", "stacx_core.specialization:CausalDecoderSpecialization", prepare=stages)


def test_metrics_of_all_stages_are_collected() -> None:
    def doubled(batch: Batch, args: Args) -> dict[str, float]:
        batch["rewards"] = [2 * reward for reward in batch["rewards"]]
        return {"mean": 3}

    batch: Batch = {"rewards": [1.0, 2.0]}
    assert run_stages(role(doubled, lambda batch, args: {"sum": sum(batch["rewards"])}), batch, Args.of()) == {
        "mean": 3.0,
        "sum": 6.0,
    }


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (None, "returns NoneType, not a dictionary of metrics"),
        ({"x": "text"}, "returns 'x': 'text'; metrics are finite numbers"),
        ({"x": math.nan}, "returns 'x': nan"),
        ({1: 2.0}, "returns 1: 2.0"),
    ],
)
def test_anything_else_is_refused_by_the_name_of_the_stage(returned: Any, says: str) -> None:
    def stage(batch: Batch, args: Args) -> Any:
        return returned

    with pytest.raises(RecipeError, match=r"stage .*stage of role 'policy'") as caught:
        run_stages(role(stage), {"rewards": [1.0]}, Args.of())
    assert says in str(caught.value)


def test_a_list_stays_a_list() -> None:
    def stage(batch: Batch, args: Args) -> dict[str, float]:
        batch["rewards"] = 1.0
        return {}

    with pytest.raises(RecipeError, match="makes batch key 'rewards' a float"):
        run_stages(role(stage), {"rewards": [1.0]}, Args.of())
