"""What both sides of a comparison with TRL share: weights, the arguments of a trainer, and what counts as equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from stacx_core.backends.model import load_model
from stacx_core.config import resolve_object
from stacx_core.data.batch import Batch
from stacx_core.plugins import plugin_host
from stacx_core.recipes import TRAINING_CONFIGS
from stacx_core.trainer.language_worker import LanguageWorker

TOLERANCE = 1e-5
PAD = "<unknown>"
"""What TRL's side is padded with; no example contains it."""


class Result(NamedTuple):
    """A loss, the gradient of each parameter by its name, and on our side the metrics."""

    loss: float
    gradient: dict[str, Tensor]
    metrics: dict[str, float]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL warns that parts of it may change; the version is pinned."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")


@pytest.fixture(scope="session")
def tokenizer(checkpoint: Path) -> Any:
    """The tokenizer of the checkpoint with a padding token, which TRL asks for."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(checkpoint, pad_token=PAD)


@pytest.fixture
def trl_options(tmp_path: Path) -> dict[str, Any]:
    """What every TRL trainer is told: fp32 on the CPU, and nothing written."""
    return {
        "output_dir": str(tmp_path),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
    }


@pytest.fixture(scope="session")
def move() -> Callable[..., nn.Module]:
    """Move the weights of a model a little, the same way for models with the same parameters."""

    @torch.no_grad()
    def moved(model: nn.Module, seed: int, by: float = 0.05) -> nn.Module:
        draw = torch.Generator().manual_seed(seed)
        for _, parameter in sorted(model.named_parameters()):
            parameter.add_(by * torch.randn(parameter.shape, generator=draw))
        return model

    return moved


@pytest.fixture(scope="session")
def make_worker(checkpoint: Path, host_args: Any) -> Callable[..., LanguageWorker]:
    """The worker of the first role of a recipe, with the weights of the checkpoint and some knobs set."""

    def build(recipe: str, **given: Any) -> LanguageWorker:
        config = TRAINING_CONFIGS[recipe]
        own = {knob.name: knob.default for knob in config.knobs}
        args = host_args(**{**own, **config.defaults, **given})
        role = config.roles[0]
        model = load_model(str(checkpoint), torch.float32, torch.device("cpu"), role.head)
        return LanguageWorker(role, model, resolve_object(role.specialization_cls)(args), args, plugin_host().hook)

    return build


@pytest.fixture(scope="session")
def backward() -> Callable[[LanguageWorker, Batch], Result]:
    """Our loss of a step."""

    def run(worker: LanguageWorker, batch: Batch) -> Result:
        metrics = worker.backward(batch)
        return Result(metrics["loss"], gradient(worker.model), metrics)

    return run


@pytest.fixture(scope="session")
def trl_backward() -> Callable[..., Result]:
    """The sum of TRL's losses of some batches."""

    def run(model: nn.Module, losses: Sequence[Tensor]) -> Result:
        model.zero_grad()
        loss = torch.stack(list(losses)).sum()
        loss.backward()
        return Result(loss.item(), gradient(model), {})

    return run


def gradient(model: nn.Module) -> dict[str, Tensor]:
    """The gradient of each parameter, 0 where there is none."""
    found = {name: p.grad if p.grad is not None else torch.zeros_like(p) for name, p in model.named_parameters()}
    assert any(float(part.norm()) > 0 for part in found.values())
    return found


@pytest.fixture(scope="session")
def assert_same() -> Callable[[Result, Result], None]:
    """The losses agree, and the gradients of every parameter, to 1e-5 of their size."""

    def check(ours: Result, theirs: Result) -> None:
        assert ours.loss == pytest.approx(theirs.loss, rel=TOLERANCE, abs=1e-7)
        assert ours.gradient.keys() == theirs.gradient.keys()
        for name, expected in theirs.gradient.items():
            assert float((ours.gradient[name] - expected).norm()) <= TOLERANCE * float(expected.norm()), name

    return check
