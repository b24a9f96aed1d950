"""What a package with a modality of its own tests: its numbers on paper, the checks, and that it trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from stacx_plugin_regression.line import Line, SquaredError
from stacx_plugin_regression.recipe import least_squares

from stacx_core import Args
from stacx_core.cli import main
from stacx_core.testing import RecipeConformance


class TestLeastSquares(RecipeConformance):
    recipe = least_squares()


def test_the_loss_of_three_points() -> None:
    """(1 - 0)^2 + (4 - 1)^2 = 10, and nothing from the point with mask 0."""
    batch = {
        "targets": [torch.tensor([0.0, float("nan")]), torch.tensor([1.0])],
        "loss_masks": [torch.tensor([1, 0]), torch.tensor([1])],
    }
    output = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    kept = torch.tensor([1.0, 0.0, 1.0])
    loss, metrics = SquaredError(Args.of()).compute_loss(output, batch, lambda x: (x.nan_to_num() * kept).sum())
    assert float(loss.detach()) == 10.0
    assert metrics["absolute_error"].tolist() == [4.0, 2.0]


def test_a_line_is_kept(tmp_path: Path) -> None:
    line = Line()
    line.save_pretrained(tmp_path / "line")
    again = Line.from_pretrained(str(tmp_path / "line"))
    assert torch.equal(again.weight, line.weight)


def test_the_command_trains_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From zeros, 100 steps on y = a - c leave less than a hundredth of the error."""
    monkeypatch.setattr("stacx_core.plugins._current", None)
    line = Line()
    torch.nn.init.zeros_(line.weight)
    line.save_pretrained(tmp_path / "start")
    inputs = torch.randn(8, 5, 3, generator=torch.Generator().manual_seed(0))
    rows = ({"inputs": x.tolist(), "targets": (x[:, 0] - x[:, 2]).tolist()} for x in inputs)
    (tmp_path / "points.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    options = {
        "--algorithm": "least_squares",
        "--hf-checkpoint": tmp_path / "start",
        "--prompt-data": tmp_path / "points.jsonl",
        "--eval-prompt-data": tmp_path / "points.jsonl",
        "--rollout-batch-size": 8,
        "--num-rollout": 100,
        "--optimizer": "sgd",
        "--lr": 0.1,
        "--lr-decay-style": "constant",
        "--output-dir": tmp_path / "run",
    }
    assert main(["train", *(str(part) for option in options.items() for part in option)]) == 0
    lines = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    errors = [line["eval/squared_error"] for line in lines if "eval/squared_error" in line]
    assert errors[-1] < 0.01 * errors[0]
