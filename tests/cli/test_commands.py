"""The commands that describe: what they print, their errors and their exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stacx_core import __version__
from stacx_core.cli import main
from stacx_core.cli.run import COMMANDS

DESCRIBING = ["list-recipes", "show-recipe", "plugins", "doctor"]


def run(capsys: Any, *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return int(code), captured.out, captured.err


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_every_command(capsys: Any, arguments: Any) -> None:
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert all(name in out for name in COMMANDS)
    assert "130 interrupted" in " ".join(out.split())


@pytest.mark.parametrize("arguments", [["--version"], ["--version", "doctor"]])
def test_version(capsys: Any, arguments: Any) -> None:
    assert run(capsys, *arguments) == (0, f"stacx {__version__}\n", "")


@pytest.mark.parametrize("name", DESCRIBING)
def test_every_command_explains_itself(capsys: Any, name: Any) -> None:
    code, out, _ = run(capsys, name, "--help")
    assert code == 0
    assert "--json" in out
    assert "--disable-plugin" in out


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["list-recipe"], "no command is named 'list-recipe'", "did you mean 'list-recipes'?"),
        (["plugins", "--jsn"], "no option is named '--jsn'", "did you mean '--json'?"),
        (["--versio"], "no option is named '--versio'", "did you mean '--version'?"),
        (["show-recipe"], "Missing argument 'NAME'", "see stacx show-recipe --help"),
        (["show-recipe", "stf"], "no recipe is named 'stf'", "stacx list-recipes shows every recipe"),
        (["plugins", "--config", "none.toml"], "none.toml", ""),
    ],
)
def test_wrong_usage(capsys: Any, arguments: Any, message: Any, hint: Any) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert hint in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["plugins", "--jsn", "--json"], "UsageError"),
        (["show-recipe", "stf", "--json"], "UnknownRecipeError"),
        (["list-recipes", "--json", "--plugins", "none-of-that-name"], "ConfigError"),
    ],
)
def test_errors_are_one_document_too(capsys: Any, arguments: Any, kind: Any) -> None:
    code, out, err = run(capsys, *arguments)
    error = json.loads(out)["error"]
    assert (error["type"], error["exit_code"], code, err) == (kind, 2, 2, "")
    assert isinstance(error["message"], str)
    assert isinstance(error["hints"], list)


def test_the_fields_of_a_listed_recipe(capsys: Any) -> None:
    _, out, _ = run(capsys, "list-recipes", "--json", "--plugins", "")
    sft = next(row for row in json.loads(out) if row["name"] == "sft")
    assert sft == {
        "name": "sft",
        "family": "host",
        "roles": ["policy"],
        "rollout_role": "policy",
        "syncs": [],
        "description": sft["description"],
        "distribution": "stacx-core",
        "version": __version__,
        "status": "loaded",
        "reason": "",
    }


def test_the_fields_of_a_listed_plugin(capsys: Any) -> None:
    _, out, _ = run(capsys, "plugins", "--json", "--plugins", "")
    host = json.loads(out)[0]
    assert host.pop("import_seconds") >= 0
    assert host == {
        "name": "host",
        "distribution": "stacx-core",
        "version": __version__,
        "target": "stacx_core.host_plugin",
        "status": "loaded",
        "reason": "",
        "recipes": ["sft"],
        "hooks": ["compute_loss", "register_recipes"],
    }


def test_the_listing_is_stable(capsys: Any) -> None:
    assert run(capsys, "list-recipes", "--json") == run(capsys, "list-recipes", "--json")


def test_tables(capsys: Any) -> None:
    _, out, _ = run(capsys, "list-recipes", "--plugins", "")
    header, *rows = out.splitlines()
    assert header.split() == ["NAME", "FAMILY", "ROLES", "SYNCS", "FROM", "STATUS", "DESCRIPTION"]
    assert any(row.split()[:5] == ["sft", "host", "policy*", "-", "stacx-core"] for row in rows)


def test_the_page_of_a_recipe(capsys: Any) -> None:
    _, out, _ = run(capsys, "show-recipe", "sft", "--json")
    page = json.loads(out)
    assert page["requires"] == ["--hf-checkpoint", "--prompt-data"]
    assert page["roles"][0]["checkpoint"] == "--hf-checkpoint"
    assert (page["batch_keys"][0]["key"], page["batch_keys"][0]["written_by"]) == ("tokens", "conversion")
    assert page["aggregation"]["default"] == "sample_mean"
    lr = next(knob for knob in page["knobs"] if knob["name"] == "lr")
    assert (lr["flag"], lr["environment"], lr["key"], lr["origin"]) == (
        "--lr",
        "STACX_LR",
        "optimizer.lr",
        "stacx-core",
    )
    code, text, _ = run(capsys, "show-recipe", "sft")
    assert code == 0
    for title in ("Roles", "Syncs", "Batch keys", "Advantage pipeline", "Aggregation", "Rollout", "Knobs"):
        assert f"\n{title}" in text


def test_doctor(capsys: Any) -> None:
    code, out, _ = run(capsys, "doctor", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["versions"]["stacx-core"] == __version__
    assert report["versions"]["torch"]
    extras = {row["name"]: row["install"] for row in report["extras"]}
    assert extras["wandb"] == "pip install 'stacx-core[wandb]'"
    assert set(extras) >= {"megatron", "plot", "ray", "sglang", "wandb"}
    assert report["threads"]["cpus"] >= 1
    code, text, _ = run(capsys, "doctor")
    assert code == 0
    for title in ("Versions", "Extras", "Devices", "Threads", "Plugins", "Problems"):
        assert f"\n{title}" in text
