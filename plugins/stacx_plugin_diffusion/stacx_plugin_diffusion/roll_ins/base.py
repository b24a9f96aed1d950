"""What all roll-ins of flow models share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stacx_core import Args, DataError, PromptStream, RollIn, Rollout, RolloutEngine, Sample, sub_seed
from stacx_plugin_diffusion.conditions import Condition
from stacx_plugin_diffusion.data import Example, read_examples
from stacx_plugin_diffusion.engine import FlowEngine
from stacx_plugin_diffusion.objectives import interpolate, velocity_target


class FlowRollIn(RollIn):
    """Takes ``rollout_batch_size`` rows of the data for each rollout.

    A subclass has :meth:`samples`. The rows are read when the run starts, pictures are opened when there is an engine.

    Raises:
        DataError: A row is malformed.
    """

    def __init__(self, args: Args) -> None:
        self.args = args
        self.rows: Sequence[Any] = self.read(args.prompt_data)
        self.num_prompts = len(self.rows)
        self.stream = PromptStream(
            [(number, prompt_of(row)) for number, row in enumerate(self.rows)], args.seed, args.rollout_shuffle
        )

    def read(self, source: str) -> Sequence[Any]:
        """The rows of the data, which may lack what only a model can make."""
        return read_examples(source)

    def attach(self, engine: FlowEngine) -> None:
        """Take an engine, before the first rollout.

        Raises:
            ConfigError, DataError, ModelError: It cannot draw samples of the rows.
        """
        _ = engine.latent_shape
        check_conditions(self.rows, engine)

    def roll(self, rollout: int, engine: RolloutEngine) -> Rollout:
        """See :class:`stacx_core.RollIn`."""
        assert isinstance(engine, FlowEngine)
        rows = [self.rows[number] for number, _ in self.stream.take(self.args.rollout_batch_size)]
        return self.samples(rollout, rows, engine)

    @abstractmethod
    def samples(self, rollout: int, rows: Sequence[Any], engine: FlowEngine) -> Rollout:
        """The samples of some rows."""

    def state(self) -> dict[str, Any]:
        """The position in the rows."""
        return self.stream.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a position."""
        self.stream.restore(state)

    def generator(self, name: str, *place: int) -> torch.Generator:
        """Of the random numbers of one place in the run."""
        return torch.Generator().manual_seed(sub_seed(self.args.seed, name, *place))


def prompt_of(row: Any) -> str:
    """The prompt of an example or a pair."""
    return str(row.prompt)


def check_conditions(examples: Sequence[Example], engine: FlowEngine) -> None:
    """Refuse prompts and embeddings that the model cannot read; of embeddings the first is tried.

    Raises:
        DataError, ModelError: Names one.
    """
    engine.model.prompts.check([example.prompt for example in examples if example.cond is None])
    brought = next((example for example in examples if example.cond is not None), None)
    if brought is None or brought.cond is None:
        return
    reason = engine.misfit(brought.cond)
    if reason:
        shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in brought.cond.items())
        raise DataError(f"{brought.where}: embeddings that the network cannot read, {shapes}: {reason}")


def conditions_of(examples: Sequence[Example], engine: FlowEngine) -> list[Condition]:
    """What the network is told of each example: what the data bring, else its prompt encoded."""
    encoded = iter(engine.encode([example.prompt for example in examples if example.cond is None]))
    return [next(encoded) if example.cond is None else example.cond for example in examples]


def noised(x0: Tensor, sigmas: Tensor, noise: Tensor) -> dict[str, Tensor]:
    """Inputs at noise levels ``[K]`` of one clean latent ``[*D]``, with noise ``[K, *D]``."""
    repeated = x0.expand_as(noise).contiguous()
    return {
        "states": interpolate(repeated, noise, sigmas),
        "sigmas": sigmas,
        "noises": noise,
        "targets": velocity_target(repeated, noise),
    }


def sample_of(index: int, group: int, prompt: str, inputs: dict[str, Any], *, version: int, **fields: Any) -> Sample:
    """A sample of one latent, with a state for each position."""
    return Sample(
        index=index,
        rollout_id=fields.pop("rollout_id", index),
        group_index=group,
        prompt=prompt,
        inputs=inputs,
        response_length=len(inputs["sigmas"]),
        weight_versions=[str(version)],
        task_id=prompt,
        **fields,
    )
