"""What servers that somebody else started say of themselves."""

from __future__ import annotations

from dataclasses import dataclass

from stacx_core.errors import EngineError
from stacx_core.rollout.sglang.pool import ServerPool
from stacx_core.rollout.sglang.server import SGLangServer

MODEL_INFO = "/model_info"
ANSWER_SECONDS = 30.0
"""How long a server may take to introduce itself."""


@dataclass(frozen=True)
class ServedPaths:
    """A server, and the folders or hub ids of its model and of that model's tokenizer."""

    url: str
    model: str
    tokenizer: str


async def served_paths(flag: str, pool: ServerPool) -> list[ServedPaths]:
    """What each server of a pool holds.

    Args:
        flag: What names the servers.
        pool: The servers.

    Raises:
        EngineError: One does not answer, or is something else than an SGLang server.
    """

    async def told(server: SGLangServer) -> ServedPaths:
        hint = f"start an SGLang server there, or mend {flag}"
        try:
            answer = await server.get(MODEL_INFO, min(ANSWER_SECONDS, pool.limits.timeout))
        except EngineError as error:
            raise EngineError(f"{flag}: {error}", hint) from error
        if not isinstance(answer, dict) or not {"model_path", "tokenizer_path"} <= set(answer):
            raise EngineError(f"{flag}: what answers at {server.url} is no SGLang server: {str(answer)[:200]!r}", hint)
        return ServedPaths(server.url, str(answer["model_path"]), str(answer["tokenizer_path"]))

    return await pool.every(told)
