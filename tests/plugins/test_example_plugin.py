"""The example package of one module and one pyproject.toml is a plugin like any other."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[2] / "examples" / "stacx-plugin-reinforce"
PROJECT = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]


def test_it_is_found_by_its_entry_point_and_imports_no_torch(site: Any) -> None:
    ((entry, target),) = PROJECT["entry-points"]["stacx.recipes"].items()
    source = (EXAMPLE / f"{target}.py").read_text()
    site.add(PROJECT["name"], source, entry=entry, module=target, version=PROJECT["version"])
    page = site.stacx("show-recipe", "reinforce", "--json").document
    assert (page["distribution"], page["version"]) == ("stacx-plugin-reinforce", "0.1.0")
    (stage,) = page["advantage_pipeline"]
    assert (stage["role"], stage["stage"]) == ("policy", "stacx_plugin_reinforce:compute_advantages")
    assert stage["does"].startswith("Add `advantages`")
    assert page["knobs"][0]["flag"] == "--reinforce-baseline"
    assert page["knobs"][0]["origin"] == "stacx-plugin-reinforce"
    program = "import sys, stacx_core; stacx_core.TRAINING_CONFIGS['reinforce']; print('torch' in sys.modules)"
    assert site.python("-c", program).out.strip() == "False"
