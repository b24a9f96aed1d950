"""Whatever is wrong with one plugin, the others work, and the reason is shown where it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

SOUND_RECIPE = """
from stacx_core import ModelRole, TrainingConfig, hookimpl, recipe

@recipe("broken_algo")
def build():
    return TrainingConfig("broken_algo", (ModelRole("policy", "a:B"),))

@hookimpl
def build_syncs(config, args):
    return []
"""


@dataclass(frozen=True)
class Broken:
    """A plugin of a kind of brokenness, and the words its reason must hold."""

    source: str | None
    reason: tuple[str, ...]
    status: str = "failed"
    metadata: bool = True
    recipe: str = "broken_algo"
    version: str = "0.7"


KINDS = {
    "import error": Broken(
        SOUND_RECIPE + "import no_such_module_here", ("no_such_module_here", "stacx_broken.py, line 11")
    ),
    "exception": Broken(SOUND_RECIPE + "raise KeyError('lost')", ("KeyError", "lost")),
    "unprintable exception": Broken(
        SOUND_RECIPE + "class Bad(Exception):\n    def __str__(self): return 1 / 0\nraise Bad()", ("Bad",)
    ),
    "base exception": Broken(SOUND_RECIPE + "raise BaseException('odd')", ("BaseException", "odd")),
    "syntax error": Broken(SOUND_RECIPE + "def (", ("SyntaxError",)),
    "system exit": Broken(SOUND_RECIPE + "raise SystemExit(0)", ("SystemExit",)),
    "generator exit": Broken(SOUND_RECIPE + "raise GeneratorExit('odd')", ("GeneratorExit", "odd")),
    "malformed recipe": Broken(
        SOUND_RECIPE
        + """
@recipe("frozen_algo")
def frozen():
    return TrainingConfig("frozen_algo", (ModelRole("ref", "a:B", trainable=False),))
""",
        ("frozen_algo", "at least one role must have trainable=True"),
    ),
    "unknown hook": Broken(
        SOUND_RECIPE + "\n@hookimpl\ndef compute_los(batch):\n    return None\n",
        ("unknown hook 'compute_los'", "did you mean 'compute_loss'?"),
    ),
    "misspelt argument": Broken(
        SOUND_RECIPE + "\n@hookimpl\ndef compute_loss(batch, reducr):\n    return None\n",
        ("reducr", "compute_loss(specialization, model_output, batch, reducer)"),
    ),
    "other API": Broken(SOUND_RECIPE + "STACX_API = 2", ("needs plugin API 2", "stacx-core has 1"), "incompatible"),
    "handed over nonsense": Broken(
        SOUND_RECIPE + "\n@hookimpl\ndef register_recipes():\n    return ['sft']\n",
        ("register_recipes()", "'sft'"),
    ),
    "uninstalled": Broken(None, ("is not installed", "stacx-broken"), recipe="stacx-broken"),
    "uninstalled, no metadata": Broken(
        None, ("left over from an uninstalled package",), metadata=False, recipe="stacx-broken"
    ),
}


@pytest.fixture(params=KINDS.values(), ids=list(KINDS))
def broken(request: Any, site: Any) -> Broken:
    kind: Broken = request.param
    name = "stacx-broken" if kind.metadata else "stacx_broken"
    site.add(name, kind.source, version=kind.version, metadata=kind.metadata, entry="stacx-broken")
    site.add_good("stacx-agood", "first_algo")
    site.add_good("stacx-good", "good_algo")
    return kind


def test_a_broken_plugin_takes_nothing_else_down(site: Any, broken: Any) -> None:
    recipes = site.stacx("list-recipes", "--json")
    assert recipes.code == 0
    rows = recipes.rows()
    for name in ("sft", "first_algo", "good_algo"):
        assert rows[name]["status"] == "loaded"
    lost = rows[broken.recipe]
    assert (lost["status"], lost["distribution"], lost["version"]) == (broken.status, "stacx-broken", "0.7")
    assert all(words in lost["reason"] for words in broken.reason)
    assert site.stacx("show-recipe", "good_algo").code == 0


def test_a_broken_plugin_is_shown_with_its_reason(site: Any, broken: Any) -> None:
    shown = site.stacx("plugins", "--json")
    assert shown.code == 0
    record = shown.rows("distribution")["stacx-broken"]
    assert (record["status"], record["version"], record["recipes"], record["hooks"]) == (
        broken.status,
        "0.7",
        [],
        [],
    )
    assert all(words in record["reason"] for words in broken.reason)
    assert shown.rows("distribution")["stacx-good"]["status"] == "loaded"
    table = site.stacx("plugins", "-v")
    assert table.code == 0
    assert f"stacx-broken 0.7: {broken.status}: " in table.out
    doctor = site.stacx("doctor", "--json")
    assert doctor.code == 0
    assert any(line.startswith(f"stacx-broken 0.7: {broken.status}: ") for line in doctor.document["problems"])


def test_a_broken_plugin_is_an_error_when_asked_for_and_in_strict_mode(site: Any, broken: Any) -> None:
    asked = site.stacx("show-recipe", broken.recipe)
    assert asked.code == 3
    assert "stacx-broken 0.7" in asked.err
    assert all(words in asked.err for words in broken.reason)
    assert "Traceback" not in asked.err
    strict = site.stacx("list-recipes", "--json", STACX_STRICT_PLUGINS="1")
    assert strict.code == 3
    assert any("stacx-broken 0.7" in hint for hint in strict.document["error"]["hints"])
    report = site.stacx("plugins", "--json", STACX_STRICT_PLUGINS="1")
    assert report.code == 3
    assert report.rows("distribution")["stacx-broken"]["status"] == broken.status


def test_no_hook_or_recipe_of_a_broken_plugin_stays(site: Any, broken: Any) -> None:
    program = """
from stacx_core import TRAINING_CONFIGS
from stacx_core.plugins import plugin_host
names = list(TRAINING_CONFIGS)
assert "good_algo" in names and "broken_algo" not in names, names
modules = {i.plugin.__name__ for c in ("build_syncs", "compute_loss")
           for i in getattr(plugin_host().hook, c).get_hookimpls()}
assert "stacx_broken" not in modules and "stacx_core.host_plugin" in modules, modules
"""
    done = site.python("-c", program)
    assert done.code == 0, done.err


def test_an_interrupt_during_an_import_stops_the_command(site: Any) -> None:
    site.add("stacx-slow", "raise KeyboardInterrupt")
    assert site.stacx("list-recipes").code == 130


def test_what_a_plugin_prints_does_not_spoil_the_document(site: Any) -> None:
    site.add("stacx-chatty", "print('hello')")
    shown = site.stacx("plugins", "--json")
    assert "stacx-chatty" in shown.rows("distribution")
    assert "hello" in shown.err


def test_verbose_shows_the_traceback_of_the_plugin(site: Any) -> None:
    site.add("stacx-broken", "import no_such_module_here\n# recipe('broken_algo')")
    shown = site.stacx("-v", "show-recipe", "broken_algo")
    assert "Traceback" in shown.err
    assert "import no_such_module_here" in shown.err
