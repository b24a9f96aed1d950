"""An optimizer's moments and fp32 weights under names that do not depend on the layout or the kind of optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from megatron.core.dist_checkpointing.dict_utils import dict_list_map_outplace, nested_values
from megatron.core.dist_checkpointing.mapping import LocalNonpersistentObject, ShardedTensor, ShardedTensorFactory
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

from stacx_core.backends.megatron.checkpoints.files import sharding
from stacx_core.backends.megatron.model import Stage

MASTER = "optimizer.state.fp32_param."
"""What the keys of fp32 weights begin with; the distributed optimizer calls them ``param``."""


class OptimizerState:
    """The state of Megatron's optimizer of a stage, which has made some updates.

    Args:
        stage: The model.
        optimizers: Those that Megatron's chains: of dense parameters, and of experts.
        updates: How many updates the state is of; Adam counts them too.
        loading: Whether the values are about to be replaced.
    """

    def __init__(self, stage: Stage, optimizers: list[Any], updates: int, loading: bool) -> None:
        self._optimizers = [optimizer for optimizer in optimizers if not optimizer.is_stub_optimizer]
        self._updates = updates
        self._model = stage.sharded_state_dict(metadata=sharding())
        for optimizer in self._optimizers:
            _prime(optimizer.optimizer, updates)
        self._structures = [self._structure(optimizer, loading) for optimizer in self._optimizers]
        low_precision = next(stage.parameters()).dtype != torch.float32
        self._parts = {
            part.key: part
            for structure in self._structures
            for part in map(_renamed, _sharded(structure))
            if low_precision or not part.key.startswith(MASTER)
        }

    def _structure(self, optimizer: Any, loading: bool) -> Any:
        """Megatron's description of the state of one optimizer."""
        if isinstance(optimizer, DistributedOptimizer):
            return optimizer.sharded_state_dict(self._model, is_loading=loading, metadata=sharding())
        return optimizer.sharded_state_dict(self._model, metadata=sharding())

    def parts(self) -> dict[str, Any]:
        """Key -> sharded tensor. Weights of fp32 models are not among them, since the model has them."""
        return dict(self._parts)

    def restore(self, loaded: dict[str, Any]) -> None:
        """Take up the values of :meth:`parts`, resharded to this layout."""
        weights = {MASTER + part.key: part.data for part in _sharded(self._model)}

        def value(leaf: Any) -> Any:
            if isinstance(leaf, LocalNonpersistentObject):
                return leaf.unwrap()
            if not isinstance(leaf, ShardedTensor | ShardedTensorFactory):
                return leaf
            key = _renamed(leaf).key
            return loaded[key] if key in loaded else weights[key].detach()

        for optimizer, structure in zip(self._optimizers, self._structures, strict=True):
            state = dict_list_map_outplace(value, structure)
            for group in state.get("optimizer", state)["param_groups"]:
                group["step"] = self._updates
            _load(optimizer, state)


def _prime(optimizer: torch.optim.Optimizer, updates: int) -> None:
    """Make the moments of an Adam that has not stepped yet, and count its updates."""
    if not isinstance(optimizer, torch.optim.Adam):  # AdamW is one
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if not state:
                state["step"] = torch.tensor(float(updates))
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)


def _load(optimizer: Any, state: dict[str, Any]) -> None:
    """Let an optimizer take up a state.

    The distributed optimizer would take torch's count of steps for a tensor of the parameter's shape, and lets all
    parameters have one and the same count, which each of them would then raise.
    """
    shards = state.pop("param_state", None)
    optimizer.load_state_dict(state)
    if shards is None:
        return
    states = optimizer.optimizer.state.values()
    steps = [moments.pop("step", None) for moments in states]
    optimizer.load_parameter_state_from_fully_reshardable(shards)
    for moments, step in zip(states, steps, strict=True):
        if step is not None:
            moments["step"] = step.clone()


def _sharded(structure: Any) -> Iterator[Any]:
    for leaf in nested_values(structure):
        if isinstance(leaf, ShardedTensor | ShardedTensorFactory):
            yield leaf


def _renamed(part: Any) -> Any:
    return replace(part, key=part.key.replace("optimizer.state.param.", MASTER, 1))
