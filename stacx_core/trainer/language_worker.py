"""A role whose model is a causal language model, or one with a scalar head, in this process."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import cast

import torch
from torch import Tensor, nn

from stacx_core.backends.attention import PackedLayout
from stacx_core.backends.linear import row_multiple, suits_onednn
from stacx_core.backends.model import forward, load_model, output_head, pick_device, recompute_activations
from stacx_core.backends.shared_prompts import share_prompts
from stacx_core.backends.weights import checkpoint_tensors
from stacx_core.config import ModelRole
from stacx_core.data.batch import Batch, select
from stacx_core.data.packing import micro_batches, pack
from stacx_core.knobs import Args
from stacx_core.objectives.log_probs import response_rows, token_log_probs
from stacx_core.objectives.sharded import ShardedOutput
from stacx_core.objectives.values import values_at
from stacx_core.specialization.base import Specialization
from stacx_core.trainer.worker import RoleWorker


class LanguageWorker(RoleWorker):
    """Packs the samples of a micro-batch end to end; its model is from :func:`stacx_core.backends.model.load_model`."""

    @classmethod
    def load(
        cls, role: ModelRole, specialization: Specialization, checkpoint: str, dtype: torch.dtype, args: Args
    ) -> LanguageWorker:
        """See :class:`RoleWorker`; by the backend of the run."""
        if args.backend == "megatron":
            from stacx_core.trainer.megatron_worker import megatron_worker  # Megatron-core is an extra.

            return megatron_worker(role, specialization, checkpoint, dtype, args)
        model = load_model(checkpoint, dtype, pick_device(args.device), role.head)
        if args.gradient_checkpointing and role.trainable:
            recompute_activations(model)
        return cls(role, model, specialization, args)

    @property
    def token_budget(self) -> int:
        """Most tokens of a micro-batch."""
        return int(self.args.max_tokens_per_gpu)

    @property
    def output_layer(self) -> nn.Module:
        """See :class:`RoleWorker`."""
        return output_head(self.model)

    def micro_batches(self, batch: Batch) -> list[list[int]]:
        """See :class:`RoleWorker`."""
        return micro_batches(
            batch["total_lengths"],
            micro_batch_size=self.args.micro_batch_size,
            max_tokens=self.token_budget,
            atoms=batch.get("pair_ids"),
        )

    def collate(self, batch: Batch) -> Batch:
        """See :class:`RoleWorker` and :func:`stacx_core.data.packing.pack`."""
        return pack(batch, self.device)

    def as_read(self, batch: Batch) -> Batch:
        """See :class:`RoleWorker`; the sequences that the role reads are the tokens."""
        tokens = super().as_read(batch)[self.role.inputs_key]
        return {**batch, "tokens": tokens, "total_lengths": [len(ids) for ids in tokens]}

    @torch.no_grad()
    def tell(self, batch: Batch, keys: Collection[str]) -> dict[str, list[Tensor]]:
        """Batch keys computed by one forward pass: per key and sample ``[R, ...]`` on the CPU.

        What the role's specialization tells under that key. For any other key, `score` among them: log-probs at the
        sampling temperature from a language-model head; from a scalar head the value of the state in which the token
        was chosen.
        """
        training = self.model.training
        self.model.eval()
        told: dict[str, list[Tensor]] = {key: [torch.empty(0)] * len(batch["tokens"]) for key in keys}
        for positions in self.micro_batches(batch):
            micro = self.collate(select(batch, positions))
            rows = response_rows(micro["total_lengths"], micro["response_lengths"]).to(self.device)
            values = self.read(self.output(micro, rows), micro["tokens"][0, rows + 1], keys)
            for key in keys:
                for position, part in zip(positions, values[key].cpu().split(micro["response_lengths"]), strict=True):
                    told[key][position] = part
        self.model.train(training)
        return told

    def read(self, output: Tensor | ShardedOutput, targets: Tensor, keys: Collection[str]) -> dict[str, Tensor]:
        """Per key ``[N, ...]``: what the role tells of N tokens, given the ``[N, V]`` output that predicts them."""
        values = self.specialization.tell(cast(Tensor, output), targets, keys)  # Plugins call it a tensor.
        if not set(keys) - set(values):
            return values
        if self.role.head == "scalar":
            own = values_at(output).float()
        else:
            temperature, chunk_size = self.args.rollout_temperature, self.args.log_probs_chunk_size
            own, _ = token_log_probs(output, targets, temperature, chunk_size)
        return {**dict.fromkeys(keys, own), **values}

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """See :class:`RoleWorker`; under the names of a Hugging Face checkpoint."""
        yield from checkpoint_tensors(self.model).items()

    def output(self, micro: Batch, rows: Tensor | None = None) -> Tensor:
        """The head's output for all packed tokens or some rows; prompts that samples have in common are run once.

        An fp64 model is run to compare gradients to the last digit. It computes every prompt, since norms of
        Transformers round to fp32 and would round a sum of gradients otherwise than each of them.
        """
        tokens, positions = micro["tokens"], micro["position_ids"]
        prompts = micro["response_lengths"] if self.dtype != torch.float64 else micro["total_lengths"]
        multiple = row_multiple(tokens.numel()) if suits_onednn(self.model) else 1
        kept, places = share_prompts(tokens[0].tolist(), micro["total_lengths"], prompts, multiple)
        layout = PackedLayout(micro["total_lengths"], self.device, places, len(kept))
        if not torch.equal(kept, torch.arange(len(places))):
            kept, places = kept.to(self.device), places.to(self.device)
            tokens, positions = tokens[:, kept], positions[:, kept]
            rows = places if rows is None else places[rows]
        return forward(self.model, tokens, positions, layout, rows)[0]
