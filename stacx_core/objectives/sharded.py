"""A model's output of which each process holds a part: some columns under TP, some rows under CP.

The objectives that take such an output return whole vectors, equal bit for bit on all processes of the TP x CP
group, and every process computes the whole loss of the micro-batch from them. So no gradient is summed on the way back:
each process gets that of its own rows and columns, and sums of parameter gradients over CP are those of one process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

REFUSAL = (
    "{what}: model_output is a ShardedOutput, of which this process holds a part only, and no tensor. A loss reads it "
    "by response_log_probs, response_values or last_token_values of its specialization, or by token_log_probs, "
    "response_token_log_probs, likeliest_ids or values_at of stacx_core.objectives. One that needs the raw output "
    "trains with --tensor-model-parallel-size 1 --context-parallel-size 1"
)


@dataclass(frozen=True)
class Columns:
    """The ids ``first`` to ``first + count - 1`` of a vocabulary, which a process of the group holds.

    Args:
        first: id of the first column.
        count: real columns, without padding; may be 0.
        group: processes that hold the other columns; None where there are no others.
    """

    first: int
    count: int
    group: dist.ProcessGroup | None = None

    def find(self, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        """The column of each id, any column where another process holds it, and which are held here (None: all)."""
        if self.group is None:
            return ids, None
        columns = ids - self.first
        return columns.clamp(0, max(self.count - 1, 0)), (columns >= 0) & (columns < self.count)


@dataclass(frozen=True, eq=False)
class ShardedOutput:
    """This process's part of a micro-batch's output ``[T, V]``. It has a shape, a device and a dtype, but no entries.

    The vocabulary, padded to a multiple of the TP size, is cut into contiguous equal shards; what lies behind the
    last real id is never read and has a gradient of 0. A scalar head has V = 1 and is not cut. The processes of a TP
    group hold the same rows.

    Args:
        local: ``[T_local, V_local]``, any floating dtype.
        vocabulary: V, number of real columns of the whole output.
        first_id: id of the first local column.
        tensor_group: processes among which the columns are cut; None for one process.
        local_rows: ``[T]`` int64, for each row of the whole output the local row, or -1 where another process of
            ``context_group`` has it; None: the local rows are the whole output's.
        context_group: processes among which the rows are cut; None for one process.

    Raises:
        ValueError: shapes or ids that do not fit.
        TypeError: from use as a tensor.
    """

    local: Tensor
    vocabulary: int
    first_id: int = 0
    tensor_group: dist.ProcessGroup | None = None
    local_rows: Tensor | None = None
    context_group: dist.ProcessGroup | None = None

    def __post_init__(self) -> None:
        if self.local.dim() != 2:
            raise ValueError(f"local: expected [T_local, V_local], got shape {list(self.local.shape)}")
        held = range(self.first_id, self.first_id + self.local.shape[1])
        if self.vocabulary < 1 or self.first_id < 0:
            raise ValueError(f"vocabulary {self.vocabulary} must be positive, first_id {self.first_id} not negative")
        if self.tensor_group is None and (held.start, max(held.stop, self.vocabulary)) != (0, held.stop):
            raise ValueError(
                f"ids {held.start} to {held.stop - 1} are not the whole vocabulary of {self.vocabulary}; pass the "
                "tensor_group that holds the others"
            )
        if self.context_group is not None and self.local_rows is None:
            raise ValueError("context_group without local_rows; pass the local row of each row of the output")

    @property
    def shape(self) -> tuple[int, int]:
        """``(T, V)`` of the whole output."""
        return len(self), self.vocabulary

    @property
    def device(self) -> torch.device:
        """Where the local part is."""
        return self.local.device

    @property
    def dtype(self) -> torch.dtype:
        """That of the local part."""
        return self.local.dtype

    def __len__(self) -> int:
        return len(self.local if self.local_rows is None else self.local_rows)

    @property
    def columns(self) -> Columns:
        """The real columns held here."""
        count = min(max(self.vocabulary - self.first_id, 0), self.local.shape[1])
        return Columns(self.first_id, count, self.tensor_group)

    def select(self, rows: Tensor) -> ShardedOutput:
        """The output at some rows ``[N]`` int64, ``(N, V)``; nothing is copied."""
        return replace(self, local_rows=rows if self.local_rows is None else self.local_rows.index_select(0, rows))

    def held(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Which of these rows ``[N]`` are held here: their local rows ``[n]``, and their places in ``rows``.

        The places are None where all are held here in any case.
        """
        if self.local_rows is None:
            return rows, None
        local = self.local_rows.index_select(0, rows)
        places = (local >= 0).nonzero().squeeze(-1)
        return local[places], places

    def gather(self, values: Tensor, places: Tensor | None, count: int) -> Tensor:
        """``[count, ...]`` from what each process has ``[n, ...]`` at its places; see `held`.

        The backward pass hands each process the gradient at its places.
        """
        if places is None:
            return values
        apply: Callable[..., Tensor] = _Gather.apply
        return apply(values, places, count, self.context_group)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # Protocols, such as copying, ask for methods that need not be there.
            raise AttributeError(name)
        raise TypeError(REFUSAL.format(what=f"model_output.{name}"))

    def _operate(self, *_: object) -> NoReturn:
        raise TypeError(REFUSAL.format(what="indexing or arithmetic with model_output"))

    __getitem__ = __neg__ = __pow__ = _operate
    __add__ = __sub__ = __mul__ = __truediv__ = __matmul__ = _operate
    __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rmatmul__ = _operate

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        raise TypeError(REFUSAL.format(what=getattr(function, "__name__", "a function of torch")))


def reduce_sum(values: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Sum over the group, in place."""
    if group is not None:
        dist.all_reduce(values, group=group)
    return values


def gather_all(values: Tensor, group: dist.ProcessGroup) -> Tensor:
    """``[processes, ...]``: what each process of the group has, in the order of their ranks."""
    parts = [torch.empty_like(values) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, values.contiguous(), group=group)
    return torch.stack(parts)


class _Gather(torch.autograd.Function):
    """Rows ``[n, ...]`` at places of a whole ``[count, ...]``; each of these has one owner in the group."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, places: Tensor, count: int, group: dist.ProcessGroup | None) -> Tensor:
        ctx.save_for_backward(places)
        return reduce_sum(values.new_zeros(count, *values.shape[1:]).index_copy_(0, places, values), group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (places,) = ctx.saved_tensors
        return gradient.index_select(0, places), None, None, None
