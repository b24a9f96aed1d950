"""The training batch: samples turned into response-aligned lists, once per rollout, and the checks on them.

A `Batch` maps a key of `stacx_core.batch_keys` to a list with one entry per sample; token-level entries are
tensors of shape [R] (response tokens) or [L] (prompt and response), on the CPU until packing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stacx_core.batch_keys import BATCH_KEYS, BatchKey
from stacx_core.data.sample import ENVIRONMENT, Sample, SampleStatus
from stacx_core.errors import BatchError, NonFiniteError, RewardError, nearest

Batch = dict[str, Any]

TEACHER_TOKEN = 1.0
"""Value in `teacher_log_probs` that marks a token produced by the teacher; no log-prob can be positive."""


def response_keys(keys: Mapping[str, BatchKey] = BATCH_KEYS) -> tuple[str, ...]:
    """Keys whose per-sample element has one entry per position of the response."""
    return tuple(name for name, key in keys.items() if key.element.startswith(("[R]", "[R,")))


def samples_to_batch(
    samples: Sequence[Sample], *, mask_truncated: bool, reward_key: str | None, unit: str = "token"
) -> tuple[Batch, dict[str, float]]:
    """Turn the samples of one rollout phase into a batch of B samples, and count what happened to them.

    - A sample with a response of length 0 is dropped: it cannot be trained on, so it has no vote in its group.
    - A removed, aborted or failed sample stays with an all-zero mask and `removed` 1. Values it lacks become
      NaN, so that a use of them is noticed; nothing reads masked positions.
    - With `mask_truncated` a truncated sample stays with an all-zero mask.
    - `rollout_mask_sums` counts the masks of all samples of a rollout after both rules, so what is masked
      above the fraction line is never counted below it.
    - An optional field must be set on every sample that is not removed, or on none.
    - A sample with `inputs` has no tokens; each entry of them becomes a key of the batch.

    Args:
        samples: finished samples; each is validated.
        mask_truncated: zero the masks of samples cut at the length limit.
        reward_key: which entry of a reward dict trains; None for plain numbers.
        unit: what a response is made of.

    Returns:
        The batch, and counters: `dropped_empty`, `removed`, `truncated_frac`, `empty_mask_frac`,
        `response_tokens` and `loss_tokens` (or another unit's), `response_length_mean` / `_min` / `_max`.

    Raises:
        BatchError: inconsistent sample, or an optional field set on some samples only.
        RewardError: reward that is not finite, or does not fit `reward_key`.
    """
    for sample in samples:
        sample.validate()
    kept = [sample for sample in samples if sample.response_length > 0]
    masks = [_training_mask(sample, mask_truncated) for sample in kept]
    rollout_ids = _unused_ids([sample.rollout_id for sample in kept])
    batch: Batch = {
        **_inputs(kept),
        "response_lengths": [sample.response_length for sample in kept],
        "loss_masks": masks,
        "rollout_mask_sums": _rollout_mask_sums(masks, rollout_ids),
        "rollout_ids": rollout_ids,
        "sample_indices": _unused_ids([sample.index for sample in kept]),
        "truncated": [int(sample.status is SampleStatus.TRUNCATED) for sample in kept],
        "removed": [int(sample.removed) for sample in kept],
        "source_names": [sample.source for sample in kept],
        "metadata": [sample.metadata for sample in kept],
    }
    _add_optional(batch, kept, reward_key)
    return batch, _counters(batch, len(samples) - len(kept), unit)


def _inputs(samples: Sequence[Sample]) -> Batch:
    """What the models read: tokens, or the entries of `inputs`.

    Raises:
        BatchError: samples differ in which entries they have.
    """
    names = {None if sample.inputs is None else tuple(sorted(sample.inputs)) for sample in samples}
    if len(names) > 1:
        found = " and ".join(sorted("tokens" if name is None else ", ".join(name) for name in names))
        raise BatchError(f"the samples of a rollout have {found}; all of them need the same inputs")
    if names <= {None}:
        return {
            "tokens": [torch.tensor(sample.tokens, dtype=torch.int64) for sample in samples],
            "total_lengths": [len(sample.tokens) for sample in samples],
        }
    return {name: [sample.inputs[name] for sample in samples if sample.inputs] for name in names.pop() or ()}


def _training_mask(sample: Sample, mask_truncated: bool) -> Tensor:
    silent = sample.removed or (mask_truncated and sample.status is SampleStatus.TRUNCATED)
    return torch.tensor([0] * sample.response_length if silent else sample.mask, dtype=torch.int32)


def _unused_ids(ids: Sequence[int | None]) -> list[int]:
    """Keep the given ids and replace each None by the next number above all of them."""
    fresh = max((given for given in ids if given is not None), default=-1)
    filled = []
    for given in ids:
        if given is None:
            fresh += 1
        filled.append(fresh if given is None else given)
    return filled


def _rollout_mask_sums(masks: Sequence[Tensor], rollout_ids: Sequence[int]) -> list[int]:
    sums: dict[int, int] = defaultdict(int)
    for mask, rollout_id in zip(masks, rollout_ids, strict=True):
        sums[rollout_id] += int(mask.sum())
    return [sums[rollout_id] for rollout_id in rollout_ids]


def _add_optional(batch: Batch, samples: Sequence[Sample], reward_key: str | None) -> None:
    if _present(samples, "group_index", of_removed=True):
        batch["group_indices"] = [sample.group_index for sample in samples]
    for name, key in (("pair_id", "pair_ids"), ("is_chosen", "is_chosen")):
        if _present(samples, name, of_removed=True):
            batch[key] = [getattr(sample, name) for sample in samples]
    if _present(samples, "reward"):
        batch["raw_reward"] = [_reward(sample, reward_key) for sample in samples]
        batch["rewards"] = list(batch["raw_reward"])
    for name in ("rollout_log_probs", "teacher_log_probs"):
        if _present(samples, name):
            batch[name] = [_float_vector(getattr(sample, name), sample) for sample in samples]
    if _present(samples, "teacher_topk_ids") and _present(samples, "teacher_topk_log_probs"):
        batch["teacher_topk_ids"] = _matrices(samples, "teacher_topk_ids", torch.int32, 0)
        batch["teacher_topk_log_probs"] = _matrices(samples, "teacher_topk_log_probs", torch.float32, math.nan)
    if _present(samples, "teacher_prompt", of_removed=True):
        batch["teacher_tokens"] = [
            torch.tensor([*(sample.teacher_prompt or ()), *sample.tokens[sample.prompt_length :]], dtype=torch.int64)
            for sample in samples
        ]
    for name, dtype, unknown in (("executor", torch.int8, ENVIRONMENT), ("turn_ids", torch.int16, -1)):
        if _present(samples, name):
            filled = [getattr(s, name) or [unknown] * s.response_length for s in samples]
            batch[name] = [torch.tensor(entries, dtype=dtype) for entries in filled]


def _present(samples: Sequence[Sample], name: str, of_removed: bool = False) -> bool:
    """Apply the presence rule to the field `name`: set on every sample (that is not removed), or on none."""
    asked = [sample for sample in samples if of_removed or not sample.removed]
    missing = [sample for sample in asked if getattr(sample, name) is None]
    if missing and len(missing) < len(asked):
        raise BatchError(
            f"{name} is set on {len(asked) - len(missing)} of {len(asked)} samples; first without it: "
            f"{missing[0].describe()}. Set it on every sample of the rollout or on none"
        )
    return bool(asked) and not missing


def _float_vector(values: Sequence[float] | None, sample: Sample) -> Tensor:
    if values is None:
        return torch.full((sample.response_length,), math.nan)
    return torch.tensor(values, dtype=torch.float32)


def _matrices(samples: Sequence[Sample], name: str, dtype: torch.dtype, unknown: float) -> list[Tensor]:
    """The ``[R, K]`` tensor of each sample, filled with `unknown` where a removed sample has none."""
    rows = [getattr(sample, name) for sample in samples]
    widths = {len(row) for sample_rows in rows for row in sample_rows or ()}
    if len(widths) > 1:
        raise BatchError(f"{name} has rows of {sorted(widths)} entries; every response token needs equally many")
    width = max(widths, default=0)
    return [
        torch.full((sample.response_length, width), unknown, dtype=dtype)
        if given is None
        else torch.tensor(given, dtype=dtype).reshape(sample.response_length, width)
        for sample, given in zip(samples, rows, strict=True)
    ]


def _reward(sample: Sample, reward_key: str | None) -> float:
    reward = sample.reward
    if reward is None:
        return math.nan
    if isinstance(reward, dict):
        if reward_key is None or reward_key not in reward:
            names = ", ".join(sorted(reward))
            wanted = "no reward_key is set" if reward_key is None else f"reward_key is {reward_key!r}"
            hint = nearest(reward_key or "", reward)
            raise RewardError(f"{sample.describe()}: the reward has the entries {names}, but {wanted}{hint}")
        value = reward[reward_key]
    elif reward_key is not None:
        raise RewardError(f"{sample.describe()}: reward_key is {reward_key!r}, but the reward is the number {reward!r}")
    else:
        value = reward
    if not math.isfinite(value) and not sample.removed:
        raise RewardError(f"{sample.describe()}: the reward is {value!r}; it must be a finite number")
    return float(value)


def _counters(batch: Batch, dropped: int, unit: str) -> dict[str, float]:
    lengths = batch["response_lengths"]
    count = max(len(lengths), 1)
    loss_tokens = [int(mask.sum()) for mask in batch["loss_masks"]]
    return {
        "dropped_empty": float(dropped),
        "removed": float(sum(batch["removed"])),
        "truncated_frac": sum(batch["truncated"]) / count,
        "empty_mask_frac": loss_tokens.count(0) / count,
        f"response_{unit}s": float(sum(lengths)),
        f"loss_{unit}s": float(sum(loss_tokens)),
        "response_length_mean": sum(lengths) / count,
        "response_length_min": float(min(lengths, default=0)),
        "response_length_max": float(max(lengths, default=0)),
    }


def select(batch: Batch, indices: Sequence[int]) -> Batch:
    """The samples at `indices`, in that order; values that are not per-sample lists are shared."""
    return {
        key: [value[index] for index in indices] if isinstance(value, list) else value for key, value in batch.items()
    }


def validate_batch(batch: Batch, required: Iterable[str] = (), keys: Mapping[str, BatchKey] = BATCH_KEYS) -> None:
    """Check a whole-rollout batch before it is trained on; costs one pass over the CPU tensors.

    Args:
        batch: unpacked batch.
        required: keys that must be there.
        keys: the contract of the batch.

    Raises:
        BatchError: missing key, lists of unequal length, wrong per-sample length, mask outside {0, 1}, a
            response that leaves no prompt token, or a positive teacher log-prob that is not TEACHER_TOKEN.
        NonFiniteError: NaN or infinity where the mask is 1, or in the reward of a sample that is not removed.
    """
    missing = [key for key in required if key not in batch]
    if missing:
        raise BatchError(f"the batch lacks {', '.join(missing)}; it has {', '.join(sorted(batch))}")
    size = len(batch["response_lengths"])
    for key, value in batch.items():
        if isinstance(value, list) and len(value) != size:
            raise BatchError(f"batch key {key!r} has {len(value)} entries for {size} samples")
    aligned = [key for key in response_keys(keys) if key in batch]
    for position in range(size):
        where = f"sample {batch['sample_indices'][position]}"
        _check_lengths(batch, position, where, aligned)
        mask = _check_mask(batch["loss_masks"][position], where)
        for key in aligned:
            if key != "loss_masks":
                _check_values(key, batch[key][position], mask, where)
        _check_reward(batch, position, where)


def _check_lengths(batch: Batch, position: int, where: str, aligned: Iterable[str]) -> None:
    response = batch["response_lengths"][position]
    if "tokens" in batch:
        total, tokens = batch["total_lengths"][position], len(batch["tokens"][position])
        if tokens != total:
            raise BatchError(f"{where}: total_lengths is {total} with {tokens} tokens")
        if not 0 <= response <= total - 1:
            raise BatchError(
                f"{where}: response_lengths is {response}; with {total} tokens it must lie in 0..{total - 1}"
            )
    for key in aligned:
        if len(batch[key][position]) != response:
            raise BatchError(f"{where}: {key} has {len(batch[key][position])} entries for a response of {response}")


def _check_mask(mask: Tensor, where: str) -> Tensor:
    if not bool(((mask == 0) | (mask == 1)).all()):
        raise BatchError(f"{where}: loss_masks holds a value other than 0 and 1")
    return mask.bool()


def _check_values(key: str, values: Tensor, mask: Tensor, where: str) -> None:
    trained = values[mask]
    if not bool(torch.isfinite(trained).all()):
        at, *entry = [int(i) for i in (~torch.isfinite(values) & mask.view(-1, *[1] * (values.dim() - 1))).nonzero()[0]]
        value = float(values[(at, *entry)])
        raise NonFiniteError(f"{where}: {key} is {value} at position {at} of the response, which has mask 1")
    if key == "teacher_log_probs":
        corrupt = trained[(trained > 1e-6) & (trained != TEACHER_TOKEN)]
        if corrupt.numel():
            raise BatchError(
                f"{where}: teacher_log_probs holds {float(corrupt[0])}; a log-prob is at most 0, "
                f"and {TEACHER_TOKEN} marks a token the teacher produced"
            )


def _check_reward(batch: Batch, position: int, where: str) -> None:
    removed = bool(batch["removed"][position]) if "removed" in batch else False
    for key in ("rewards", "raw_reward"):
        if key in batch and not removed and not math.isfinite(batch[key][position]):
            raise NonFiniteError(f"{where}: {key} is {batch[key][position]}; it must be finite")
