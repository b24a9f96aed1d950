"""Whether a model can be laid out over processes, and Megatron's groups of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stacx_core.backends.megatron import compat
from stacx_core.errors import ConfigError
from stacx_core.planning.fit import check_fit
from stacx_core.planning.layout import Layout
from stacx_core.planning.shape import shape_of


def check(layout: Layout, hf_config: Any) -> None:
    """Refuse a layout that does not fit the model, as ``stacx plan`` does.

    Raises:
        ConfigError: Naming the flag, its value and the values that fit.
        ModelError: The config is not of a supported model.
    """
    name = Path(hf_config.name_or_path).resolve().name if hf_config.name_or_path else hf_config.model_type
    check_fit(shape_of(name, hf_config.to_dict()), layout)


def initialize(layout: Layout, seed: int) -> None:
    """Make Megatron's groups of processes; torch.distributed is initialised already.

    Raises:
        ConfigError: The number of processes is not the layout's.
    """
    compat.install()
    import torch.distributed as dist
    from megatron.core import parallel_state, tensor_parallel

    if dist.get_world_size() != layout.world_size:
        raise ConfigError(f"{layout} is of {layout.world_size} processes, but there are {dist.get_world_size()}")
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        context_parallel_size=layout.context,
        expert_model_parallel_size=layout.expert,
        expert_tensor_parallel_size=1,
    )
    tensor_parallel.model_parallel_cuda_manual_seed(seed)
