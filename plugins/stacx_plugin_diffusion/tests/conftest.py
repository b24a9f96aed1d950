"""Tiny models of the digits, and what they are asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import stacx_core
import stacx_plugin_diffusion
from stacx_plugin_diffusion.digits import write_digits_checkpoint
from stacx_plugin_diffusion.models import FlowModel, load_flow_model

TINY = {
    "small": {"layers": 1, "dim": 32},
    "sd3": {"num_layers": 1, "num_attention_heads": 2, "caption_projection_dim": 32},
    "flux": {"num_layers": 1, "num_single_layers": 1, "num_attention_heads": 2},
}


@pytest.fixture(scope="session")
def digits_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of an untrained model of each network."""
    root = tmp_path_factory.mktemp("digits")
    return {name: write_digits_checkpoint(root / name, name, **sizes) for name, sizes in TINY.items()}


@pytest.fixture(scope="session")
def digits_checkpoint(digits_checkpoints: dict[str, Path]) -> Path:
    """The smallest of them, a SmallDiT of one layer and width 32."""
    return digits_checkpoints["small"]


@pytest.fixture(params=list(TINY))
def network(request: pytest.FixtureRequest) -> str:
    """Each kind of network in turn."""
    return request.param


@pytest.fixture
def load() -> Callable[..., FlowModel]:
    """Load a checkpoint on the CPU, in fp32 unless told otherwise."""

    def run(folder: Path, dtype: torch.dtype = torch.float32) -> FlowModel:
        return load_flow_model(folder, dtype, "cpu")

    return run


@pytest.fixture
def velocities() -> Callable[..., Tensor]:
    """The velocities of two fixed latents at two noise levels, for two prompts."""

    def run(model: FlowModel, prompts: tuple[str, str] = ("three", "eight"), sigma: tuple[float, float] = (0.25, 0.8)):
        x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(3))
        rows = model.encode(prompts)
        cond = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        return model.predict_velocity(x, torch.tensor(sigma), cond)

    return run


@dataclass(frozen=True)
class Finished:
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def stacx(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Finished]:
    """Run the `stacx` command in this process, without STACX_ variables of its environment."""
    from stacx_core.cli import main

    for variable in [name for name in os.environ if name.startswith("STACX_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setattr("stacx_core.plugins._current", None)

    def run(*arguments: str | Path, **environment: str) -> Finished:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Finished(int(code), captured.out, captured.err)

    return run


@pytest.fixture
def child() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python with arguments in a process of its own that finds the tested packages."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("STACX_")}
        homes = [str(Path(module.__file__ or "").parents[1]) for module in (stacx_core, stacx_plugin_diffusion)]
        return subprocess.run(
            [sys.executable, *arguments],
            env={**clean, "PYTHONPATH": os.pathsep.join([*homes, *sys.path]), **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four digits, one a line."""
    path = tmp_path_factory.mktemp("prompts") / "four.txt"
    path.write_text("zero\none\ntwo\nthree\n")
    return path


RECIPES = {
    "flow_sft": ("--prompt-data", "digits:test"),
    "flow_grpo": ("--rm-type", "digit_classifier"),
    "mix_grpo": ("--rm-type", "digit_classifier"),
    "diffusion_nft": ("--rm-type", "digit_classifier"),
    "flow_dpo": ("--online-pairs", "--rm-type", "digit_classifier"),
    "flow_distill": (),
}
"""Recipe -> what it needs beside a checkpoint and prompts."""


@pytest.fixture(params=list(RECIPES))
def recipe(request: pytest.FixtureRequest) -> str:
    """Each recipe in turn."""
    return request.param


@pytest.fixture
def options(digits_checkpoint: Path, prompts: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """The arguments of a small run; what is given last counts. `needs` stands in for what RECIPES has."""

    def build(
        algorithm: str, *further: str | Path, output: str = "run", needs: tuple[str, ...] | None = None
    ) -> list[str]:
        given = ["train", "--algorithm", algorithm, "--hf-checkpoint", digits_checkpoint, "--prompt-data", prompts]
        given += ["--output-dir", tmp_path / output, "--height", "8", "--width", "8", "--sampling-steps", "4"]
        given += ["--rollout-batch-size", "2", "--num-rollout", "2", "--lr", "1e-3"]
        if algorithm != "flow_sft":
            given += ["--n-samples-per-prompt", "3"]
        return [str(argument) for argument in (*given, *(RECIPES[algorithm] if needs is None else needs), *further)]

    return build


@pytest.fixture
def train(stacx: Callable[..., Finished], options: Callable[..., list[str]]) -> Callable[..., Finished]:
    """Run `stacx train` on these arguments."""

    def run(algorithm: str, *further: str | Path, output: str = "run", **environment: str) -> Finished:
        return stacx(*options(algorithm, *further, output=output), **environment)

    return run


@pytest.fixture(scope="session")
def metrics() -> Callable[[Path], list[dict[str, float]]]:
    """The lines of a run's metrics, without the times."""

    def read(folder: Path) -> list[dict[str, float]]:
        lines = (json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
        return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]

    return read


@pytest.fixture(scope="session")
def weights_of() -> Callable[[Path], dict[str, str]]:
    """Name -> bits of every tensor and number that a checkpoint holds of roles and optimizers."""

    def bits(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.dtype, tuple(value.shape), value.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        if isinstance(value, dict):
            return {name: bits(entry) for name, entry in value.items()}
        return [bits(entry) for entry in value] if isinstance(value, list | tuple) else value

    def read(folder: Path) -> dict[str, Any]:
        found = {str(path.relative_to(folder)): bits(load_file(path)) for path in folder.rglob("*.safetensors")}
        for path in folder.glob("*.optimizer.pt"):
            found[path.name] = bits(torch.load(path, weights_only=True))
        return found

    return read
