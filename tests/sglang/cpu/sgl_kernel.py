"""A stand-in for SGLang's CPU kernels, which no package offers: SGLang imports these names and calls none of them.

It runs its native torch code instead. For tests only.
"""

from __future__ import annotations

from typing import Any, NoReturn


def _missing(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("a kernel of sgl_kernel was called; this stand-in has none")


assign_draft_cache_locs_contiguous_cpu = _missing
assign_extend_cache_locs_cpu = _missing
assign_req_to_token_pool_cpu = _missing
build_tree_kernel_efficient_cpu = _missing
copy_all_layer_kv_cache_cpu = _missing
fill_accept_out_cache_loc_cpu = _missing
fill_bonus_tokens_cpu = _missing
verify_tree_greedy_cpu = _missing
