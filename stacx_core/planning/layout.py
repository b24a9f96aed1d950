"""How many processes share what; there is one on each GPU, or several on a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stacx_core.errors import ConfigError
from stacx_core.knobs import Args


@dataclass(frozen=True)
class Layout:
    """Sizes of the groups of processes; their product, but for the experts', is the number of processes.

    As in Megatron-core the ranks count up in the order tensor, context, data, pipeline. Experts are whole on the
    process that has them, so that the ranks of a pipeline stage are laid out anew for them: expert, expert-data.

    Attributes:
        tensor: Processes that share each layer's weights, but those of experts.
        pipeline: Stages of consecutive layers.
        context: Processes that share each sequence's tokens.
        expert: Processes that share the experts; they are some of the tensor, context and data groups' processes.
        data: Replicas that share the batch.
        sequence_parallel: Share the tokens too between tensor-parallel processes, where weights are whole.
        distributed_optimizer: Share the optimizer's state between replicas.
        recompute: Keep no activations within layers for the backward pass, but compute them again.
    """

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    data: int = 1
    sequence_parallel: bool = False
    distributed_optimizer: bool = False
    recompute: bool = False

    @classmethod
    def over(cls, processes: int, *, tensor: int = 1, pipeline: int = 1, context: int = 1, **others: Any) -> Layout:
        """The layout of these sizes with as many replicas as there are processes for.

        Args:
            others: Further attributes but ``data``.

        Raises:
            ConfigError: The processes do not make up whole replicas.
        """
        replica = tensor * pipeline * context
        if processes % replica:
            raise ConfigError(
                f"{processes} process(es) do not divide into replicas of {replica} (--tensor-model-parallel-size "
                f"{tensor} x --pipeline-model-parallel-size {pipeline} x --context-parallel-size {context})",
                f"use a multiple of {replica} processes, or sizes whose product divides {processes}",
            )
        return cls(tensor, pipeline, context, data=processes // replica, **others)

    @classmethod
    def of(cls, args: Args, processes: int) -> Layout:
        """The layout that the knobs ask for.

        Raises:
            ConfigError: The processes do not make up whole replicas.
        """
        return cls.over(
            processes,
            tensor=args.tensor_model_parallel_size,
            pipeline=args.pipeline_model_parallel_size,
            context=args.context_parallel_size,
            expert=args.expert_model_parallel_size,
            sequence_parallel=args.sequence_parallel,
            distributed_optimizer=args.use_distributed_optimizer,
            recompute=args.gradient_checkpointing,
        )

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return self.tensor * self.pipeline * self.context * self.data

    @property
    def stage_size(self) -> int:
        """Number of processes that have the same layers, or shares of them; experts are spread over these."""
        return self.tensor * self.context * self.data

    @property
    def expert_data(self) -> int:
        """Processes that have the same experts."""
        return self.stage_size // self.expert

    @property
    def local_tokens(self) -> float:
        """Share of its tokens that a tensor-parallel process has outside attention and feed-forward blocks."""
        return 1 / self.tensor if self.sequence_parallel else 1.0

    def stage_layers(self, layers: int) -> int:
        """Layers of each stage."""
        return layers // self.pipeline

    def vocabulary(self, size: int) -> int:
        """Rows of the embedding, padded so that every tensor-parallel process has as many."""
        return -(-size // self.tensor) * self.tensor

    def groups(self) -> dict[str, Group]:
        """The groups by name; `data` reduces gradients, so that it spans the context group, too."""
        return {
            "tensor": Group(self.tensor, 1),
            "context": Group(self.context, self.tensor),
            "data": Group(self.context * self.data, self.tensor),
            "expert": Group(self.expert, 1),
            "expert data": Group(self.expert_data, self.expert),
            "pipeline": Group(self.pipeline, self.stage_size),
        }

    def describe(self) -> str:
        """The sizes above one, and the switches."""
        sizes = {"TP": self.tensor, "PP": self.pipeline, "CP": self.context, "EP": self.expert, "DP": self.data}
        shown = [f"{name}{size}" for name, size in sizes.items() if size > 1] or ["one GPU"]
        switches = {"SP": self.sequence_parallel, "recompute": self.recompute}
        return " ".join((*shown, *(name for name, on in switches.items() if on)))


@dataclass(frozen=True)
class Group:
    """Ranks `stride` apart."""

    size: int
    stride: int

    def per_node(self, gpus_per_node: int) -> int:
        """How many of its ranks share a node."""
        return min(self.size, max(gpus_per_node // self.stride, 1))

    def crosses(self, gpus_per_node: int) -> bool:
        """Whether it spans nodes."""
        return self.size > self.per_node(gpus_per_node)
