"""What is sent to a server's ``/generate``, and what a good answer to it looks like.

The readers take nothing on trust: an answer with a number too few, one that is no number, or one of an aborted
request raises ``ValueError`` with what is wrong, and never becomes a sample or a score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from stacx_core.rollout.engine import Generation, SamplingParams

GENERATE = "/generate"
"""Where requests go."""

ROUNDING = 1e-5
"""How far above 0 a log-prob may be (nats)."""

SEED_MASK = 2**63 - 1
"""A seed is a signed 64-bit integer there."""


def generation_body(
    rid: str, prompt: Sequence[int], seed: int, params: SamplingParams, stop_ids: Sequence[int]
) -> dict[str, Any]:
    """One response to one prompt, under a name of its own by which it can be aborted."""
    sampling = {
        "max_new_tokens": params.max_new_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "stop_token_ids": list(stop_ids),
        "sampling_seed": seed & SEED_MASK,
    }
    return {"rid": rid, "input_ids": list(prompt), "sampling_params": sampling, "return_logprob": True}


def read_generation(answer: Any, params: SamplingParams, vocabulary: int, *, aborted: bool) -> Generation:
    """The response, with ``finish`` ``abort`` only where that was asked for.

    Args:
        answer: Of ``/generate``.
        params: What it was asked with.
        vocabulary: Number of the policy's ids.
        aborted: Whether the request may have been aborted by us.

    Raises:
        ValueError: Anything is wrong with it.
    """
    meta = _meta(answer)
    ids = _list(answer, "output_ids")
    rows = _list(meta, "output_token_logprobs")
    finish = _finish(meta, ids, params, aborted)
    if len(rows) != len(ids):
        raise ValueError(f"it gave {len(rows)} log-probs for {len(ids)} tokens")
    wrong = next((i for i in ids if type(i) is not int or not 0 <= i < vocabulary), None)
    if wrong is not None:
        raise ValueError(f"it sampled the token id {wrong!r}; the policy has ids from 0 to {vocabulary - 1}")
    return Generation(ids, [_log_prob(row, t) for t, row in enumerate(rows)], finish, _versions(meta, len(ids)))


def score_body(
    tokens: Sequence[int], response_length: int, temperature: float, top_k: int = 0, ids: Sequence[int] = ()
) -> dict[str, Any]:
    """Log-probs of a response, of the likeliest ids at each of its positions, and of further ids at all of them."""
    body = {
        "input_ids": list(tokens),
        "sampling_params": {"max_new_tokens": 0, "temperature": temperature},
        "return_logprob": True,
        "logprob_start_len": len(tokens) - response_length - 1,
    }
    return {
        **body,
        **({"top_logprobs_num": top_k} if top_k else {}),
        **({"token_ids_logprob": list(ids)} if ids else {}),
    }


class Scored(NamedTuple):
    """R log-probs, and R lists of ``(log-prob, id)`` of the likeliest ids and of the ids asked for."""

    log_probs: list[float]
    likeliest: list[list[tuple[float, int]]]
    asked: list[list[tuple[float, int]]]


def read_score(answer: Any, response_length: int, top_k: int, ids: int) -> Scored:
    """The score, taken by position: the last id of a vocabulary is echoed as another one.

    Args:
        answer: Of ``/generate``.
        response_length: R.
        top_k: Likeliest ids asked for at each position.
        ids: How many further ids were asked for.

    Raises:
        ValueError: Anything is wrong with it.
    """
    meta = _meta(answer)
    if meta["finish_reason"].get("type") == "abort":
        raise ValueError(f"it aborted the request: {meta['finish_reason'].get('message')}")
    rows = _positions(meta, "input_token_logprobs", response_length)
    return Scored(
        [_log_prob(row, t) for t, row in enumerate(rows)],
        _lists(meta, "input_top_logprobs", response_length, top_k),
        _lists(meta, "input_token_ids_logprobs", response_length, ids),
    )


def _meta(answer: Any) -> dict[str, Any]:
    meta = answer.get("meta_info") if isinstance(answer, dict) else None
    if not isinstance(meta, dict) or not isinstance(meta.get("finish_reason"), dict):
        raise ValueError(f"it has no meta_info with a finish_reason: {str(answer)[:200]}")
    return meta


def _list(record: dict[str, Any], name: str) -> list[Any]:
    found = record.get(name)
    if not isinstance(found, list):
        raise ValueError(f"its {name} is {type(found).__name__}, not a list")
    return found


def _finish(
    meta: dict[str, Any], ids: list[Any], params: SamplingParams, aborted: bool
) -> Literal["stop", "length", "abort"]:
    reason = meta["finish_reason"]
    kind = reason.get("type")
    if kind == "abort" and aborted:
        return "abort"
    # It also calls a response stopped whose logits were not numbers, and then puts a stop token in.
    if kind == "stop" and ids and reason.get("matched") == ids[-1]:
        return "stop"
    if kind == "length" and len(ids) == params.max_new_tokens:
        return "length"
    raise ValueError(f"it ended after {len(ids)} of {params.max_new_tokens} tokens by {reason}")


def _versions(meta: dict[str, Any], count: int) -> list[str]:
    """The label of the weights behind each of ``count`` tokens."""
    spans = meta.get("weight_versions") or [{"version": meta.get("weight_version"), "start": 0, "end": count}]
    found = [str(span["version"]) for span in spans for _ in range(span["start"], span["end"])]
    if len(found) != count:
        raise ValueError(f"its weight_versions tell of {len(found)} of {count} tokens: {spans}")
    return found


def _positions(meta: dict[str, Any], name: str, count: int) -> list[Any]:
    """The entries of the response's tokens, behind the one of the token before, of which nothing is told."""
    rows = _list(meta, name)
    if len(rows) != count + 1:
        raise ValueError(f"its {name} are of {len(rows) - 1} tokens; {count} were asked for")
    return rows[1:]


def _lists(meta: dict[str, Any], name: str, count: int, width: int) -> list[list[tuple[float, int]]]:
    if not width:
        return []
    rows = _positions(meta, name, count)
    wrong = next((len(row or ()) for row in rows if len(row or ()) != width), None)
    if wrong is not None:
        raise ValueError(f"its {name} hold {wrong} ids at a position; {width} were asked for")
    return [[(_log_prob(entry, t), int(entry[1])) for entry in row] for t, row in enumerate(rows)]


def _log_prob(entry: Any, position: int) -> float:
    value = entry[0] if isinstance(entry, list) and entry else entry
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value > ROUNDING:
        raise ValueError(f"its log-prob at token {position} is {value!r}")
    return float(value)
