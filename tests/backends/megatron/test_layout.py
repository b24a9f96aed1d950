"""Which layouts there are, and which models they suit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stacx_core.errors import ConfigError
from stacx_core.knobs import Args

pytest.importorskip("megatron.core")

from stacx_core.backends.megatron.layout import Layout, check
from stacx_core.megatron_knobs import MEGATRON_KNOBS

DEFAULTS = {knob.name: knob.default for knob in MEGATRON_KNOBS}


def model(**given: Any) -> Any:
    shape = {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "intermediate_size": 48,
        "num_hidden_layers": 6,
        "vocab_size": 100,
    }
    return SimpleNamespace(**{**shape, **given})


def test_processes_left_over_are_replicas() -> None:
    args = Args({**DEFAULTS, "tensor_model_parallel_size": 2, "context_parallel_size": 2, "sequence_parallel": True})
    layout = Layout.of(args, 12)
    assert layout == Layout(tensor=2, context=2, data=3, sequence_parallel=True)
    assert layout.world_size == 12


def test_processes_that_make_up_no_replica_are_refused() -> None:
    args = Args({**DEFAULTS, "tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2})
    with pytest.raises(ConfigError, match=r"(?s)6 processes do not divide into replicas of 4.*start a multiple of 4"):
        Layout.of(args, 6)


@pytest.mark.parametrize(
    ("layout", "config", "message"),
    [
        (
            Layout(tensor=8),
            model(),
            r"--tensor-model-parallel-size 8 does not divide the 4 key-value heads; .* 2, 4$",
        ),
        (Layout(pipeline=4), model(), r"--pipeline-model-parallel-size 4 .* 6 layers; choose one of 1, 2, 3, 6$"),
        (Layout(tensor=4), model(vocab_size=5), "leaves a process without any of the model's 5 tokens"),
        (Layout(sequence_parallel=True), model(), "--sequence-parallel has no effect"),
        (Layout(expert=2, data=2), model(), "shares experts, of which the model has none"),
        (Layout(expert=3, data=3), model(num_experts=4), r"does not divide the 4 experts; choose one of 1, 2, 4$"),
        (Layout(expert=2), model(num_experts=4), "tensor x context x data-parallel processes"),
        (Layout(tensor=2), model(num_experts=4), "needs --sequence-parallel and --expert-model-parallel-size above 1"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(layout: Layout, config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(layout, config)


def test_layouts_that_fit() -> None:
    for layout in (Layout(), Layout(tensor=4, sequence_parallel=True), Layout(tensor=2, pipeline=3, context=5, data=7)):
        check(layout, model())
    check(Layout(expert=4, data=2, context=2), model(num_experts=4))


@pytest.mark.parametrize(("size", "tensor", "padded"), [(37, 1, 37), (37, 2, 38), (48, 4, 48), (49, 4, 52)])
def test_the_vocabulary_is_padded_to_equal_shares(size: int, tensor: int, padded: int) -> None:
    assert Layout(tensor=tensor).vocabulary(size) == padded
