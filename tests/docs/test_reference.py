"""The generated reference is what the code says, and every hook is in it with its exact arguments."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

from stacx_core import hookspecs
from stacx_core.batch_keys import BATCH_KEYS
from stacx_core.cli import main
from stacx_core.host_knobs import HOST_KNOBS
from stacx_core.knobs import PLUGIN_VARIABLES

DOCS = Path(__file__).parents[2] / "docs"
HOOKS = [name for name, value in vars(hookspecs).items() if hasattr(value, f"{hookspecs.PROJECT}_spec")]
LABELS = ("When", "How often", "Process", "Wins", "Returns", "Shapes")


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_up_to_date(generate: ModuleType) -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md")}
    assert written == generate.pages(), "run python docs/generate.py"


def test_every_output_is_what_the_command_prints(generate: ModuleType) -> None:
    explanations = generate.explanations()
    assert sum(len(generate.OUTPUT.findall(text)) for text in explanations.values()) >= 6
    assert {path: path.read_text(encoding="utf-8") for path in explanations} == explanations, "run docs/generate.py"


def test_an_error_in_an_explanation_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    text = (DOCS / "explanation" / "scaling.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```console\n\$ stacx ([^\n]+)\n(.*?)^```$", text, re.M | re.S)
    assert blocks
    for arguments, printed in blocks:
        assert main(arguments.split()) == 2
        assert capsys.readouterr().err == printed


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_is_documented_with_its_arguments_and_its_contract(name: str) -> None:
    text = (DOCS / "reference" / "hooks.md").read_text(encoding="utf-8")
    (section,) = re.findall(rf"^## {name}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    (arguments,) = re.findall(rf"def {name}\((.*?)\) ->", section, re.S)
    documented = re.findall(r"^ +(\w+):", arguments, re.M)
    assert documented == list(inspect.signature(getattr(hookspecs, name)).parameters)
    assert [label for label in LABELS if f"**{label}**" not in section] == []
    assert [argument for argument in documented if f"- `{argument}`:" not in section] == []


def test_nothing_is_left_out_of_the_tables() -> None:
    knobs = (DOCS / "reference" / "knobs.md").read_text(encoding="utf-8")
    keys = (DOCS / "reference" / "batch-keys.md").read_text(encoding="utf-8")
    assert [knob.flag for knob in HOST_KNOBS if f"| `{knob.flag}` | `{knob.env}` |" not in knobs] == []
    assert [name for name in BATCH_KEYS if f"| `{name}` |" not in keys] == []


def test_no_variable_but_those_of_knobs_wears_their_prefix() -> None:
    """``stacx train`` refuses one that it does not know, so that whoever exports it for the tests could not run it."""
    root = DOCS.parent
    kinds = ("noxfile.py", "tests/**/*.py", "scripts/**/*.py", "scripts/**/*.sh", "scripts/**/variables.txt")
    files = [file for kind in kinds for file in root.glob(kind)]
    used = r'env(?:iron)?(?:\.get\(|\[)"(STACX_\w+)|\$\{?(STACX_\w+)'
    found = {name for file in files for pair in re.findall(used, file.read_text(encoding="utf-8")) for name in pair}
    assert "STACX_SGLANG_PYTHON" in found
    assert found <= {"", *PLUGIN_VARIABLES, *(knob.env for knob in HOST_KNOBS)}
