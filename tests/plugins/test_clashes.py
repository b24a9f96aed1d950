"""Two plugins with one recipe name: neither wins, and both can be had by their qualified names."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def clash(site: Any) -> Any:
    site.add_good("stacx-one", "twin", entry="twins", version="1.1")
    site.add_good("stacx-two", "twin", entry="twins", version="2.2")
    site.add_good("stacx-good", "good_algo")
    return site


def test_both_are_listed_as_a_conflict(clash: Any) -> None:
    listed = clash.stacx("list-recipes", "--json")
    assert listed.code == 0
    twins = [row for row in listed.document if row["name"] == "twin"]
    assert [(row["distribution"], row["version"], row["status"]) for row in twins] == [
        ("stacx-one", "1.1", "conflict"),
        ("stacx-two", "2.2", "conflict"),
    ]
    assert listed.rows()["good_algo"]["status"] == "loaded"
    records = clash.stacx("plugins", "--json").rows("distribution")
    assert records["stacx-one"]["status"] == records["stacx-two"]["status"] == "conflict"
    assert "stacx-two 2.2" in records["stacx-one"]["reason"]
    assert records["stacx-good"]["status"] == "loaded"


def test_the_bare_name_is_refused_with_both_distributions_and_the_way_out(clash: Any) -> None:
    asked = clash.stacx("show-recipe", "twin", "--json")
    assert asked.code == 3
    error = asked.document["error"]
    assert "stacx-one 1.1" in error["message"]
    assert "stacx-two 2.2" in error["message"]
    assert "stacx-one:twin or stacx-two:twin" in error["hints"][0]


@pytest.mark.parametrize("name", ["stacx-one:twin", "stacx-two:twin", "Stacx_Two:twin"])
def test_the_qualified_name_works(clash: Any, name: Any) -> None:
    shown = clash.stacx("show-recipe", name, "--json")
    assert shown.code == 0
    assert shown.document["distribution"] == name.partition(":")[0].lower().replace("_", "-")


def test_the_python_view_agrees_with_the_command(clash: Any) -> None:
    program = """
from types import SimpleNamespace
from stacx_core import TRAINING_CONFIGS, PluginError, infer_algorithm
names = set(TRAINING_CONFIGS)
assert {"sft", "good_algo", "stacx-one:twin", "stacx-two:twin"} <= names and "twin" not in names, names
assert "twin" not in TRAINING_CONFIGS
assert TRAINING_CONFIGS["stacx-one:twin"].roles[0].specialization_cls == "stacx_one:Loss"
assert infer_algorithm(SimpleNamespace(algorithm="stacx-two:twin")) == "stacx-two:twin"
try:
    infer_algorithm(SimpleNamespace(algorithm="twin"))
except PluginError as error:
    assert "stacx-one 1.1" in str(error) and "stacx-two 2.2" in str(error)
else:
    raise AssertionError("no error")
"""
    done = clash.python("-c", program)
    assert done.code == 0, done.err


def test_switching_one_off_ends_the_clash(clash: Any) -> None:
    shown = clash.stacx("show-recipe", "twin", "--json", "--disable-plugin", "stacx-one")
    assert shown.code == 0
    assert shown.document["distribution"] == "stacx-two"


def test_a_clash_is_fatal_in_strict_mode(clash: Any) -> None:
    assert clash.stacx("list-recipes", STACX_STRICT_PLUGINS="1").code == 3


def test_nobody_takes_the_name_of_a_host_recipe(site: Any) -> None:
    site.add_good("stacx-thief", "sft")
    assert site.stacx("show-recipe", "sft").code == 3
    assert site.stacx("show-recipe", "stacx-core:sft").code == 0
    assert site.stacx("show-recipe", "stacx-thief:sft").code == 0
    statuses = [row["status"] for row in site.stacx("list-recipes", "--json").document if row["name"] == "sft"]
    assert statuses == ["conflict", "conflict"]


def test_one_plugin_may_not_register_a_name_twice(site: Any) -> None:
    site.add(
        "stacx-double",
        """
        from stacx_core import ModelRole, TrainingConfig, recipe

        @recipe("double")
        def first():
            return TrainingConfig("double", (ModelRole("policy", "a:B"),))

        @recipe("double")
        def second():
            return TrainingConfig("double", (ModelRole("policy", "a:C"),))
        """,
    )
    record = site.stacx("plugins", "--json").rows("distribution")["stacx-double"]
    assert record["status"] == "failed"
    assert "registered twice" in record["reason"]


def test_a_failed_rival_is_no_rival(site: Any) -> None:
    site.add_good("stacx-one", "twin")
    site.add(
        "stacx-two",
        "from stacx_one import build\nfrom stacx_core import recipe\nrecipe('twin')(build)\n1 / 0",
    )
    assert site.stacx("show-recipe", "twin", "--json").document["distribution"] == "stacx-one"
