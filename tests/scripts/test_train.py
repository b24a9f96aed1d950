"""The training scripts: they parse, print commands of known flags, and their layouts fit."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from stacx_core.cli import main
from stacx_core.host_knobs import HOST_KNOBS
from stacx_core.planning.shape import WELL_KNOWN

SCRIPTS = Path(__file__).parents[2] / "scripts" / "train"
MODELS = {"4b": "qwen3-4b", "32b": "qwen3-32b", "235b": "qwen3-235b-a22b"}
BASH = shutil.which("bash") or "bash"


def run_script(name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PRINT": "1", "SGLANG_URL": "http://127.0.0.1:30000", **variables}
    command = [BASH, str(SCRIPTS / name), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.sh")), ids=lambda path: path.name)
def test_bash_accepts_the_script(path: Path) -> None:
    subprocess.run([BASH, "-n", str(path)], check=True, timeout=60)


@pytest.mark.parametrize(
    ("size", "nodes"), [("4b", 1), ("32b", 1), ("4b", 2), ("32b", 4), ("32b", 16), ("235b", 8), ("235b", 16)]
)
def test_a_layout_fits_and_is_trained_with_known_flags(size: str, nodes: int, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(WELL_KNOWN[MODELS[size]]), encoding="utf-8")
    rest = (str(tmp_path), "train.jsonl", "out")
    if nodes == 1:
        done = run_script("one_node.sh", size, *rest)
    else:
        done = run_script("several_nodes.sh", "train", size, str(nodes), *rest)
    assert done.returncode == 0, done.stderr
    plan, train = (shlex.split(line) for line in done.stdout.splitlines())
    assert main([*plan[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plans"][0]["layout"]["gpus"] == 8 * nodes
    assert {word for word in train if word.startswith("--")} <= {knob.flag for knob in HOST_KNOBS}
    planned = plan[plan.index("--tensor-model-parallel-size") :]
    assert shlex.join(planned) in shlex.join(train)


def test_the_nodes_of_a_cluster() -> None:
    assert run_script("several_nodes.sh", "head").stdout.split()[:3] == ["ray", "start", "--head"]
    worker = run_script("several_nodes.sh", "worker", "10.0.0.1").stdout.split()
    assert worker[:4] == ["ray", "start", "--address", "10.0.0.1:6379"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("one_node.sh", "4b"), "usage: one_node.sh"),
        (("several_nodes.sh",), "usage: several_nodes.sh"),
        (("one_node.sh", "7b", "m", "d", "o"), "no layout for size '7b'; there are 4b, 32b and 235b"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], message: str) -> None:
    done = run_script(*arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_servers_must_be_named() -> None:
    done = run_script("one_node.sh", "4b", "m", "d", "o", SGLANG_URL="")
    assert done.returncode != 0
    assert "SGLANG_URL: give the URLs of SGLang servers" in done.stderr
