"""The baseline z of KTO: how far the policy has moved from the reference on responses that were not chosen for it.

The paper (arXiv 2402.01306, section 4) estimates z as the mean of ``S - R`` over mismatched pairs of a prompt and a
response, cut off at 0 and without gradient. Here the roll-in adds to each response one such pair, the prompt with
the response of the next row that has another prompt; both roles score it with everything else when the rollout
begins; and this stage takes the mean over the whole rollout and drops those samples again.

So z is one number per rollout. It depends neither on how the batch is cut nor on what else is in a micro-batch, and
with several updates per rollout it is that of the policy before the first of them.
"""

from __future__ import annotations

from stacx_core import Args, Batch, BatchError
from stacx_core.objectives import where_masked

MISMATCHED = "kto_mismatched"
"""Note in a sample's metadata: its response belongs to another prompt and is only scored."""


def measure_baseline(batch: Batch, args: Args) -> dict[str, float]:
    """Write ``kto_baseline``, a float per sample, and drop the mismatched samples; nothing for other losses.

    Args:
        batch: the whole rollout; reads ``log_probs``, ``ref_log_probs``, ``loss_masks`` and ``metadata``.
        args: the knobs of the recipe.

    Returns:
        ``kto_baseline``, z, and ``kto_mismatched_log_ratio``, the mean before it is cut off at 0.

    Raises:
        BatchError: the rollout brought no mismatched sample.
    """
    if args.dpo_loss_type != "kto":
        return {}
    mismatched = [MISMATCHED in notes for notes in batch["metadata"]]
    ratios = [
        float(where_masked(policy.double() - reference.double(), mask).sum())
        for policy, reference, mask, is_mismatched in zip(
            batch["log_probs"], batch["ref_log_probs"], batch["loss_masks"], mismatched, strict=True
        )
        if is_mismatched
    ]
    if not ratios:
        raise BatchError("kto measures its baseline on mismatched samples, but the rollout has none; use PairRollout")
    mean = sum(ratios) / len(ratios)
    kept = [position for position, is_mismatched in enumerate(mismatched) if not is_mismatched]
    for key, values in batch.items():
        if isinstance(values, list):
            batch[key] = [values[position] for position in kept]
    batch["kto_baseline"] = [max(0.0, mean)] * len(kept)
    return {"kto_baseline": max(0.0, mean), "kto_mismatched_log_ratio": mean}
