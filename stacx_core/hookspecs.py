"""The hooks of Stacx, in the order in which a run reaches them.

A plugin implements a hook by a function of the same name, marked with `hookimpl`, in the module its entry
point names. It may leave out arguments it does not need. Everything else about a hook is in its docstring:
when it is called, how often, in which process, who wins, what it returns, and the shapes of the tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

import pluggy

if TYPE_CHECKING:
    import torch

    from stacx_core.config import TrainingConfig
    from stacx_core.data.batch import Batch
    from stacx_core.knobs import Args
    from stacx_core.specialization.base import Specialization

PROJECT = "stacx"
API_VERSION = 1
"""The plugin API of this host. A plugin made for another one says so with `STACX_API = N` in its module."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class RoleHandle(Protocol):
    """A role of the run, as a channel may use it: its model, and what it says of a batch."""

    model: torch.nn.Module

    def score(self, batch: Batch) -> list[torch.Tensor]:
        """Per sample [R, ...]: log-probs of the response tokens, or values from a scalar head, both [R] float32; of
        another modality what its worker tells."""


class SyncChannel:
    """Something that moves batch keys, or weights, between roles once per rollout. Subclass what you need."""

    def transfer(self, batches: dict[str, Batch]) -> None:
        """Add keys to the whole-rollout batch of a role; `batches` maps role names to batches."""

    def after_update(self, completed: int) -> None:
        """Called after all roles were trained on a rollout; `completed` counts it and those before it.

        A role whose weights are changed here is declared with `stateful=True`, so that checkpoints keep it. Anything
        else must follow from `completed`, so that a resumed run does the same.
        """


# Start-up


@hookspec
def register_recipes() -> Iterable[TrainingConfig] | None:
    """Hand over the plugin's recipes. A module that uses `@recipe` does not need this hook.

    When: right after the plugin's module was imported and its API version was checked.
    How often: once per load of the plugin.
    Process: every process that uses recipes: the command, the trainer, each worker.
    Wins: nobody; every plugin's recipes are kept. Of two plugins with one recipe name neither is used by the
        bare name.
    Returns: the recipes; None or nothing is fine.
    Shapes: no tensors.
    """


# Building the trainer


@hookspec
def build_syncs(config: TrainingConfig, args: Args, roles: Mapping[str, RoleHandle]) -> Iterable[SyncChannel] | None:
    """Add channels beside those the recipe's `DataSync`s make, such as an average of the policy's weights.

    When: while the trainer is built, after its roles were loaded.
    How often: once per process that holds roles.
    Process: the one that holds the roles: the driver, or with `--role-workers ray` every process of every pool. There
        a role of another pool is in `roles` by name. Asking for it first ends the call, and the process that has it
        makes the channel; asking for it together with a role of this pool is an error.
    Wins: nobody; the channels of all plugins are kept and run after the recipe's own, in the order in which
        plugins were loaded.
    Args:
        config: the recipe of the run.
        args: the resolved knobs.
        roles: the roles of the run by name, with their models, or with this process's part of them. All
            weights of a process are at hand while a channel is made and while it runs, also with `--offload-roles`.
    Returns: the channels; None or nothing is fine. Once per rollout each has its `transfer` called after the
        roles' forward passes and before their `prepare` stages, and its `after_update` when all are trained.
    Shapes: a channel sees whole-rollout batches: per key a list of B entries, one tensor [R, ...] where there is
        a value for each position of the response.
    """


# Training


@hookspec(firstresult=True)
def compute_loss(
    specialization: Specialization,
    model_output: torch.Tensor,
    batch: Batch,
    reducer: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[torch.Tensor, dict[str, torch.Tensor]] | None:
    """Compute the loss of one micro-batch. Implement it as a wrapper to add a term to every recipe's loss.

    When: after a role's forward pass over a micro-batch, before its backward pass.
    How often: once per micro-batch and trained role.
    Process: every process that trains the role, with gradients enabled.
    Wins: the first implementation that returns something other than None. The host's own comes last; it calls
        `specialization.compute_loss(model_output, batch, reducer)`.
    Args:
        specialization: the role's; `specialization.args` holds the resolved knobs.
        model_output: [T, V] logits of the packed micro-batch, or [T, 1] values of a role with a scalar head. A
            tensor where one process has all of it, and a `ShardedOutput` where columns (tensor parallelism) or rows
            (context parallelism) are spread: read it by the helpers of the specialization or the functions of
            `stacx_core.objectives`, which take both and give whole [N] vectors on every process. Everything else
            a loss may do with a tensor is refused on a `ShardedOutput`. For recipes of another modality it is what
            the `output` of the modality's worker gives, such as [N, ...].
        batch: the micro-batch as the worker collates it, on the device: packed for language models.
        reducer: sums a flat [N] vector over the positions of the micro-batch's responses by the run's aggregation;
            a 0-d tensor is taken to be reduced and passes through.
    Returns: the loss, 0-d with a gradient, not divided by the number of rollouts; and metrics, each 0-d
        (summed like the loss) or [2] (a sum and a count, averaged over the step).
    Shapes: T packed tokens, V vocabulary, N positions of the micro-batch's responses: their tokens, or what else a
        response of the modality is made of.
    """
