"""Stateless objectives shared by algorithm families: pure functions of tensors that need only torch."""

from stacx_core.objectives.aggregation import (
    Aggregation,
    Reducer,
    make_reducer,
    mean_over,
    sum_of_sample_mean,
    where_masked,
)
from stacx_core.objectives.kl import KL_KINDS, kl_estimate
from stacx_core.objectives.likeliest import likeliest_ids
from stacx_core.objectives.log_probs import response_rows, response_token_log_probs, token_log_probs
from stacx_core.objectives.sharded import ShardedOutput
from stacx_core.objectives.values import values_at

__all__ = [
    "KL_KINDS",
    "Aggregation",
    "Reducer",
    "ShardedOutput",
    "kl_estimate",
    "likeliest_ids",
    "make_reducer",
    "mean_over",
    "response_rows",
    "response_token_log_probs",
    "sum_of_sample_mean",
    "token_log_probs",
    "values_at",
    "where_masked",
]
