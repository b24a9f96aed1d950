"""What the answers of a gateway depend on, beside the requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stacx_core.rollout.engine import SamplingParams


@dataclass(frozen=True)
class GatewaySettings:
    """What answers depend on, beside the requests.

    Args:
        model: The name under which the policy is served.
        params: How to sample; its ``max_new_tokens`` bounds what a request may ask for.
        limit: Most tokens of context and answer together, if there is a limit.
        seed: Of the run.
        sampling: Whose temperature, top-p and seed count: with ``run`` those of a request are taken and not used, so
            that all samples are of the policy that is trained; with ``request`` they are used where it names them.
        max_turns: Most answers of a session, if there is a limit.
    """

    model: str
    params: SamplingParams
    limit: int | None = None
    seed: int = 0
    sampling: Literal["run", "request"] = "run"
    max_turns: int | None = None
