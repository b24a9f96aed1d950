"""What is planned is what is trained: the same layouts of the same models, refused in the same words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, Qwen3Config, Qwen3MoeConfig

from stacx_core.errors import ConfigError
from stacx_core.knobs import Args
from stacx_core.planning import refusal
from stacx_core.planning.layout import Layout
from stacx_core.planning.plan import Problem
from stacx_core.planning.search import GPU_COUNTS, candidates, search
from stacx_core.planning.shape import WELL_KNOWN, load_shape
from stacx_core.planning.work import Cluster, Workload
from tiny_models import make

pytest.importorskip("megatron.core")

from stacx_core.backends.megatron.layout import check

CONFIGS: dict[str, Any] = {
    name: {"qwen3": Qwen3Config, "qwen3_moe": Qwen3MoeConfig}[config["model_type"]](**config)
    for name, config in WELL_KNOWN.items()
}
FEWEST = {"qwen3-4b": 2, "qwen3-8b": 4, "qwen3-32b": 8, "qwen3-235b-a22b": 64}
"""GPUs of 80 GB that have room for a model."""


@pytest.mark.parametrize("gpus", GPU_COUNTS)
@pytest.mark.parametrize("model", WELL_KNOWN)
def test_every_layout_that_is_found_is_accepted(model: str, gpus: int) -> None:
    """All that have room; on fewer GPUs than that takes, all that are possible otherwise."""
    problem = Problem(load_shape(model), Workload(), Cluster())
    layouts = list(candidates(problem, gpus, {}))
    if gpus >= FEWEST[model]:
        layouts = [plan.layout for plan in search(problem, gpus, len(layouts), {})]
    assert layouts
    for layout in layouts:
        check(layout, CONFIGS[model])
        assert Layout.of(knobs(layout), gpus) == layout


def knobs(layout: Layout) -> Args:
    """What a training run of a layout is given."""
    return Args.of(
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        context_parallel_size=layout.context,
        expert_model_parallel_size=layout.expert,
        sequence_parallel=layout.sequence_parallel,
        use_distributed_optimizer=layout.distributed_optimizer,
        gradient_checkpointing=layout.recompute,
    )


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        ("qwen3", Layout(tensor=4)),
        ("qwen3", Layout(tensor=3, sequence_parallel=True)),
        ("qwen3", Layout(tensor=2, pipeline=3)),
        ("qwen3", Layout(expert=2, data=2)),
        ("qwen3-moe", Layout(tensor=2)),
        ("qwen3-moe", Layout(expert=4, data=2)),
    ],
)
def test_both_refuse_in_the_same_words(model: str, layout: Layout, tmp_path: Path) -> None:
    make(model, tmp_path)
    problem = Problem(load_shape(str(tmp_path)), Workload(), Cluster())
    with pytest.raises(ConfigError) as planned:
        refusal.check(problem, layout)
    with pytest.raises(ConfigError) as trained:
        check(layout, AutoConfig.from_pretrained(tmp_path))
    assert str(trained.value) == str(planned.value)
