"""How many processes share what, and whether a model can be shared so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stacx_core.backends.megatron import compat
from stacx_core.errors import ConfigError
from stacx_core.knobs import Args


@dataclass(frozen=True)
class Layout:
    """Sizes of the groups of processes; their product, but for the experts', is the number of processes.

    Attributes:
        tensor: Processes that share each layer's weights.
        pipeline: Stages of consecutive layers.
        context: Processes that share each sequence's tokens.
        expert: Processes that share the experts; they are some of the other groups' processes.
        data: Replicas that share the batch.
        sequence_parallel: Share the tokens too between tensor-parallel processes, where weights are whole.
        distributed_optimizer: Share the optimizer's state between replicas.
    """

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    data: int = 1
    sequence_parallel: bool = False
    distributed_optimizer: bool = False

    @classmethod
    def of(cls, args: Args, world_size: int) -> Layout:
        """The layout that the knobs of section ``megatron`` ask for, with as many replicas as there are processes for.

        Raises:
            ConfigError: The processes do not make up whole replicas.
        """
        tensor, pipeline = args.tensor_model_parallel_size, args.pipeline_model_parallel_size
        context = args.context_parallel_size
        replica = tensor * pipeline * context
        if world_size % replica:
            raise ConfigError(
                f"{world_size} processes do not divide into replicas of {replica} (--tensor-model-parallel-size "
                f"{tensor} x --pipeline-model-parallel-size {pipeline} x --context-parallel-size {context})",
                f"start a multiple of {replica} processes, or choose sizes whose product divides {world_size}",
            )
        return cls(
            tensor,
            pipeline,
            context,
            args.expert_model_parallel_size,
            world_size // replica,
            args.sequence_parallel,
            args.use_distributed_optimizer,
        )

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self.tensor * self.pipeline * self.context * self.data

    def stage_layers(self, layers: int) -> int:
        """Layers of each stage."""
        return layers // self.pipeline

    def vocabulary(self, size: int) -> int:
        """Rows of the embedding, padded so that every tensor-parallel process has as many."""
        return -(-size // self.tensor) * self.tensor


def check(layout: Layout, hf_config: Any) -> None:
    """Refuse a layout that does not fit the model.

    Raises:
        ConfigError: Naming the flag, its value and the values that fit.
    """
    heads = (
        ("attention heads", hf_config.num_attention_heads),
        ("key-value heads", hf_config.num_key_value_heads),
        ("features of the MLP", hf_config.intermediate_size),
    )
    for what, count in heads:
        _divides("--tensor-model-parallel-size", layout.tensor, count, what)
    _divides("--pipeline-model-parallel-size", layout.pipeline, hf_config.num_hidden_layers, "layers")
    padding = layout.vocabulary(hf_config.vocab_size) - hf_config.vocab_size
    if padding and padding >= layout.vocabulary(hf_config.vocab_size) // layout.tensor:
        raise ConfigError(
            f"--tensor-model-parallel-size {layout.tensor} leaves a process without any of the model's "
            f"{hf_config.vocab_size} tokens; choose a smaller one"
        )
    if layout.sequence_parallel and layout.tensor == 1:
        raise ConfigError(
            "--sequence-parallel has no effect with --tensor-model-parallel-size 1; raise that, or leave it out"
        )
    _check_experts(layout, int(getattr(hf_config, "num_experts", 0) or 0))


def _check_experts(layout: Layout, experts: int) -> None:
    if not experts:
        if layout.expert > 1:
            raise ConfigError(
                f"--expert-model-parallel-size {layout.expert} shares experts, of which the model has none; "
                "leave it out"
            )
        return
    _divides("--expert-model-parallel-size", layout.expert, experts, "experts")
    others = layout.tensor * layout.context * layout.data
    _divides("--expert-model-parallel-size", layout.expert, others, "tensor x context x data-parallel processes")
    if layout.tensor > 1 and not (layout.sequence_parallel and layout.expert > 1):
        raise ConfigError(
            f"--tensor-model-parallel-size {layout.tensor} with a mixture of experts needs --sequence-parallel and "
            "--expert-model-parallel-size above 1, since experts are whole on the process that has them"
        )


def _divides(flag: str, value: int, count: int, what: str) -> None:
    """Refuse a size that does not divide what it is to divide.

    Raises:
        ConfigError: Naming the sizes that do.
    """
    if count % value:
        valid = ", ".join(str(size) for size in range(1, min(count, 1024) + 1) if count % size == 0)
        raise ConfigError(f"{flag} {value} does not divide the {count} {what}; choose one of {valid}")


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
