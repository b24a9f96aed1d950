"""Divergences between a student and a teacher: pure functions of tensors that need only torch."""

from stacx_plugin_distill.objectives.sampled import SAMPLED_MODES, sampled_divergence
from stacx_plugin_distill.objectives.support import Support, union_support
from stacx_plugin_distill.objectives.topk import generalized_jsd, renormalized_kl, tail_kl, truncated_kl

__all__ = [
    "SAMPLED_MODES",
    "Support",
    "generalized_jsd",
    "renormalized_kl",
    "sampled_divergence",
    "tail_kl",
    "truncated_kl",
    "union_support",
]
