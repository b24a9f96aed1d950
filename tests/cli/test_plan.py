"""`stacx plan`: what it prints, as a table and as JSON, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stacx_core.cli import main

FOUR_B = ("plan", "--model", "qwen3-4b")


def run(capsys: Any, *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return int(code), captured.out, captured.err


def test_a_layout_is_planned(capsys: Any) -> None:
    code, out, err = run(capsys, *FOUR_B, "--gpus", "8", "--tp", "2", "--sequence-parallel")
    assert (code, err) == (0, "")
    assert "qwen3-4b: 4,022,468,096 parameters" in out
    assert "TP2 DP4 SP: 8 GPU(s)" in out
    assert "optimizer states" in out
    assert "nothing was measured" in out


def test_without_a_size_the_best_layouts_are_searched(capsys: Any) -> None:
    code, out, _ = run(capsys, *FOUR_B, "--num-nodes", "2", "--best", "3", "--json")
    plans = json.loads(out)["plans"]
    rates = [plan["tokens_per_second"] for plan in plans]
    assert code == 0
    assert len(plans) == 3
    assert rates == sorted(rates, reverse=True)
    assert {plan["layout"]["gpus"] for plan in plans} == {16}


def test_the_document_adds_up(capsys: Any) -> None:
    sizes = ("--gpus", "16", "--tp", "2", "--pp", "2", "--cp", "2", "--sequence-parallel", "--json")
    document = json.loads(run(capsys, *FOUR_B, *sizes)[1])
    (plan,) = document["plans"]
    memory, seconds = plan["memory"], plan["seconds"]
    assert document["measured"] is False
    assert memory.pop("total") == sum(memory.values())
    assert seconds.pop("total") == pytest.approx(sum(seconds.values()))
    assert [t["group"] for t in plan["traffic"]] == ["tensor", "context", "pipeline", "data", "tied embedding"]


def test_scaling_goes_from_one_to_1024_gpus(capsys: Any) -> None:
    code, out, _ = run(capsys, *FOUR_B, "--tp", "8", "--sequence-parallel", "--scaling")
    rows = [line.split() for line in out.splitlines() if line.split()[:1] and line.split()[0][0].isdigit()]
    assert code == 0
    assert rows[0][:3] == ["1", "none", "fits"]
    assert [row[0] for row in rows[:11]] == ["1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1,024"]
    assert "1: 1 process(es) do not divide into replicas of 8" in out


def test_a_wide_tensor_group_is_warned_of(capsys: Any) -> None:
    sizes = ("--gpus", "8", "--tp", "8", "--sequence-parallel", "--num-gpus-per-node", "4")
    assert "warning: --tensor-model-parallel-size 8 is wider than a node" in run(capsys, *FOUR_B, *sizes)[1]


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--gpus", "6", "--tp", "3"], "--tensor-model-parallel-size 3 does not divide the 32 attention heads",
         "--tensor-model-parallel-size 3 does not divide the 8 KV heads of qwen3-4b; use 1, 2, 4, 8"),
        (["--tp", "1"], "DP8 needs 119.6 GB of the 80 GB of a GPU; the largest part are optimizer states",
         "with --use-distributed-optimizer it needs 77.4 GB"),
        (["--gpus", "1"], "no layout of qwen3-4b on 1 GPU(s) fits into 80 GB", "2 GPUs are enough"),
        (["--gpu-memory-gb", "nan"], "nan is no finite number", ""),
        (["--inter-node-bandwidth", "inf"], "inf is no finite number", ""),
        (["--gpus", "8", "--num-nodes", "1"], "both say how many GPUs there are", "stacx plan --help"),
        (["--scaling", "--gpus", "8"], "--gpus has no effect with --scaling", "stacx plan --help"),
        (["--tp", "2", "--best", "3"], "--best has no effect with the sizes of a layout", "stacx plan --help"),
        (["--utilisation", "2"], "2.0 is not in the range", "stacx plan --help"),
        (["--tensor-parallel-size", "2"], "no option is named", "--tensor-model-parallel-size"),
    ],
)  # fmt: skip
def test_what_is_refused(capsys: Any, arguments: list[str], message: str, hint: str) -> None:
    code, out, err = run(capsys, *FOUR_B, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert hint in err


def test_an_unknown_model_is_one_json_error(capsys: Any) -> None:
    code, out, _ = run(capsys, "plan", "--model", "qwen4", "--json")
    error = json.loads(out)["error"]
    assert (code, error["type"]) == (2, "ModelError")
    assert "qwen4/config.json" in error["message"]
