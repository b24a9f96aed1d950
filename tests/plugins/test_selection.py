"""Allow and disable lists: three sources, one meaning; a disabled plugin stays off."""

from __future__ import annotations

from typing import Any

import pytest

from stacx_core import ConfigError
from stacx_core.plugin_selection import PluginSelection, normalise, strict_plugins


@pytest.fixture
def three(site: Any) -> Any:
    for name in ("one", "two", "three"):
        site.add_good(f"stacx-plugin-{name}", f"{name}_algo", entry=name)
    return site


def loaded(finished: Any) -> set[str]:
    assert finished.code == 0, finished.err
    ours = {"one", "two", "three"}
    return {row["name"] for row in finished.document if row["status"] == "loaded"} & ours


CASES = {
    "nothing said": ([], {}, "", {"one", "two", "three"}),
    "allow flag": (["--plugins", "one,two"], {}, "", {"one", "two"}),
    "allow none by flag": (["--plugins", ""], {}, "", set()),
    "allow variable": ([], {"STACX_PLUGINS": "two"}, "", {"two"}),
    "allow none by variable": ([], {"STACX_PLUGINS": ""}, "", set()),
    "allow file": ([], {}, 'enable = ["three"]', {"three"}),
    "allow none by file": ([], {}, "enable = []", set()),
    "flag before variable": (["--plugins", "one"], {"STACX_PLUGINS": "two"}, "", {"one"}),
    "variable before file": ([], {"STACX_PLUGINS": "two"}, 'enable = ["three"]', {"two"}),
    "disable flag": (["--disable-plugin", "one", "--disable-plugin", "two"], {}, "", {"three"}),
    "disable variable": ([], {"STACX_DISABLE_PLUGINS": "one,three"}, "", {"two"}),
    "disable file": ([], {}, 'disable = ["one"]', {"two", "three"}),
    "disable lists add up": (
        ["--disable-plugin", "one"], {"STACX_DISABLE_PLUGINS": "two"}, 'disable = ["three"]', set(),
    ),
    "disable wins": (["--plugins", "one,two"], {"STACX_DISABLE_PLUGINS": "one"}, "", {"two"}),
    "distribution name": (["--plugins", "Stacx_Plugin.ONE"], {}, "", {"one"}),
}  # fmt: skip


@pytest.mark.parametrize(("flags", "environment", "table", "expected"), CASES.values(), ids=list(CASES))
def test_lists(three: Any, flags: Any, environment: Any, table: Any, expected: Any) -> None:
    (three.folder / "run.toml").write_text(f"[plugins]\n{table}\n")
    finished = three.stacx("plugins", "--json", "--config", "run.toml", *flags, **environment)
    assert loaded(finished) == expected


def test_flags_before_the_command_count_too(three: Any) -> None:
    assert loaded(three.stacx("--plugins", "one,two", "--disable-plugin", "one", "plugins", "--json")) == {"two"}


def test_a_disabled_plugin_is_shown_and_asking_for_its_recipe_says_why(three: Any) -> None:
    environment = {"STACX_DISABLE_PLUGINS": "one"}
    record = three.stacx("plugins", "--json", **environment).rows()["one"]
    assert (record["status"], record["reason"]) == ("disabled", "disabled by STACX_DISABLE_PLUGINS")
    assert record["import_seconds"] is None
    asked = three.stacx("show-recipe", "one_algo", **environment)
    assert asked.code == 3
    assert "stacx-plugin-one 1.0 is disabled: disabled by STACX_DISABLE_PLUGINS" in asked.err


def test_a_disabled_broken_plugin_is_not_imported(site: Any) -> None:
    site.add("stacx-broken", "raise RuntimeError")
    record = site.stacx("plugins", "--json", "--disable-plugin", "stacx-broken").rows()["stacx-broken"]
    assert record["status"] == "disabled"
    assert site.stacx("list-recipes", STACX_STRICT_PLUGINS="1", STACX_PLUGINS="").code == 0


@pytest.mark.parametrize(
    ("flags", "environment"),
    [
        (["--plugins", "onee"], {}),
        (["--disable-plugin", "onee"], {}),
        ([], {"STACX_PLUGINS": "onee"}),
        ([], {"STACX_DISABLE_PLUGINS": "onee"}),
    ],
)
def test_an_unknown_name_is_an_error_with_the_nearest(three: Any, flags: Any, environment: Any) -> None:
    finished = three.stacx("list-recipes", *flags, **environment)
    assert finished.code == 2
    assert "'onee'" in finished.err
    assert "did you mean 'one'?" in finished.err


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"enabled": []}, "did you mean 'enable'?"),
        ({"enable": "one"}, "list of plugin names"),
        ({"disable": [1]}, "list"),
    ],
)
def test_a_malformed_table_is_refused(table: Any, words: Any) -> None:
    with pytest.raises(ConfigError, match=words.replace("?", r"\?")):
        PluginSelection.gather(environ={}, table=table, file="run.toml")


@pytest.mark.parametrize(("value", "expected"), [("", False), ("0", False), ("1", True)])
def test_strict_switch(value: Any, expected: Any) -> None:
    assert strict_plugins({"STACX_STRICT_PLUGINS": value}) is expected


def test_a_strict_switch_that_is_neither_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be 0 or 1, not 'false'"):
        strict_plugins({"STACX_STRICT_PLUGINS": "false"})


def test_names_are_normalised() -> None:
    assert normalise("Stacx_Plugin..GRPO") == "stacx-plugin-grpo"
