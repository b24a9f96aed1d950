"""Log-probabilities and entropies of chosen tokens, without a second copy of the logits.

A language model's logits ``[T, V]`` are by far the largest tensor of a training step. The autograd function
here walks over the wanted rows in chunks, upcasts one chunk at a time, keeps two numbers per row, and
recomputes the chunk's softmax in the backward pass, whose only large tensor is the gradient of the logits.

Of logits that are cut by their vocabulary each process does the same with its own columns, as if they were the whole;
two collectives on vectors of one number per row or target then join the shards. None is needed on the way back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from stacx_core.objectives.sharded import Columns, ShardedOutput, gather_all, reduce_sum

CHUNK_LOGITS = 2**21
"""Logits per chunk unless told: enough to keep the kernels busy, few enough for their fp32 copy to stay in cache."""


def token_log_probs(
    logits: Tensor | ShardedOutput,
    targets: Tensor,
    temperature: float = 1.0,
    chunk_size: int | None = None,
    with_entropy: bool = False,
    rows: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """``log softmax(logits / temperature)`` at the targets, and optionally the entropy of each row.

    Both outputs have exact gradients. A logit of ``-inf`` is a banned token: probability 0, entropy term 0,
    gradient 0.

    Args:
        logits: ``[T, V]``, any floating dtype; whole, or this process's part.
        targets: ``[N]`` int64 token ids, or ``[N, M]`` for several of each row (ids may repeat).
        temperature: divides the logits, gradient included.
        chunk_size: rows per chunk, the memory bound; None means as many as make two million logits.
        with_entropy: also return ``H = -sum_v p_v log p_v``.
        rows: ``[N]`` int64, the row of ``logits`` of each target; by default row n, with ``N = T``.

    Returns:
        ``(log_probs, entropy [N] or None)``, the former shaped like the targets, both float64 for float64 logits and
        float32 otherwise.

    Raises:
        ValueError: shapes that do not fit, or a temperature that is not positive.
        IndexError: a target that is no id of the vocabulary.
    """
    rows = _checked_rows(logits, targets, temperature, rows)
    by_row = targets.to(logits.device)
    if targets.dim() == 1:
        by_row = by_row[:, None]
    apply: Callable[..., tuple[Tensor, Tensor | None]] = _ChunkedLogProbs.apply
    if isinstance(logits, ShardedOutput):
        _check_ids(targets, logits.vocabulary)
        held, places = logits.held(rows)
        here = by_row if places is None else by_row[places]
        size = rows_per_chunk(logits.local, chunk_size)
        log_probs, entropy = apply(logits.local, held, here, temperature, size, with_entropy, logits.columns)
        log_probs = logits.gather(log_probs, places, len(rows))
        entropy = None if entropy is None else logits.gather(entropy, places, len(rows))
    else:
        size, columns = rows_per_chunk(logits, chunk_size), Columns(0, logits.shape[1])
        log_probs, entropy = apply(logits, rows, by_row, temperature, size, with_entropy, columns)
    return log_probs.reshape(targets.shape), entropy


def _checked_rows(logits: Tensor | ShardedOutput, targets: Tensor, temperature: float, rows: Tensor | None) -> Tensor:
    """The row of each target, by default row n of target n; what does not fit is refused."""
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    if len(logits.shape) != 2 or targets.dim() not in (1, 2):
        raise ValueError(
            f"expected logits [T, V] and targets [N] or [N, M], got {list(logits.shape)} and {list(targets.shape)}"
        )
    if rows is None:
        rows = torch.arange(len(logits), device=logits.device)
    if len(rows) != len(targets):
        raise ValueError(f"{len(targets)} targets for {len(rows)} rows of logits; pass one target per row")
    return rows


def response_rows(total_lengths: Sequence[int], response_lengths: Sequence[int]) -> Tensor:
    """The row of packed logits that predicts each response token.

    Response token t of a sample that starts at ``offset`` and has P prompt tokens is token ``offset + P + t``
    and is predicted one position earlier, so no row predicts across the boundary of two packed samples.

    Args:
        total_lengths: ``L_i``, prompt and response tokens of each packed sample, in order.
        response_lengths: ``R_i``, at most ``L_i - 1``.

    Returns:
        ``[N]`` int64 with ``N = sum(response_lengths)``; the token predicted is at the row plus one.

    Raises:
        ValueError: a response without a token in front of it to predict its first token from.
    """
    pieces, end = [torch.zeros(0, dtype=torch.int64)], 0
    for index, (total, response) in enumerate(zip(total_lengths, response_lengths, strict=True)):
        if response and not 0 <= response < total:
            raise ValueError(
                f"sample {index}: response length {response} of {total} tokens in total; "
                "a response needs at least one prompt token before it"
            )
        end += total
        pieces.append(torch.arange(end - response - 1, end - 1) if response else pieces[0])
    return torch.cat(pieces)


def response_token_log_probs(
    logits: Tensor | ShardedOutput,
    tokens: Tensor,
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    loss_masks: Sequence[Tensor],
    temperature: float = 1.0,
    chunk_size: int | None = None,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """``token_log_probs`` of the trainable response tokens of packed samples, over all response tokens.

    Prompt rows and masked positions are never computed: they are exactly 0 in the result and their rows are
    exactly 0 in the gradient of the logits.

    Args:
        logits: ``[T, V]`` of the packed samples, whole or this process's part; rows beyond the samples are padding and
            ignored.
        tokens: ``[T]`` or ``[1, T]`` int64, the packed token ids.
        total_lengths, response_lengths: ``L_i`` and ``R_i`` of each sample, in packing order.
        loss_masks: one ``[R_i]`` mask per sample.
        temperature, chunk_size, with_entropy: as for ``token_log_probs``.

    Returns:
        ``(log_probs [N], entropy [N] or None)`` with ``N = sum(response_lengths)``.

    Raises:
        ValueError: lengths that do not fit the packed tensors or each other.
    """
    flat_tokens = tokens.reshape(-1)
    if len(flat_tokens) != len(logits) or sum(total_lengths) > len(logits):
        raise ValueError(
            f"{len(flat_tokens)} tokens and {len(logits)} rows of logits for samples of "
            f"{sum(total_lengths)} tokens in total; logits and tokens must both hold every packed token"
        )
    lengths = [len(mask) for mask in loss_masks]
    if lengths != list(response_lengths):
        raise ValueError(f"loss_masks have lengths {lengths}, response_lengths are {list(response_lengths)}")
    all_rows = response_rows(total_lengths, response_lengths).to(logits.device)
    mask = torch.cat([all_rows.new_zeros(0), *(m.to(logits.device) for m in loss_masks)]).bool()
    kept = mask.nonzero().squeeze(-1)
    rows = all_rows[kept]
    targets = flat_tokens.to(logits.device)[rows + 1]
    log_probs, entropy = token_log_probs(logits, targets, temperature, chunk_size, with_entropy, rows)
    spread = log_probs.new_zeros(len(all_rows))
    return (
        spread.index_copy(0, kept, log_probs),
        None if entropy is None else spread.index_copy(0, kept, entropy),
    )


class _ChunkedLogProbs(torch.autograd.Function):
    """Rows of ``logits`` and targets ``[N, M]`` -> log-probabilities ``[N, M]`` and entropies ``[N]``.

    Saves the logits and two numbers per row. The first ``columns.count`` columns are read.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        rows: Tensor,
        targets: Tensor,
        temperature: float,
        chunk_size: int,
        with_entropy: bool,
        columns: Columns,
    ) -> tuple[Tensor, Tensor | None]:
        real = logits[:, : columns.count]
        ids, _ = columns.find(targets)
        log_probs = logits.new_zeros(targets.shape, dtype=_statistics_dtype(logits))
        log_norms = log_probs.new_full((len(rows),), -torch.inf)
        entropy = torch.zeros_like(log_norms) if with_entropy else None
        for part in _chunks(len(rows) if columns.count else 0, chunk_size):
            scaled = _scaled_rows(real, rows[part], temperature)
            log_norms[part] = scaled.logsumexp(-1)
            log_probs[part] = scaled.gather(-1, ids[part])
            if entropy is not None:
                probs = scaled.sub_(log_norms[part, None]).exp_()
                entropy[part] = torch.special.entr(probs).sum(-1)
        log_probs, log_norms, entropy = _join(columns, targets, log_probs, log_norms, entropy)
        ctx.save_for_backward(logits, rows, targets, log_norms, entropy)
        ctx.temperature, ctx.chunk_size, ctx.columns = temperature, chunk_size, columns
        ctx.set_materialize_grads(False)
        return log_probs.sub_(log_norms[:, None]), entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_log_probs: Tensor | None, grad_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        logits, rows, targets, log_norms, entropy = ctx.saved_tensors
        grad_logits = torch.zeros_like(logits)
        real, grad_real = (x[:, : ctx.columns.count] for x in (logits, grad_logits))
        if grad_log_probs is None:
            grad_log_probs = torch.zeros_like(targets, dtype=log_norms.dtype)
        ids, owned = ctx.columns.find(targets)
        for part in _chunks(len(rows) if ctx.columns.count else 0, ctx.chunk_size):
            probs = _scaled_rows(real, rows[part], ctx.temperature).sub_(log_norms[part, None]).exp_()
            per_target = grad_log_probs[part] / ctx.temperature
            here = per_target if owned is None else per_target.masked_fill(~owned[part], 0.0)
            grad = (probs * -per_target.sum(-1, keepdim=True)).scatter_add_(-1, ids[part], here)
            if grad_entropy is not None:
                # dH/dx_v = -p_v (log p_v + H), written so that a banned token gives 0 and not 0 * inf.
                slope = torch.special.entr(probs).addcmul_(probs, entropy[part, None], value=-1)
                grad.addcmul_(slope, grad_entropy[part, None] / ctx.temperature)
            grad_real.index_add_(0, rows[part], grad.to(logits.dtype))
        return grad_logits, None, None, None, None, None, None


def _join(
    columns: Columns, targets: Tensor, chosen: Tensor, log_norms: Tensor, entropy: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """What the shards know, as one process would know it.

    With w the share of the whole mass that a shard has, and h the entropy within it, the entropy is that of the shares
    plus the mean of the h, ``sum -w log w + w h``: no difference of large numbers.

    Args:
        columns: those of this process.
        targets: ``[N, M]`` ids.
        chosen: ``[N, M]`` scaled logits of the targets, where they are held here.
        log_norms: ``[N]`` log-sum-exp over the columns held here, ``-inf`` without any.
        entropy: ``[N]`` within the columns held here.

    Returns:
        The same three over all columns, equal on all processes.
    """
    if columns.group is None:
        return chosen, log_norms, entropy
    _, owned = columns.find(targets)
    assert owned is not None
    chosen = reduce_sum(chosen.masked_fill_(~owned, 0.0), columns.group)
    if entropy is None:
        return chosen, gather_all(log_norms, columns.group).logsumexp(0), None
    # A shard of banned tokens has no entropy within.
    within = entropy.masked_fill_(log_norms == -torch.inf, 0.0)
    all_norms, all_within = gather_all(torch.stack([log_norms, within]), columns.group).unbind(1)
    whole = all_norms.logsumexp(0)
    shares = (all_norms - whole).exp_()
    return chosen, whole, (torch.special.entr(shares) + shares * all_within).sum(0)


def rows_per_chunk(logits: Tensor, chunk_size: int | None) -> int:
    """The rows of ``[T, V]`` logits to handle at a time: ``chunk_size``, or as many as make two million logits."""
    return chunk_size or max(CHUNK_LOGITS // max(logits.shape[1], 1), 1)


def _check_ids(ids: Tensor, vocabulary: int) -> None:
    """Refuse ids that no process holds, which would otherwise have a log-prob all the same."""
    if not ids.numel():
        return
    lowest, highest = torch.stack(torch.aminmax(ids)).tolist()
    if lowest < 0 or highest >= vocabulary:
        raise IndexError(f"targets {lowest} to {highest} for a vocabulary of {vocabulary}")


def _statistics_dtype(logits: Tensor) -> torch.dtype:
    return torch.float64 if logits.dtype == torch.float64 else torch.float32


def _chunks(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def _scaled_rows(logits: Tensor, rows: Tensor, temperature: float) -> Tensor:
    """A private copy ``[len(rows), V]`` of some rows, upcast and divided by the temperature."""
    scaled = logits.index_select(0, rows).to(_statistics_dtype(logits))
    return scaled if temperature == 1.0 else scaled.div_(temperature)
