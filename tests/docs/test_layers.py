"""Who may know whom, where an import linter cannot see it."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from stacx_core.cli.doctor import EXTRAS
from stacx_core.plugin_discovery import FIRST_PARTY

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
RECIPES = {"sft", *(name for names in FIRST_PARTY.values() for name in names)}
ALGORITHM_BLIND = [p for part in ("backends", "rollout", "trainer") for p in (ROOT / "stacx_core" / part).rglob("*.py")]
OUTSIDERS = [
    path
    for pattern in ("plugins/stacx_plugin_*", "examples/stacx-plugin-*")
    for distribution in ROOT.glob(pattern)
    for path in distribution.rglob("*.py")
    if "tests" not in path.parts and not path.name.startswith("test_")
]
PUBLIC = {"stacx_core", "stacx_core.objectives", "stacx_core.testing"}


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize("path", ALGORITHM_BLIND, ids=names(ALGORITHM_BLIND))
def test_the_engine_names_no_algorithm(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert texts & RECIPES == set()


@pytest.mark.parametrize("path", OUTSIDERS, ids=names(OUTSIDERS))
def test_a_plugin_imports_only_public_names(path: Path) -> None:
    package = path.relative_to(ROOT).parts[2].removesuffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    ours = {name for name in imported(tree) if name.startswith("stacx_") and name.partition(".")[0] != package}
    assert ours <= PUBLIC


def test_the_import_linter_knows_every_plugin() -> None:
    packages = {path.name for path in ROOT.glob("plugins/*/stacx_plugin_*") if path.is_dir()}
    linter = PROJECT["tool"]["importlinter"]
    assert set(linter["root_packages"]) == {"stacx_core", *packages}
    covered = {contract["name"]: contract for contract in linter["contracts"]}
    assert set(covered["The host knows no plugin"]["forbidden_modules"]) == packages
    assert set(covered["A plugin uses the public names of the host"]["source_modules"]) == packages
    assert set(covered["A plugin never imports another"]["modules"]) == packages


def test_doctor_knows_every_extra() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(extras)
    for extra, distribution in EXTRAS.items():
        assert any(requirement.startswith(f"{distribution}>=") for requirement in extras[extra])
