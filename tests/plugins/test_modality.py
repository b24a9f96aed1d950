"""A recipe whose samples are no tokens goes through the same commands: the example of linear regression, and more."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from stacx_core.recipes import REGISTRY, Registration

EXAMPLE = Path(__file__).parents[2] / "examples" / "stacx-plugin-regression"
LINES = Path(__file__).with_name("lines.py")
OURS = ("stacx_plugin_regression", "lines_of_tests")


@pytest.fixture
def site_of_lines(tmp_path: Path) -> Path:
    """A folder with the example package and the recipes of `lines.py`, as if they were installed."""
    folder = tmp_path / "site"
    shutil.copytree(EXAMPLE / OURS[0], folder / OURS[0], ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(LINES, folder / "lines_of_tests.py")
    for name, target in (("regression", f"{OURS[0]}.recipe"), ("lines", OURS[1])):
        info = folder / f"stacx_plugin_{name}-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: stacx-plugin-{name}\nVersion: 0.1.0\n")
        (info / "entry_points.txt").write_text(f"[stacx.recipes]\n{name} = {target}\n")
    return folder


@pytest.fixture
def installed(site_of_lines: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The same in this process, which forgets what it had of it before, and remembers that alone afterwards."""
    before = taken_out()
    monkeypatch.syspath_prepend(str(site_of_lines))
    yield
    taken_out()
    sys.modules.update(before[0])
    REGISTRY.registrations += before[1]


def taken_out() -> tuple[dict[str, ModuleType], list[Registration]]:
    """Forget the modules of this test and the recipes that they registered, and return both."""
    modules = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in OURS}
    recipes = [known for known in REGISTRY.registrations if known.module.partition(".")[0] in OURS]
    for known in recipes:
        REGISTRY.registrations.remove(known)
    return modules, recipes


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """A line of zeros."""
    folder = tmp_path / "start"
    folder.mkdir()
    torch.save({"weight": torch.zeros(1, 3), "bias": torch.zeros(1)}, folder / "line.pt")
    return folder


@pytest.fixture
def points(tmp_path: Path) -> Path:
    """Four rows with y = 2 a - b + 0.5 c, of one to three points."""
    inputs = [[[1, 0, 0]], [[0, 1, 0], [0, 0, 2]], [[1, 1, 1], [2, 0, 0], [0, 2, 2]], [[1, 2, 0], [0, 0, 1]]]
    path = tmp_path / "points.jsonl"
    rows = ({"inputs": row, "targets": [2 * a - b + 0.5 * c for a, b, c in row]} for row in inputs)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def fit(installed: None, stacx: Any, start: Path, points: Path, tmp_path: Path) -> Callable[..., Any]:
    """`stacx train` of a recipe on the points by plain gradient descent."""

    def run(recipe: str, *arguments: str | Path, output: str = "run", **environment: str) -> Any:
        given = ["--algorithm", recipe, "--hf-checkpoint", start, "--prompt-data", points]
        given += ["--rollout-batch-size", "4", "--optimizer", "sgd", "--lr", "0.1", "--lr-decay-style", "constant"]
        given += ["--clip-grad", "100"]
        return stacx("train", *given, "--output-dir", tmp_path / output, *arguments, **environment)

    return run


def weights(folder: Path, role: str = "line") -> dict[str, Any]:
    return dict(torch.load(folder / "checkpoints" / "latest" / role / "line.pt", weights_only=True))


def flat(folder: Path, role: str = "line") -> list[float]:
    """The three weights and the bias."""
    kept = weights(folder, role)
    return [*kept["weight"][0].tolist(), *kept["bias"].tolist()]


def test_one_step_on_one_point_by_hand(fit: Any, tmp_path: Path, metrics: Any) -> None:
    """f(1, 0, 0) = 0 and y = 2: loss 4, gradient -4 of a's weight and of the bias, so lr 0.25 makes both 1."""
    done = fit("least_squares", "--rollout-batch-size", "1", "--num-rollout", "1", "--lr", "0.25")
    assert done.code == 0, done.err
    (line,) = metrics(tmp_path / "run")
    assert line["train/loss"] == 4.0
    assert line["train/absolute_error"] == 2.0
    assert line["rollout/response_points"] == line["rollout/loss_points"] == 1.0
    assert flat(tmp_path / "run") == pytest.approx([1.0, 0.0, 0.0, 1.0])
    assert not any("token" in name for name in line)


def test_it_is_evaluated_and_learns(fit: Any, points: Path, tmp_path: Path, metrics: Any) -> None:
    done = fit("least_squares", "--num-rollout", "200", "--eval-prompt-data", points, "--eval-interval", "100")
    assert done.code == 0, done.err
    errors = [line["eval/squared_error"] for line in metrics(tmp_path / "run") if "eval/squared_error" in line]
    assert errors[0] == pytest.approx((4 + 1 + 1 + 1.5**2 + 16 + 1 + 0 + 0.25) / 8)
    assert errors == sorted(errors, reverse=True)
    assert flat(tmp_path / "run") == pytest.approx([2.0, -1.0, 0.5, 0.0], abs=0.05)


@pytest.mark.parametrize("recipe", ["least_squares", "averaged_line", "two_lines"])
def test_a_resumed_run_equals_an_unbroken_one(recipe: str, fit: Any, tmp_path: Path, metrics: Any) -> None:
    given = [recipe, "--input-noise", "0.5", "--optimizer", "adam", "--rollout-batch-size", "3"]
    given += ["--second-every", "2"] if recipe == "two_lines" else []
    assert fit(*given, "--num-rollout", "5", output="whole").code == 0
    assert fit(*given, "--num-rollout", "3", output="broken").code == 0
    resumed = fit(*given, "--num-rollout", "5", "--resume", output="broken")
    assert resumed.code == 0, resumed.err
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert metrics(broken) == metrics(whole)
    roles = [path.name for path in (whole / "checkpoints" / "latest").iterdir() if path.is_dir()]
    assert len(roles) == (1 if recipe == "least_squares" else 2)
    for role in roles:
        assert flat(broken, role) == flat(whole, role)


def test_knobs_that_it_does_not_use_are_refused(fit: Any, points: Path, tmp_path: Path) -> None:
    says = "recipes of language models"
    flag = fit("least_squares", "--num-rollout", "1", "--rollout-max-response-len", "4")
    assert (flag.code, "--rollout-max-response-len" in flag.err, says in flag.err) == (2, True, True)
    variable = fit("least_squares", "--num-rollout", "1", STACX_ROLLOUT_TEMPERATURE="0.5")
    assert (variable.code, "STACX_ROLLOUT_TEMPERATURE" in variable.err, says in variable.err) == (2, True, True)
    (tmp_path / "run.toml").write_text("[rollout]\nrollout_temperature = 0.5\n")
    key = fit("least_squares", "--num-rollout", "1", "--config", tmp_path / "run.toml")
    assert (key.code, "rollout.rollout_temperature" in key.err, says in key.err) == (2, True, True)


def test_language_recipes_refuse_its_knobs(installed: None, stacx: Any) -> None:
    done = stacx("train", "--algorithm", "sft", "--input-noise", "0.5")
    assert done.code == 2
    assert "--input-noise is a knob of recipes" in done.err
    assert "'least_squares'" in done.err


def test_errors_of_data_and_model_name_what_is_wrong(fit: Any, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    done = fit("least_squares", "--num-rollout", "1", "--hf-checkpoint", empty)
    assert (done.code, "has no line.pt" in done.err) == (2, True)
    (tmp_path / "bad.jsonl").write_text('{"inputs": [[1, 2, 3]], "targets": [1, 2]}\n')
    done = fit("least_squares", "--num-rollout", "1", "--prompt-data", tmp_path / "bad.jsonl", "--dry-run")
    assert (done.code, "line 1: inputs of shape [1, 3] for 2 targets" in done.err) == (2, True)


def test_it_passes_the_checks(installed: None, stacx: Any) -> None:
    done = stacx("check", "least_squares", "--json")
    results = {result["check"]: result for result in json.loads(done.out)["recipes"][0]["results"]}
    assert {name: r for name, r in results.items() if r["status"] == "fail"} == {}
    assert done.code == 0
    for name in ("masked_rows", "siblings", "sample_order", "data_parallel", "batch_keys", "deterministic"):
        assert results[name]["status"] == "pass", name
    for name in ("prompt_tokens", "last_token", "temperature", "preference", "clip_side", "policy_gradient"):
        assert (results[name]["status"], results[name]["reason"]) == ("not applicable", "the samples have no tokens")


def test_the_parallel_check_is_refused_by_name(installed: None, stacx: Any) -> None:
    done = stacx("check", "least_squares", "--parallel")
    assert done.code == 2
    assert "recipe 'least_squares' is of modality 'points'" in done.err


def test_a_role_that_is_trained_now_and_then(fit: Any, tmp_path: Path, metrics: Any) -> None:
    done = fit("two_lines", "--num-rollout", "4", "--second-every", "2")
    assert done.code == 0, done.err
    lines = metrics(tmp_path / "run")
    assert ["train/second/loss" in line for line in lines] == [False, True, False, True]
    assert [line["train/first/updates"] for line in lines] == [1, 2, 3, 4]
    assert lines[-1]["train/second/updates"] == 2
    # After two updates from the same zeros the second line is where the first one was.
    assert lines[1]["train/second/loss"] == lines[0]["train/first/loss"]
    assert lines[3]["train/second/loss"] == lines[1]["train/first/loss"]


def test_a_role_that_would_never_be_trained_is_refused(fit: Any) -> None:
    done = fit("two_lines", "--num-rollout", "4", "--second-every", "5")
    assert done.code == 2
    assert "--second-every 5 leaves none of 4 rollouts to train role 'second'" in done.err


def test_a_role_that_does_not_take_part(fit: Any, tmp_path: Path, metrics: Any) -> None:
    done = fit("two_lines", "--num-rollout", "2", "--no-second")
    assert done.code == 0, done.err
    assert not (tmp_path / "run" / "checkpoints" / "latest" / "second").exists()
    assert [line["train/updates"] for line in metrics(tmp_path / "run")] == [1, 2]


def test_a_role_that_follows_another_is_what_predicts(fit: Any, tmp_path: Path, metrics: Any) -> None:
    """One step takes the line to (1, 0, 0, 1) and the average half-way there, 1 off at (1, 0, 0) where it was 2 off."""
    done = fit("averaged_line", "--rollout-batch-size", "1", "--num-rollout", "1", "--lr", "0.25")
    assert done.code == 0, done.err
    run = tmp_path / "run"
    assert flat(run) == pytest.approx([1.0, 0.0, 0.0, 1.0])
    assert flat(run, "average") == pytest.approx([0.5, 0.0, 0.0, 0.5])
    points = tmp_path / "one.jsonl"
    points.write_text('{"inputs": [[1, 0, 0]], "targets": [2]}\n')
    given = ["--prompt-data", points, "--eval-prompt-data", points, "--rollout-batch-size", "1", "--lr", "0.25"]
    done = fit("averaged_line", *given, "--num-rollout", "2", "--eval-interval", "1", output="other")
    assert done.code == 0, done.err
    before, first, second = metrics(tmp_path / "other")
    assert [before["eval/squared_error"], first["eval/squared_error"]] == pytest.approx([4.0, 1.0])
    assert [first["rollout/engine_error"], second["rollout/engine_error"]] == pytest.approx([2.0, 1.0])


def test_samples_of_a_run_and_of_a_model(fit: Any, stacx: Any, start: Path, points: Path, tmp_path: Path) -> None:
    """`stacx sample` takes recipe and data from the run, and the role that predicts from its newest checkpoint."""
    assert fit("averaged_line", "--rollout-batch-size", "1", "--num-rollout", "1", "--lr", "0.25").code == 0
    for place in ("", "checkpoints/latest", "checkpoints/latest/average"):
        done = stacx("sample", tmp_path / "run" / place, "--output", tmp_path / "said.jsonl", "--count", "5")
        assert done.code == 0, done.err
        said = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()]
        assert said == [[1.0], [0.5, 0.5], [1.0, 1.5, 0.5], [1.0, 0.5], [1.0]]
    given = ["--algorithm", "least_squares", "--prompt-data", points, "--count", "1"]
    assert stacx("sample", start, "--output", tmp_path / "said.jsonl", *given).code == 0
    assert json.loads((tmp_path / "said.jsonl").read_text()) == [0.0]


def test_listing_it_loads_no_torch(site_of_lines: Path, site: Any) -> None:
    path = os.pathsep.join([str(site_of_lines), *sys.path])
    program = "import sys, stacx_core; stacx_core.TRAINING_CONFIGS['least_squares']; print('torch' in sys.modules)"
    assert site.python("-c", program, PYTHONPATH=path, STACX_PLUGINS="regression").out.strip() == "False"
    done = site.stacx("show-recipe", "least_squares", "--json", PYTHONPATH=path)
    assert done.code == 0, done.err
    flags = {knob["flag"] for knob in done.document["knobs"]}
    assert "--input-noise" in flags
