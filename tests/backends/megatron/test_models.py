"""Outputs and gradients of models spread over processes, against Transformers on one."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from processes import ProcessError, spawn
from tiny_models import LENGTHS, MODELS, Result, coefficients, compute, make, micro_batches, whole

pytest.importorskip("megatron.core")

DENSE = ("llama", "qwen2", "qwen3", "qwen3-tied", "values")
EVERYWHERE = (*DENSE, "qwen3-moe")
LAYOUTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "one": ({}, tuple(MODELS)),
    "tp": ({"tensor": 2}, (*DENSE, "bf16")),
    "tp-sp-ep": ({"tensor": 2, "sequence_parallel": True, "expert": 2}, ("qwen3-moe",)),
    "tp-sp": ({"tensor": 2, "sequence_parallel": True}, DENSE),
    "pp": ({"pipeline": 2}, (*EVERYWHERE, "bf16")),
    "cp": ({"context": 2}, EVERYWHERE),
    "dp-ep": ({"data": 2, "expert": 2}, ("qwen3-moe",)),
    "cp-ep": ({"context": 2, "expert": 2}, ("qwen3-moe",)),
    "tp-pp": ({"tensor": 2, "pipeline": 2}, ("llama", "qwen3-tied")),
    "tp-sp-cp": ({"tensor": 2, "context": 2, "sequence_parallel": True}, ("qwen3",)),
}
CASES = [(layout, model) for layout, (_, models) in LAYOUTS.items() for model in models]
EXACT = [case for case in CASES if case[1] != "bf16"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: tmp_path_factory.mktemp(name) for name in MODELS}


@pytest.fixture(scope="module")
def references(folders: dict[str, Path]) -> dict[str, tuple[list[Tensor], dict[str, Tensor]]]:
    """Outputs of each micro-batch and gradients of the sum of their losses, by the names of a checkpoint."""
    found = {}
    for name, folder in folders.items():
        found[name] = reference(make(name, folder), micro_batches())
    return found


def reference(model: Any, batches: list[Tensor]) -> tuple[list[Tensor], dict[str, Tensor]]:
    """Outputs of each micro-batch, and the gradients of its parameters."""
    head = model.score if hasattr(model, "score") else model.lm_head
    outputs = []
    for tokens, lengths, factors in zip(batches, LENGTHS, coefficients(len(head.weight)), strict=True):
        samples = tokens[0].split(list(lengths))
        output = torch.cat([head(model.model(sample[None]).last_hidden_state)[0] for sample in samples])
        (factors * output.tanh()).sum().backward()
        outputs.append(output.detach())
    return outputs, named_gradients(model)


def named_gradients(model: Any) -> dict[str, Tensor]:
    """By the names of a checkpoint, which has each expert's gate and up by themselves."""
    named: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if "mlp.experts." not in name:
            named[name] = parameter.grad
            continue
        stem, kind = name.rsplit(".", 1)
        for expert, gradient in enumerate(parameter.grad):
            if kind == "down_proj":
                named[f"{stem}.{expert}.down_proj.weight"] = gradient
            else:
                gate, up = gradient.chunk(2)
                named |= {f"{stem}.{expert}.gate_proj.weight": gate, f"{stem}.{expert}.up_proj.weight": up}
    return named


@pytest.fixture(scope="module")
def results(
    folders: dict[str, Path], references: object, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[list[dict[str, Result]], Path]]:
    """What each rank found of each model in a layout, and where the weights are; layouts of a size run together."""
    exports = tmp_path_factory.mktemp("exports")

    @cache
    def run(processes: int) -> list[dict[str, dict[str, Result]]] | ProcessError:
        cases = {
            name: (layout, {model: str(folders[model]) for model in models}, str(exports / name))
            for name, (layout, models) in LAYOUTS.items()
            if size(layout) == processes
        }
        try:
            return spawn(processes, compute, cases, seconds=480)
        except ProcessError as error:  # Kept, lest every test tries again.
            return error

    def of(name: str) -> tuple[list[dict[str, Result]], Path]:
        ranks = run(size(LAYOUTS[name][0]))
        if isinstance(ranks, ProcessError):
            raise ranks
        return [found[name] for found in ranks], exports / name

    return of


def size(layout: dict[str, Any]) -> int:
    return math.prod(layout.get(name, 1) for name in ("tensor", "pipeline", "context", "data"))


@pytest.mark.parametrize(("layout", "model"), EXACT)
def test_outputs_are_those_of_transformers(layout: str, model: str, results: Any, references: Any) -> None:
    ranks, _ = results(layout)
    replicas = LAYOUTS[layout][0].get("data", 1)
    for index, expected in enumerate(references[model][0]):
        turn, replica = divmod(index, replicas)
        last = [found[model] for rank, found in enumerate(ranks) if found[model].outputs and rank % replicas == replica]
        logits = whole([result.outputs[turn][0] for result in last])
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("layout", "model"), EXACT)
def test_gradients_are_those_of_transformers(layout: str, model: str, results: Any, references: Any) -> None:
    ranks, _ = results(layout)
    for result in ranks:
        gradients = result[model].gradients
        assert gradients.keys() == references[model][1].keys()
        for name, expected in references[model][1].items():
            assert (gradients[name] - expected).norm() < 1e-5 * expected.norm(), name


@pytest.mark.parametrize(("layout", "model"), CASES)
def test_a_model_comes_back_byte_for_byte(layout: str, model: str, results: Any, folders: Any) -> None:
    _, exports = results(layout)
    exported = (exports / model / "model.safetensors").read_bytes()
    assert exported == (folders[model] / "model.safetensors").read_bytes()


@pytest.mark.skipif(not os.environ.get("SMOLLM2"), reason="SMOLLM2 names no folder of SmolLM2-135M")
def test_a_pretrained_model_agrees(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = os.environ["SMOLLM2"]
    cases = {"pp": ({"pipeline": 2}, {"smollm2": folder}, str(tmp_path))}
    ranks = [found["pp"]["smollm2"] for found in spawn(2, compute, cases)]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    outputs, gradients = reference(model, micro_batches(folder))
    for index, expected in enumerate(outputs):
        torch.testing.assert_close(whole(ranks[1].outputs[index]), expected, rtol=0, atol=1e-4)
    for name, expected in gradients.items():
        assert (ranks[0].gradients[name] - expected).norm() < 1e-4 * expected.norm(), name
