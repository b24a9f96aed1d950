"""The base class of a plugin's conformance tests; the only module here that needs pytest."""

from __future__ import annotations

import atexit
from functools import cache
from typing import ClassVar

import pytest

from stacx_core.config import TrainingConfig
from stacx_core.recipes import TRAINING_CONFIGS
from stacx_core.testing.ranks import Ranks
from stacx_core.testing.results import CHECKS
from stacx_core.testing.suite import Suite


@cache
def _ranks() -> Ranks:
    """The two processes of all classes, which end with the tests."""
    ranks = Ranks()
    atexit.register(ranks.stop)
    ranks.start()
    return ranks


class RecipeConformance:
    """Inherit it, name the recipe, and get one test per check.

    Attributes:
        recipe: name of an installed recipe, or the `TrainingConfig` itself.
    """

    recipe: ClassVar[str | TrainingConfig]

    @pytest.fixture(scope="class")
    @classmethod
    def suite(cls) -> Suite:
        """The suite on the recipe of the class."""
        config = TRAINING_CONFIGS[cls.recipe] if isinstance(cls.recipe, str) else cls.recipe
        return Suite(config, _ranks())

    @pytest.mark.parametrize("check", CHECKS)
    def test_recipe(self, suite: Suite, check: str) -> None:
        """A property that every recipe must have; a failure prints the smallest input that shows it."""
        result = suite.run(CHECKS[check])
        if result.status == "not applicable":
            pytest.skip(result.reason)
        if result.status == "fail":
            pytest.fail("\n".join((result.check, *result.lines())), pytrace=False)
