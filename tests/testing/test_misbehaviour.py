"""Plugins that exit, hang, or write where the report goes: each is a failure of its own recipe and of no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stacx_core
from stacx_core.config import TrainingConfig
from stacx_core.testing.ranks import Ranks
from stacx_core.testing.results import CHECKS, CheckResult
from stacx_core.testing.suite import Suite


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(seconds=8.0) as running:
        yield running


def run(config: TrainingConfig, check: str, ranks: Ranks, seconds: float = 60.0) -> CheckResult:
    return Suite(config, ranks, seconds).run(CHECKS[check])


EXIT = """
def compute_loss(self, model_output, batch, reducer):
    raise SystemExit(0)
"""

IN_RANK_1 = """
def compute_loss(self, model_output, batch, reducer):
    import os, sys, time
    import torch.distributed
    if torch.distributed.is_initialized() and torch.distributed.get_rank() == 1:
        {act}
    return super().compute_loss(model_output, batch, reducer)
"""


def test_a_loss_that_exits_fails(plant: Callable[..., TrainingConfig], ranks: Ranks) -> None:
    result = run(plant("exit_loss", EXIT), "loss_value", ranks)
    assert (result.status, result.reason) == ("fail", "SystemExit: 0")
    assert "raised in compute_loss, exit_loss.py" in result.where


def test_a_stage_that_exits_fails(plant: Callable[..., TrainingConfig], ranks: Ranks) -> None:
    stage = """
    def stage(batch, args):
        raise SystemExit("done")
    """
    result = run(plant("exit_stage", stage=stage), "loss_value", ranks)
    assert (result.status, result.reason) == ("fail", "SystemExit: done")


@pytest.mark.parametrize(
    ("act", "says"),
    [("sys.exit(3)", "SystemExit: 3"), ("os._exit(3)", "rank 1 of 2"), ("time.sleep(600)", "hangs: the 2 ranks")],
)
def test_a_rank_that_ends_or_hangs_fails_and_the_next_recipe_gets_new_ranks(
    plant: Callable[..., TrainingConfig], ranks: Ranks, act: str, says: str
) -> None:
    name = "rank_" + act.replace(".", "_").split("(")[0]
    result = run(plant(name, IN_RANK_1.format(act=act)), "data_parallel", ranks)
    assert result.status == "fail"
    assert says in result.reason
    assert run(plant(f"after_{name}"), "data_parallel", ranks).status == "pass"


def test_a_loss_that_never_returns_fails_once(plant: Callable[..., TrainingConfig], ranks: Ranks) -> None:
    loss = """
    def compute_loss(self, model_output, batch, reducer):
        while True:
            try:
                pass
            except Exception:
                pass
    """
    suite = Suite(plant("hanging", loss), ranks, seconds=1.0)
    result = suite.run(CHECKS["loss_value"])
    assert (result.status, result.reason) == ("fail", "hangs: it did not return within 1 s")
    other = suite.run(CHECKS["metrics"])
    assert (other.status, other.reason) == ("not applicable", "the recipe hangs; see loss_value")


def test_the_report_is_json_whatever_a_plugin_writes(
    tmp_path: Path, sound_source: str, make_source: Callable[..., str]
) -> None:
    loss = """
    def compute_loss(self, model_output, batch, reducer):
        import os
        os.write(1, b"NOISE")
        print("NOISE")
        raise SystemExit(0)
    """
    (tmp_path / "sound.py").write_text(sound_source)
    (tmp_path / "noisy.py").write_text("print('NOISE')\n" + make_source("noisy", "noisy", "Writes.", loss))
    info = tmp_path / "noisy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: noisy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[stacx.recipes]\nnoisy = noisy\n")
    done = subprocess.run(
        [sys.executable, "-m", "stacx_core", "check", "noisy", "--json", "--plugins", "noisy"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(stacx_core.__file__).parents[1])])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1
    (page,) = json.loads(done.stdout)["recipes"]
    assert next(r for r in page["results"] if r["check"] == "loss_value")["reason"] == "SystemExit: 0"
    assert "checking noisy" in done.stderr


def crash_for_token_mean(args: Any) -> None:
    if args.loss_aggregation == "token_mean":
        raise RuntimeError("planted")


def leave(args: Any) -> None:
    raise SystemExit(0)


@pytest.mark.parametrize(
    ("check_args", "says", "others"),
    [
        (crash_for_token_mean, "under --loss-aggregation token_mean, check_args raises RuntimeError: planted", "pass"),
        (leave, "under the defaults, check_args raises SystemExit: 0", "not applicable"),
    ],
)
def test_check_args_that_crashes_is_named_with_the_arguments(
    plant: Callable[..., TrainingConfig], ranks: Ranks, check_args: Callable[[Any], None], says: str, others: str
) -> None:
    config = plant(f"args_{check_args.__name__}", check_args=check_args)
    result = run(config, "default_arguments", ranks)
    assert result.status == "fail"
    assert says in result.reason
    assert run(config, "masked_rows", ranks).status == others


@pytest.mark.parametrize(
    ("name", "returned", "says"),
    [
        ("nothing", "None", "returns NoneType, not a dictionary of metrics"),
        ("text", "{'x': 'text'}", "returns 'x': 'text'; metrics are finite numbers"),
        ("not_a_number", "{'x': math.nan}", "returns 'x': nan"),
    ],
)
def test_a_stage_must_return_numbers(
    plant: Callable[..., TrainingConfig], ranks: Ranks, name: str, returned: str, says: str
) -> None:
    stage = f"""
    def stage(batch, args):
        sound.group_advantages(batch, args)
        return {returned}
    """
    result = run(plant(f"returns_{name}", stage=stage), "metrics", ranks)
    assert result.status == "fail"
    assert f"stage returns_{name}:stage of role 'policy' {says}" in result.reason


def test_a_stage_must_keep_lists(plant: Callable[..., TrainingConfig], ranks: Ranks) -> None:
    stage = """
    def stage(batch, args):
        batch["rewards"] = torch.tensor(batch["rewards"])
        return sound.group_advantages(batch, args)
    """
    assert "makes batch key 'rewards' a Tensor" in run(plant("tensor_rewards", stage=stage), "metrics", ranks).reason


@pytest.mark.parametrize(
    ("name", "returned", "says"),
    [
        ("nothing", "None", "waives() returns NoneType"),
        ("unknown", "{'sibling': 'why'}", "waives() names 'sibling'"),
        ("not_waivable", "{'masked_rows': 'why'}", "waives() names 'masked_rows'"),
        ("no_reason", "{'siblings': ''}", "gives '' as the reason"),
    ],
)
def test_waives_must_name_what_can_be_waived(
    plant: Callable[..., TrainingConfig], ranks: Ranks, name: str, returned: str, says: str
) -> None:
    result = run(plant(f"waives_{name}", f"def waives(self):\n    return {returned}"), "structure", ranks)
    assert result.status == "fail"
    assert says in result.reason
