"""The model, its worker and its loss."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Self, cast

import torch
from torch import Tensor, nn

from stacx_core import Args, Batch, ModelError, ModelRole, RoleWorker, Specialization, micro_batches, pick_device


class Line(nn.Linear):
    """A linear map from 3 numbers to 1, kept in a folder."""

    def __init__(self) -> None:
        super().__init__(3, 1)

    def save_pretrained(self, folder: Path, state_dict: Mapping[str, Tensor] | None = None) -> None:
        """Write the weights."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        torch.save(dict(state_dict or self.state_dict()), Path(folder) / "line.pt")

    @classmethod
    def from_pretrained(cls, folder: str) -> Line:
        """Read them.

        Raises:
            ModelError: There are none.
        """
        path = Path(folder) / "line.pt"
        if not path.is_file():
            raise ModelError(f"{folder} has no line.pt; name a folder that Line.save_pretrained wrote")
        line = cls()
        line.load_state_dict(torch.load(path, weights_only=True))
        return line


class LineWorker(RoleWorker):
    """Asks the line about all points of a micro-batch at once."""

    @classmethod
    def load(
        cls, role: ModelRole, specialization: Specialization, checkpoint: str, dtype: torch.dtype, args: Args
    ) -> Self:
        """See :class:`stacx_core.RoleWorker`."""
        model = Line.from_pretrained(checkpoint).to(pick_device(args.device), dtype)
        return cls(role, model, specialization, args)

    @property
    def output_layer(self) -> nn.Module:
        """The whole model."""
        return self.model

    def micro_batches(self, batch: Batch) -> list[list[int]]:
        """As the knobs of the host cut them."""
        size, budget = self.args.micro_batch_size, self.args.max_tokens_per_gpu
        return micro_batches(batch["response_lengths"], micro_batch_size=size, max_tokens=budget)

    def collate(self, batch: Batch) -> Batch:
        """Tensors on the device, and all else as it is."""
        return {
            key: [v.to(self.device) if isinstance(v, Tensor) else v for v in values]
            if isinstance(values, list)
            else values
            for key, values in batch.items()
        }

    def output(self, micro: Batch) -> Tensor:
        """``[N]``: what the line says of the N points of the samples in a row."""
        return cast(Tensor, self.model(torch.cat(micro[self.role.inputs_key]).to(self.dtype))).squeeze(-1)

    @torch.no_grad()
    def tell(self, batch: Batch, keys: Collection[str]) -> dict[str, list[Tensor]]:
        """What the line says, ``[R]`` for each sample, whatever it is asked for."""
        said = list(self.output(self.collate(batch)).float().cpu().split(batch["response_lengths"]))
        return dict.fromkeys(keys, said)


class SquaredError(Specialization):
    """``(f(x) - y)^2`` at every point."""

    def compute_loss(
        self, model_output: Tensor, batch: Batch, reducer: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """See :class:`stacx_core.Specialization`; ``model_output`` is what :meth:`LineWorker.output` gives."""
        errors = model_output.float() - self.flat(batch, "targets")
        return reducer(errors**2), {"absolute_error": self.mean_pair(errors.abs(), batch)}
