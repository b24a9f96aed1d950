"""The likeliest tokens of each distribution, the same ones wherever they are computed."""

from __future__ import annotations

import torch
from torch import Tensor

from stacx_core.objectives.log_probs import rows_per_chunk
from stacx_core.objectives.sharded import Columns, ShardedOutput, gather_all


@torch.no_grad()
def likeliest_ids(logits: Tensor | ShardedOutput, rows: Tensor, count: int, chunk_size: int | None = None) -> Tensor:
    """The ids of the largest logits of some rows, largest first, of equal ones the lowest id first.

    No copy of all rows is made. Of an output that is cut by its vocabulary each process takes the largest of its own
    columns, and the largest of these are the answer.

    Args:
        logits: ``[T, V]``, any floating dtype.
        rows: ``[N]`` int64.
        count: ids per row.
        chunk_size: rows at a time; unset takes as many as make two million logits.

    Returns:
        ``[N, min(count, V)]`` int64, on every process that holds a part.
    """
    if isinstance(logits, ShardedOutput):
        local_rows, places = logits.held(rows)
        width = min(count, logits.vocabulary)
        local, columns = logits.local, logits.columns
        return logits.gather(_over_columns(local, columns, local_rows, width, chunk_size), places, len(rows))
    return _largest(logits, rows, min(count, logits.shape[1]), chunk_size)[1]


def _over_columns(local: Tensor, columns: Columns, rows: Tensor, width: int, chunk_size: int | None) -> Tensor:
    """``[n, width]`` ids; the shards are contiguous and ascending, so the order of candidates is that of ids."""
    here = min(width, columns.count)
    values, ids = _largest(local[:, : columns.count], rows, here, chunk_size)
    if columns.group is None:
        return ids
    # Shards that have too few real columns are the last ones: what fills them up comes after every real column.
    missing = min(width, local.shape[1]) - here
    values = torch.nn.functional.pad(values, (0, missing), value=-torch.inf)
    ids = torch.nn.functional.pad(ids + columns.first, (0, missing))
    all_values, all_ids = (gather_all(part, columns.group).transpose(0, 1).flatten(1) for part in (values, ids))
    return all_ids.gather(-1, _stable_topk(all_values, width))


def _largest(logits: Tensor, rows: Tensor, width: int, chunk_size: int | None) -> tuple[Tensor, Tensor]:
    """The ``width`` largest entries ``[n, width]`` of some rows, float32 or float64, and their columns."""
    places = [rows.new_zeros(0, width)]
    values = [logits.new_zeros(0, width)]
    for part in rows.split(rows_per_chunk(logits, chunk_size)):
        chunk = logits.index_select(0, part)
        places.append(_stable_topk(chunk, width))
        values.append(chunk.gather(-1, places[-1]))
    exact = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return torch.cat(values).to(exact), torch.cat(places)


def _stable_topk(values: Tensor, width: int) -> Tensor:
    """Columns of the ``width`` largest entries of each row, in descending order, of equal ones the first first.

    `torch.topk` does not say which of equal entries it takes; rows in which that matters are done again.
    """
    largest, columns = values.topk(min(width + 1, values.shape[1]), dim=-1)
    if largest.shape[1] > width > 0:
        tied = (largest[:, width - 1] == largest[:, width]).nonzero().squeeze(-1)
        if len(tied):
            columns[tied] = _lowest_among_equal(values[tied], largest[tied], columns[tied], width)
    columns = columns[:, :width].sort(dim=-1).values
    order = values.gather(-1, columns).sort(dim=-1, descending=True, stable=True).indices
    return columns.gather(-1, order)


def _lowest_among_equal(values: Tensor, largest: Tensor, columns: Tensor, width: int) -> Tensor:
    """The columns ``[n, width + 1]`` of the largest entries, with the first of those that equal the last one taken."""
    least = largest[:, width - 1, None]
    row, column = (values == least).nonzero(as_tuple=True)
    count = row.bincount(minlength=len(values))
    place = torch.arange(len(row), device=row.device) - (count.cumsum(0) - count)[row]
    taken = largest == least
    return columns.masked_scatter(taken, column[place < taken.sum(-1)[row]])
