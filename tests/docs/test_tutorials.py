"""Code and settings that the documentation shows are what the repository has."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import click

from stacx_core import TRAINING_CONFIGS
from stacx_core.cli.run import stacx
from stacx_core.host_knobs import HOST_KNOBS
from stacx_core.knobs import ConfigFile

ROOT = Path(__file__).parents[2]
OF_SGLANG = {
    "--attention-backend",
    "--base-gpu-id",
    "--disable-overlap-schedule",
    "--enable-deterministic-inference",
    "--max-total-tokens",
    "--mem-fraction-static",
    "--sampling-backend",
    "--sleep-on-idle",
}
OF_ROUTERS = {"--balance-abs-threshold", "--disable-health-check", "--host", "--policy", "--port"}
OF_RAY = {"--address", "--head"}
OTHERS = {
    "--no-deps",
    "--check",
    "--collect-only",
    "--help",
    "--list",
    "--input-noise",
    "--reinforce-baseline",
    "--strict",
}
OF_BENCHMARKS = {"--network", "--seeds", "--tiny"}
OF_HARNESSES = {"--exit-immediately", "--task", "--yolo"}
OF_CONTAINERS = {"--chmod", "--chown", "--link", "--scope", "--security-opt", "--user"}
NOT_OURS = OTHERS | OF_RAY | OF_SGLANG | OF_ROUTERS | OF_BENCHMARKS | OF_HARNESSES | OF_CONTAINERS
"""Options of click, of docs/generate.py, nox, pytest and mypy, and of the example packages, which are not installed."""


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def test_the_pieces_of_a_file_make_up_the_file(pages: Any) -> None:
    pieces: dict[str, list[str]] = defaultdict(list)
    for page in pages:
        for language in ("python", "toml"):
            for block in page.blocks(language):
                if block.source:
                    pieces[block.source] += lines(block.text)
    reinforce = {f"stacx-plugin-reinforce/{name}" for name in ("pyproject.toml", "stacx_plugin_reinforce.py")}
    modules = {f"{name}.py" for name in ("check_rows", "line", "recipe", "run")}
    regression = {f"stacx-plugin-regression/stacx_plugin_regression/{name}" for name in modules}
    assert set(pieces) == {f"examples/{path}" for path in reinforce | regression}
    for source, shown in pieces.items():
        assert shown == lines((ROOT / source).read_text(encoding="utf-8")), source


def test_every_flag_that_is_mentioned_exists(pages: Any) -> None:
    knobs = {knob for config in TRAINING_CONFIGS.values() for knob in config.resolved_knobs}
    known = NOT_OURS | {flag for knob in knobs for flag in (knob.flag, f"--no-{knob.flag[2:]}")}
    context = click.Context(stacx)
    commands = [stacx, *(stacx.get_command(context, name) for name in stacx.list_commands(context))]
    commands += [below for group in commands[1:] if isinstance(group, click.Group) for below in group.commands.values()]
    known |= {option for command in commands if command for p in command.get_params(context) for option in p.opts}
    for page in pages:
        mentioned = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]", page.text))
        assert mentioned <= known, page.path


def test_the_configuration_file_that_is_shown_is_valid(pages: Any, tmp_path: Path) -> None:
    shown = [block.text for page in pages for block in page.blocks("toml") if "# run.toml" in block.text]
    assert shown
    knobs = [*HOST_KNOBS, *TRAINING_CONFIGS["grpo"].knobs]
    for number, text in enumerate(shown):
        path = tmp_path / f"{number}.toml"
        path.write_text(text, encoding="utf-8")
        assert ConfigFile.load(path).values(knobs, {})["algorithm"] == "grpo"


def test_every_link_leads_to_a_file(pages: Any) -> None:
    for page in pages:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.text):
            assert (page.path.parent / target).exists(), f"{page.path}: {target}"


def test_every_algorithm_that_is_trained_is_known(pages: Any) -> None:
    own = {"reinforce", "my_algo", "NAME", "stacx-plugin-one:my_algo"}
    for page in pages:
        commands = "\n".join(block.text for block in page.blocks("sh"))
        assert set(re.findall(r"--algorithm (\S+)", commands)) <= {*TRAINING_CONFIGS, *own}, page.path
