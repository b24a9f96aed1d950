"""One role on this process of several: a share of its model, of each step's samples and of its optimizer.

Every process of a role makes the same calls with the same whole batch, and gets the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import cast

import pluggy
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from stacx_core.backends.megatron.conversion.exporting import export
from stacx_core.backends.megatron.conversion.folders import write_model
from stacx_core.backends.megatron.conversion.loading import load
from stacx_core.backends.megatron.model import Stage, build, recompute_activations
from stacx_core.backends.megatron.optimizer import MegatronOptimizer, replicated
from stacx_core.backends.megatron.packing import Packed
from stacx_core.backends.megatron.packing import pack as pack_shared
from stacx_core.backends.megatron.schedule import run_pipeline, told_by_last_stages
from stacx_core.backends.model import load_config, pick_device
from stacx_core.config import ModelRole
from stacx_core.data.batch import Batch, select
from stacx_core.data.packing import pack
from stacx_core.data.shares import equal_shares
from stacx_core.knobs import Args
from stacx_core.objectives.log_probs import response_rows
from stacx_core.objectives.sharded import ShardedOutput
from stacx_core.planning.layout import Layout
from stacx_core.plugins import plugin_host
from stacx_core.specialization.base import Specialization
from stacx_core.trainer.language_worker import LanguageWorker
from stacx_core.trainer.step_metrics import StepMetrics

Finish = Callable[[Sequence[int], Batch, "Tensor | ShardedOutput"], Tensor]
"""Positions of a micro-batch's samples, the packed micro-batch and its output -> its part of the loss, 0-d."""


class MegatronWorker(LanguageWorker):
    """Scores and trains one role together with the other processes of its layout.

    Args:
        role: The role of the recipe.
        stage: This process's part of the model, with weights.
        layout: Sizes of the groups of processes.
        specialization: The role's loss.
        args: The completed arguments, with the role's overrides in place.
        hook: The plugin hooks.
        source: The Hugging Face checkpoint that the weights are of.
    """

    def __init__(
        self,
        role: ModelRole,
        stage: Stage,
        layout: Layout,
        specialization: Specialization,
        args: Args,
        hook: pluggy.HookRelay,
        source: str,
    ) -> None:
        self.stage, self.layout, self.source = stage, layout, source
        self.replica = replicated(stage, layout) if role.trainable else stage
        super().__init__(role, stage, specialization, args, hook)

    def make_optimizer(self) -> MegatronOptimizer:
        """See :class:`RoleWorker`."""
        return MegatronOptimizer(self.replica, self.args)

    @property
    def token_budget(self) -> int:
        """See :class:`RoleWorker`; the processes of a context-parallel group have one budget each."""
        return super().token_budget * self.layout.context

    @torch.no_grad()
    def tell(self, batch: Batch, keys: Collection[str]) -> dict[str, list[Tensor]]:
        """See :class:`RoleWorker`."""
        training = self.model.training
        self.model.eval()
        own: dict[int, dict[str, Tensor]] = {}

        def finish(positions: Sequence[int], micro: Batch, output: Tensor | ShardedOutput) -> Tensor:
            rows = response_rows(micro["total_lengths"], micro["response_lengths"]).to(self.device)
            predicting = output.select(rows) if isinstance(output, ShardedOutput) else output[rows]
            values = self.read(predicting, micro["tokens"][0, rows + 1], keys)
            parts = {key: values[key].cpu().split(micro["response_lengths"]) for key in keys}
            for index, position in enumerate(positions):
                own[position] = {key: parts[key][index] for key in keys}
            return torch.zeros(())

        self._run(batch, self.micro_batches(batch), finish)
        self.model.train(training)
        told = {position: values for part in told_by_last_stages(own) for position, values in part.items()}
        return {key: [told[position][key] for position in range(len(batch["tokens"]))] for key in keys}

    def accumulate(self, batch: Batch, cut: Sequence[Sequence[int]]) -> dict[str, float]:
        """See :class:`RoleWorker`."""
        normalizer, totals = self.normalizer(batch), StepMetrics()

        def finish(_: Sequence[int], micro: Batch, output: Tensor | ShardedOutput) -> Tensor:
            loss, metrics = self.loss(micro, cast(Tensor, output))  # Plugins call it a tensor.
            totals.add(metrics)
            return loss / normalizer

        self._run(batch, cut, finish)
        result = StepMetrics.merged(told_by_last_stages(totals)).result(normalizer)
        return self.specialization.summarize(result)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """See :class:`RoleWorker`; all processes iterate at the same time, and the first one gets the weights."""
        yield from export(self.stage, self.stage.hf_config, self.layout)

    def save(self, folder: Path) -> None:
        """See :class:`RoleWorker`; the first process writes the model, and each one its share of the optimizer's state.

        Under ``--async-save`` that share is copied, and written while the run goes on.
        """
        self.finish_save()
        self._save_model(folder / self.role.name)
        if isinstance(self.optimizer, MegatronOptimizer):
            self._writing = self.optimizer.save(state_folder(folder, self.role.name), self.args.async_save)

    def _save_model(self, folder: Path) -> None:
        """Write the model; where that fails, all processes raise, and none waits for another.

        Raises:
            OSError: It cannot be written.
        """
        weights, problems = self.weights(), [""] * dist.get_world_size()
        problem = ""
        if dist.get_rank() == 0:
            try:
                write_model(weights, folder, self.stage.hf_config, self.dtype, self.stage.head, self.source)
            except Exception as error:  # of a full disk, safetensors raises one of its own
                problem = str(error)
        for _ in weights:  # the others only send, also when nothing is written any more
            pass
        dist.all_gather_object(problems, problem)
        if problems[0]:
            raise OSError(f"cannot write {folder}: {problems[0]}")

    def load_optimizer(self, folder: Path) -> None:
        """See :class:`RoleWorker`."""
        if isinstance(self.optimizer, MegatronOptimizer):
            self.optimizer.load(state_folder(folder, self.role.name))

    def _run(self, batch: Batch, cut: Sequence[Sequence[int]], finish: Finish) -> None:
        """Run this replica's share of the micro-batches.

        A micro-batch without samples goes through the pipeline with others', and its output is not looked at.
        """
        lengths = batch["total_lengths"]
        filler = min(cut, key=lambda positions: sum(lengths[position] for position in positions))
        share = equal_shares(cut, lengths, self.layout.data)[parallel_state.get_data_parallel_rank()]

        def forward(positions: Sequence[int]) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
            micro = pack(select(batch, list(positions or filler)), self.device)
            rank = parallel_state.get_context_parallel_rank()
            packed = pack_shared(micro["tokens"], micro["total_lengths"], self.layout, rank)

            def finished(output: Tensor) -> Tensor:
                if not positions:
                    return output[:0].sum()
                return finish(positions, micro, self._whole(output, packed))

            return self.replica(packed), finished

        run_pipeline(self.replica, self.stage.config, share, forward)

    def _whole(self, output: Tensor, packed: Packed) -> Tensor | ShardedOutput:
        """The output of all tokens and columns, of which this process may hold a part."""
        layout, scalar = self.layout, self.role.head == "scalar"
        if layout.context == 1:
            output = output[: len(packed.rows)]
            if scalar or layout.tensor == 1:
                return output
        return ShardedOutput(
            output,
            vocabulary=1 if scalar else self.stage.hf_config.vocab_size,
            first_id=0 if scalar else self.stage.columns.start,
            tensor_group=None if scalar or layout.tensor == 1 else parallel_state.get_tensor_model_parallel_group(),
            local_rows=None if layout.context == 1 else packed.rows.to(self.device),
            context_group=None if layout.context == 1 else parallel_state.get_context_parallel_group(),
        )


def megatron_worker(
    role: ModelRole, specialization: Specialization, checkpoint: str, dtype: torch.dtype, args: Args
) -> MegatronWorker:
    """This process's worker with its share of a checkpoint's weights.

    ``torch.distributed`` and Megatron's groups are initialised already.

    Raises:
        ModelError, ConfigError: The model is not supported, the layout does not fit it, or weights are missing.
    """
    layout = Layout.of(args, dist.get_world_size())
    config = load_config(checkpoint)
    stage = build(config, layout, dtype, role.head).to(pick_device(args.device))
    load(stage, config, layout, checkpoint)
    if layout.recompute and role.trainable:
        recompute_activations(stage)
    return MegatronWorker(role, stage, layout, specialization, args, plugin_host().hook, checkpoint)


def state_folder(folder: Path, role: str) -> Path:
    """Where a checkpoint has the sharded state of a role's optimizer."""
    return folder / f"{role}.optimizer"
