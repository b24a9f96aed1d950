"""The kernels of the family: pure functions of tensors that know neither a batch nor a setting."""

from stacx_plugin_grpo.objectives.group_advantages import (
    GroupStatistics,
    compute_group_advantages,
    compute_grpo_advantages,
    group_statistics,
)
from stacx_plugin_grpo.objectives.mismatch import (
    effective_sample_size,
    importance_ratios,
    importance_weights,
    inside,
    truncated_importance_weights,
    without_veto,
)
from stacx_plugin_grpo.objectives.opsm import opsm_mask
from stacx_plugin_grpo.objectives.policy import (
    PolicyLoss,
    cispo_loss,
    clipped_surrogate,
    ppo_clip_loss,
    sequence_log_ratio,
)
from stacx_plugin_grpo.objectives.returns import (
    clipped_value_loss,
    discounted_sums,
    gae_advantages,
    reinforce_returns,
)
from stacx_plugin_grpo.objectives.sequences import (
    per_token,
    sequence_counts,
    sequence_means,
    sequence_sums,
)
from stacx_plugin_grpo.objectives.whitening import Whitened, whiten

__all__ = [
    "GroupStatistics",
    "PolicyLoss",
    "Whitened",
    "cispo_loss",
    "clipped_surrogate",
    "clipped_value_loss",
    "compute_group_advantages",
    "compute_grpo_advantages",
    "discounted_sums",
    "effective_sample_size",
    "gae_advantages",
    "group_statistics",
    "importance_ratios",
    "importance_weights",
    "inside",
    "opsm_mask",
    "per_token",
    "ppo_clip_loss",
    "reinforce_returns",
    "sequence_counts",
    "sequence_log_ratio",
    "sequence_means",
    "sequence_sums",
    "truncated_importance_weights",
    "whiten",
    "without_veto",
]
