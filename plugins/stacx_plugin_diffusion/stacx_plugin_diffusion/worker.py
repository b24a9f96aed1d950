"""A role whose model is a flow model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from stacx_core import (
    Args,
    Batch,
    ConfigError,
    ModelRole,
    RoleWorker,
    Specialization,
    micro_batches,
    pick_device,
    select,
)
from stacx_plugin_diffusion.conditions import GuidedModel
from stacx_plugin_diffusion.losses.base import FlowSpecialization
from stacx_plugin_diffusion.models import LORA_TARGETS, FlowModel, add_lora, load_flow_model, lora_rank

SIGMAS_OF = {"states": "sigmas", "compared_states": "compared_sigmas"}
"""What a role can be asked about -> the noise levels of that."""


class FlowWorker(RoleWorker):
    """Asks the network about all states of a micro-batch at once."""

    @classmethod
    def load(
        cls, role: ModelRole, specialization: Specialization, checkpoint: str, dtype: torch.dtype, args: Args
    ) -> FlowWorker:
        """See :class:`stacx_core.RoleWorker`; a role that is trained, or follows one, gets the adapter of the run."""
        model = load_flow_model(checkpoint, dtype, pick_device(args.device))
        if args.lora_rank and (role.trainable or role.stateful):
            _adapt(model, checkpoint, args)
        if args.gradient_checkpointing and role.trainable:
            model.gradient_checkpointing_enable()
        worker = cls(role, model, specialization, args)
        guided = cast(FlowSpecialization, specialization).guided
        worker.guided = GuidedModel(model, args.guidance_scale if guided else 1.0)
        return worker

    guided: GuidedModel
    """The model as the loss sees it."""

    @property
    def output_layer(self) -> nn.Module:
        """See :class:`stacx_core.RoleWorker`."""
        return cast(FlowModel, self.model).network

    @property
    def longest_response(self) -> int:
        """See :class:`stacx_core.RoleWorker`; a sample has a state for each denoising step at most."""
        return int(self.args.sampling_steps)

    def micro_batches(self, batch: Batch) -> list[list[int]]:
        """See :class:`stacx_core.RoleWorker`."""
        return micro_batches(
            batch["response_lengths"],
            micro_batch_size=self.args.micro_batch_size,
            max_tokens=self.args.max_states_per_gpu,
            atoms=batch.get("pair_ids"),
        )

    def collate(self, batch: Batch) -> Batch:
        """See :class:`stacx_core.RoleWorker`; tensors are moved, and everything stays a list."""
        return {key: self._moved(value) for key, value in batch.items()}

    def output(self, micro: Batch) -> Tensor:
        """``[N, *D]`` fp32: the velocity at each state of the samples in a row, with the guidance of the role."""
        key = self.role.inputs_key
        lengths, conditions = micro["response_lengths"], micro["conditions"]
        each = [condition for condition, count in zip(conditions, lengths, strict=True) for _ in range(count)]
        return self.guided.velocity(torch.cat(list(micro[key])), torch.cat(list(micro[SIGMAS_OF[key]])), each)

    def tells(self, key: str) -> bool:
        """See :class:`stacx_core.RoleWorker`; the velocities of its name, and the old ones of a trained role."""
        own = (self.role.own_key, f"{self.role.name}_velocities", "old_velocities" if self.role.trainable else "")
        return key in own

    @torch.no_grad()
    def tell(self, batch: Batch, keys: Collection[str]) -> dict[str, list[Tensor]]:
        """See :class:`stacx_core.RoleWorker`: ``[R]`` log-probs of the steps, or ``[R, *D]`` velocities."""
        training = self.model.training
        self.model.eval()
        told: dict[str, list[Tensor]] = {key: [torch.empty(0)] * len(batch["response_lengths"]) for key in keys}
        for positions in self.micro_batches(batch):
            micro = self.collate(select(batch, positions))
            velocity = self.output(micro)
            for key in keys:
                loss = cast(FlowSpecialization, self.specialization)
                values = velocity if key.endswith("_velocities") else loss.log_probs(velocity, micro)
                for position, part in zip(positions, values.cpu().split(micro["response_lengths"]), strict=True):
                    told[key][position] = part
        self.model.train(training)
        return told

    def _moved(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(self.device)
        if isinstance(value, Mapping):
            return {name: self._moved(entry) for name, entry in value.items()}
        return [self._moved(entry) for entry in value] if isinstance(value, list) else value


def _adapt(model: FlowModel, checkpoint: str, args: Args) -> None:
    """Give a model the adapter of the run, unless it brings it.

    Raises:
        ConfigError: It brings one of another rank.
        ModelError: The adapter does not fit.
    """
    present = lora_rank(model)
    if present not in (0, args.lora_rank):
        raise ConfigError(
            f"{checkpoint!r}: --lora-rank {args.lora_rank}, but its adapter has rank {present}: leave the flag out to "
            "train that one"
        )
    if not present:
        targets = [name.strip() for name in args.lora_targets.split(",")] if args.lora_targets else LORA_TARGETS
        add_lora(model, args.lora_rank, args.lora_alpha or args.lora_rank, targets, args.seed)
