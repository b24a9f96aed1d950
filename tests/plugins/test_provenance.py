"""Who a recipe belongs to, whoever imported its module first."""

from __future__ import annotations

from typing import Any

PRINT_OWNERS = """
from stacx_core.plugins import plugin_host
print({r.config.name: (r.plugin.distribution, r.plugin.version) for r in plugin_host().recipes})
"""


def owners(site: Any, before: str = "") -> dict[str, tuple[str, str]]:
    done = site.python("-c", before + PRINT_OWNERS)
    assert done.code == 0, done.err
    found: dict[str, tuple[str, str]] = eval(done.out)
    return found


def test_a_module_imported_before_the_plugins_were_loaded(site: Any) -> None:
    site.add_good("stacx-good", "good_algo", version="3.1")
    assert owners(site, "import stacx_good\n")["good_algo"] == ("stacx-good", "3.1")


def test_a_plugin_imported_by_another_one(site: Any) -> None:
    site.add_good("stacx-zbase", "base_algo")
    site.add("stacx-above", "import stacx_zbase")
    assert owners(site)["base_algo"] == ("stacx-zbase", "1.0")
    records = site.stacx("plugins", "--json").rows("distribution")
    assert (records["stacx-above"]["recipes"], records["stacx-zbase"]["recipes"]) == ([], ["base_algo"])


def test_a_disabled_plugin_imported_by_another_one_stays_off(site: Any) -> None:
    site.add_good("stacx-zbase", "base_algo")
    site.add("stacx-above", "import stacx_zbase")
    rows = site.stacx("list-recipes", "--json", "--disable-plugin", "stacx-zbase").rows()
    assert rows["base_algo"]["status"] == "disabled"


def test_recipes_in_another_module_of_the_plugin(site: Any) -> None:
    site.add("stacx-split", "import helpers_of_split")
    site.add_good("stacx-good", "good_algo")
    (site.folder / "helpers_of_split.py").write_text(
        (site.folder / "stacx_good.py").read_text().replace("good", "split")
    )
    assert owners(site)["split_algo"] == ("stacx-split", "1.0")


def test_recipes_handed_over_by_the_hook(site: Any) -> None:
    site.add(
        "stacx-handed",
        """
        from stacx_core import ModelRole, TrainingConfig, hookimpl

        @hookimpl
        def register_recipes():
            yield TrainingConfig("handed", (ModelRole("policy", "a:B"),))
        """,
    )
    assert owners(site)["handed"] == ("stacx-handed", "1.0")


def test_the_users_own_script_needs_no_package(site: Any) -> None:
    script = """
from stacx_core import ModelRole, TRAINING_CONFIGS, TrainingConfig, recipe
list(TRAINING_CONFIGS)
@recipe("mine")
def mine() -> None:
    return TrainingConfig("mine", (ModelRole("policy", "a:B"),))
assert TRAINING_CONFIGS["mine"].name == "mine"
"""
    assert owners(site, script)["mine"] == ("__main__", "")


def test_a_plugin_that_reads_the_registry_while_it_is_loaded(site: Any) -> None:
    site.add("stacx-nosy", "from stacx_core import TRAINING_CONFIGS\nassert 'sft' in TRAINING_CONFIGS")
    assert site.stacx("plugins", "--json").rows("distribution")["stacx-nosy"]["status"] == "loaded"


def test_metadata_left_beside_a_newer_version_does_not_count(site: Any) -> None:
    (site.folder / "stacx_good-0.1.dist-info").mkdir()
    (site.folder / "stacx_good-0.1.dist-info" / "entry_points.txt").write_text("[stacx.recipes]\nold = gone\n")
    site.add_good("stacx-good", "good_algo", version="2.0")
    assert owners(site)["good_algo"] == ("stacx-good", "2.0")
    distributions = [row["distribution"] for row in site.stacx("plugins", "--json").document]
    assert distributions.count("stacx-good") == 1


def test_unreadable_entry_points_are_shown(site: Any) -> None:
    site.add_good("stacx-good", "good_algo")
    site.add_good("stacx-odd", "odd_algo")
    (site.folder / "stacx_odd-1.0.dist-info" / "entry_points.txt").write_text("[stacx.recipes]\nno equals sign\n")
    records = site.stacx("plugins", "--json").rows("distribution")
    assert (records["stacx-odd"]["status"], records["stacx-good"]["status"]) == ("failed", "loaded")
