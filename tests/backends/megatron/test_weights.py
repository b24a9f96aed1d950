"""Which weights of a checkpoint make up which parameter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from tiny_models import MODELS, SHAPE, make

pytest.importorskip("megatron.core")

from stacx_core.backends.megatron.conversion.checkpoint import Checkpoint
from stacx_core.backends.megatron.conversion.weights import Source, Weight, weights
from stacx_core.planning.layout import Layout


def config(name: str) -> Any:
    family, extra = MODELS[name]
    return getattr(transformers, f"{family}Config")(**{**SHAPE, **extra})


def test_queries_keys_and_values_alternate_by_group() -> None:
    """Two groups of two queries, a key and a value; a head has one feature, and the model one."""
    sources = (Source("q", (4, 1), 0), Source("k", (2, 1), 0), Source("v", (2, 1), 0))
    weight = Weight("qkv", sources, 0, groups=2)
    shares = [torch.tensor([[1], [2], [3], [4]]), torch.tensor([[5], [6]]), torch.tensor([[7], [8]])]
    fused = weight.fuse(shares)
    assert fused.flatten().tolist() == [1, 2, 5, 7, 3, 4, 6, 8]
    assert all(part.equal(share) for part, share in zip(weight.split(fused, 1), shares, strict=True))


def test_the_first_process_takes_the_larger_part_of_an_odd_vocabulary() -> None:
    source = Source("embedding", (5, 3), 0, padded=8)
    assert [source.share(4, rank) for rank in range(4)] == [(0, 2), (2, 4), (4, 5), (5, 5)]


def test_tied_embeddings_are_read_by_the_last_stage_too() -> None:
    model = config("qwen2")
    assert [weight.parameter for weight in weights(model, Layout())][-1] == "decoder.final_layernorm.weight"
    *_, last = weights(model, Layout(pipeline=2))
    assert (last.parameter, last.stage, last.copies) == ("output_layer.weight", 1, True)
    assert [source.name for source in last.sources] == ["model.embed_tokens.weight"]


@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("values", "bf16")])
def test_every_weight_of_a_checkpoint_has_its_place_in_any_layout(name: str, tmp_path: Path) -> None:
    make(name, tmp_path)
    with Checkpoint(str(tmp_path)) as checkpoint:
        expected = {weight: checkpoint.shape(weight) for weight in checkpoint.names}
    for layout in (Layout(), Layout(tensor=2, pipeline=2), Layout(pipeline=4, expert=2, data=2)):
        found = [source for weight in weights(config(name), layout) if not weight.copies for source in weight.sources]
        assert {source.name: source.shape for source in found} == expected
        assert len(found) == len(expected)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.sampled_from([1, 2]))
def test_splitting_undoes_fusing(groups: int, queries: int, width: int, columns: int) -> None:
    lengths = [groups * queries * width, groups * width, groups * width]
    sources = tuple(Source(name, (length, columns), 0) for name, length in zip("qkv", lengths, strict=True))
    shares = [torch.randn(length, columns) for length in lengths]
    weight = Weight("qkv", sources, 0, groups=groups)
    assert all(a.equal(b) for a, b in zip(weight.split(weight.fuse(shares), 1), shares, strict=True))
