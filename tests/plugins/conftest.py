"""A folder of made-up distributions, and the `stacx` command run in a process that can see it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import stacx_core

PACKAGES = Path(stacx_core.__file__).parents[1]

GOOD = """
from stacx_core import ModelRole, TrainingConfig, recipe

@recipe("{name}")
def build():
    role = ModelRole("policy", "{module}:Loss", sync_to_rollout=True)
    return TrainingConfig("{name}", (role,), description="fine")
"""


@dataclass(frozen=True)
class Finished:
    """What a process left behind."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)

    def rows(self, key: str = "name") -> dict[str, dict[str, Any]]:
        """The rows of a listing by one of their fields."""
        return {row[key]: row for row in self.document}


@dataclass(frozen=True)
class Site:
    """A folder on the path of the processes it starts."""

    folder: Path

    def add(
        self,
        distribution: str,
        source: str | None,
        *,
        entry: str = "",
        version: str = "1.0",
        module: str = "",
        metadata: bool = True,
    ) -> str:
        """Install a distribution of one module, without it for `source` None; return the module's name."""
        module = module or distribution.replace("-", "_")
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        if metadata:
            text = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
            (info / "METADATA").write_text(text)
        (info / "entry_points.txt").write_text(f"[stacx.recipes]\n{entry or distribution} = {module}\n")
        if source is not None:
            (self.folder / f"{module}.py").write_text(dedent(source))
        return module

    def add_good(self, distribution: str, recipe: str, **options: Any) -> None:
        """Install a plugin with one sound recipe."""
        module = options.get("module") or distribution.replace("-", "_")
        self.add(distribution, GOOD.format(name=recipe, module=module), **options)

    def python(self, *arguments: str, **environment: str) -> Finished:
        """Run Python with this folder and the tested stacx_core on its path."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith("STACX_")}
        path = os.pathsep.join([str(self.folder), str(PACKAGES)])
        done = subprocess.run(
            [sys.executable, *arguments],
            env={**clean, "PYTHONPATH": path, **environment},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def stacx(self, *arguments: str, **environment: str) -> Finished:
        """Run the `stacx` command."""
        return self.python("-m", "stacx_core", *arguments, **environment)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """An empty site."""
    return Site(tmp_path)
