"""What a server does with a temperature, measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from stacx_core.rollout.engine import SamplingParams
from stacx_core.rollout.sglang.messages import GENERATE, generation_body, score_body
from stacx_core.rollout.sglang.pool import ServerPool
from stacx_core.rollout.sglang.scorer import understood
from stacx_core.rollout.sglang.server import SGLangServer

HALF = 0.5
TEXT = (0, 1, 2, 3)
SAME = 1e-3
"""How far log-probs may be apart and be called the same (nats)."""


@dataclass(frozen=True)
class Scaling:
    """Whether log-probs are told at the temperature of the request, and not at 1.

    Args:
        inputs: Those of given tokens.
        outputs: Those of sampled tokens.
    """

    inputs: bool
    outputs: bool


async def measure_scaling(pool: ServerPool, vocabulary: int) -> Scaling:
    """Ask one server for the two likeliest ids after a fixed text, at two temperatures.

    Half the temperature makes their log-probs twice as far apart, whatever the model. Where both ids are as likely
    there is nothing to see, and the answer is no.

    Raises:
        EngineError: No server gave a good answer.
    """
    text = [index % vocabulary for index in TEXT]

    async def gaps(server: SGLangServer, temperature: float) -> tuple[float, float]:
        sampled = generation_body(uuid4().hex, text, 0, SamplingParams(1, temperature), [])
        given = await server.post(GENERATE, score_body(text, 1, temperature, 2), pool.limits.timeout)
        made = await server.post(GENERATE, {**sampled, "top_logprobs_num": 2}, pool.limits.timeout)
        return understood(
            server, GENERATE, lambda: (_gap(given, "input_top_logprobs"), _gap(made, "output_top_logprobs"))
        )

    async def send(server: SGLangServer) -> tuple[tuple[float, float], tuple[float, float]]:
        return await gaps(server, 1.0), await gaps(server, HALF)

    whole, half = await pool.ask(send)
    scaled = [a > SAME and abs(b - a / HALF) < abs(b - a) for a, b in zip(whole, half, strict=True)]
    return Scaling(*scaled)


def _gap(answer: Any, name: str) -> float:
    (first, _, _), (second, _, _) = answer["meta_info"][name][-1]
    return float(first) - float(second)
