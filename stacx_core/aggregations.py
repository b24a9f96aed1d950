"""The named ways to make one number of per-token losses, in symbols; `stacx_core.objectives` computes them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

AGGREGATIONS: Mapping[str, str] = MappingProxyType(
    {
        "sample_mean": "1/G * sum_i sum_t x m / max(D_i, 1)",
        "token_mean": "sum_i sum_t x m / max(sum_i n_i, 1)",
        "seq_mean_token_sum": "1/G * sum_i sum_t x m",
        "constant": "sum_i sum_t x m / (G * L_max)",
    }
)
"""Name -> the loss of one optimizer step."""

SYMBOLS = (
    "x: loss of a token; m: its mask; n_i: trained tokens of sample i; D_i: trained tokens of the rollout of sample i; "
    "G: rollouts in the step; L_max: --rollout-max-response-len"
)
"""What the letters of the formulas stand for."""
